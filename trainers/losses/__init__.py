"""Losses: each a frozen dataclass whose `build` gives a function (logits, targets) -> mean over the samples given.

Targets are int (samples,), labels, or float32 (samples, classes): mixtures of labels, not smoothed yet. A loss's
`initialize(model)`, if it has one, is called once, after the model's initial weights were drawn.
"""

from trainers.losses.binary_cross_entropy import BinaryCrossEntropy
from trainers.losses.softmax_cross_entropy import SoftmaxCrossEntropy

__all__ = ["BinaryCrossEntropy", "SoftmaxCrossEntropy"]
