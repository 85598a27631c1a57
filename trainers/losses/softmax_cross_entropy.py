"""Softmax cross entropy with label smoothing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.arguments import require_share

if TYPE_CHECKING:
    import chainer
    import numpy as np


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy:
    """Cross entropy between the softmax of the logits and the targets, the mean over the samples.

        loss = mean over samples of -sum over k of q_k log p_k
        p = softmax(logits);   q_k = 1 - e + e / K for the label, e / K for every other class

    Notation: K classes, e `label_smoothing`. e is shared by all K classes, the label's own included. Mixed targets are
    mixtures of the smoothed q of their labels.

    Args:
        label_smoothing: the uniform share e of the targets, in [0, 1); 0 is the plain cross entropy.
    Raises:
        ValueError: `label_smoothing` is outside [0, 1).

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (not checked); PyTorch's documentation of CrossEntropyLoss
        mixes in the same uniform share.
    """

    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        require_share("SoftmaxCrossEntropy.label_smoothing", self.label_smoothing)

    def build(self) -> Callable[[chainer.Variable, np.ndarray], chainer.Variable]:
        """A function of logits (samples x classes, float) and targets that returns a scalar Variable.

        Targets are int (samples,), labels, or float (samples, classes), mixtures of labels before smoothing. In the
        fused kernels of a GPU a label outside 0 to K - 1 gives a loss of NaN.
        """
        return self._loss

    def _loss(self, logits: chainer.Variable, targets: np.ndarray) -> chainer.Variable:
        import chainer.functions as F

        from trainers.fused_loss import fused_cross_entropy
        from trainers.losses.soft_targets import soft_targets

        smoothed = functools.partial(soft_targets, targets, like=logits, label_smoothing=self.label_smoothing)
        fused = fused_cross_entropy(logits, targets, label_smoothing=self.label_smoothing, soft_targets=smoothed)
        if fused is not None:
            return fused
        if self.label_smoothing == 0 and targets.ndim == 1:
            return F.softmax_cross_entropy(logits, targets)
        q = smoothed()
        return -F.sum(q * F.log_softmax(F.cast(logits, q.dtype))) / len(q)
