"""Losses: each a frozen dataclass whose `build` gives a function (logits, targets) -> mean over the samples given.

Targets are int (samples,), labels, or float32 (samples, classes): mixtures of labels, not smoothed yet. A loss that has
`initialize(model)` is shown the model once, after its initial weights were drawn.
"""

from trainers.losses.binary_cross_entropy import BinaryCrossEntropy
from trainers.losses.softmax_cross_entropy import SoftmaxCrossEntropy

__all__ = ["BinaryCrossEntropy", "SoftmaxCrossEntropy"]
