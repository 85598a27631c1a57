"""Softmax cross entropy with label smoothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_share

if TYPE_CHECKING:
    import chainer
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy:
    """Cross entropy between the softmax of the logits and the labels, the mean over the samples.

        loss = mean over samples of -sum over k of q_k log p_k
        p = softmax(logits);   q_k = 1 - e + e / K for the label, e / K for every other class

    Notation: K classes, e `label_smoothing`. All K classes share e, the label's own too.

    Args:
        label_smoothing: e, in [0, 1); 0 is the plain cross entropy.
    Raises:
        ValueError: `label_smoothing` is outside [0, 1).

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (not checked); PyTorch's documentation of CrossEntropyLoss
        mixes in the same uniform share.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_share("SoftmaxCrossEntropy.label_smoothing", self.label_smoothing)

    def build(self) -> Callable[[chainer.Variable, np.ndarray], chainer.Variable]:
        """A function of logits (samples x classes, float) and labels (samples, int) that returns a scalar Variable."""
        import chainer.functions as F

        return F.softmax_cross_entropy if self.label_smoothing == 0 else self._smoothed

    def _smoothed(self, logits: chainer.Variable, labels: np.ndarray) -> chainer.Variable:
        import chainer
        import chainer.functions as F

        num_samples, num_classes = logits.shape
        xp = chainer.backend.get_array_module(logits)
        q = xp.full(logits.shape, self.label_smoothing / num_classes, dtype=logits.dtype)
        q[xp.arange(num_samples), labels] += 1 - self.label_smoothing
        return -F.sum(q * F.log_softmax(logits)) / num_samples
