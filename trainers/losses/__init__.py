"""Losses: each a frozen dataclass whose `build` gives a function (logits, labels) -> mean over the samples given."""

from trainers.losses.softmax_cross_entropy import SoftmaxCrossEntropy

__all__ = ["SoftmaxCrossEntropy"]
