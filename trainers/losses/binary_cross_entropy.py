"""Binary cross entropy: an independent yes or no for every class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from lr_schedules.units import require_number
from recipes.errors import InputRefused
from trainers.arguments import require_share

if TYPE_CHECKING:
    import chainer
    import numpy as np

_REDUCTIONS = ("class_mean", "class_sum")


@dataclass(frozen=True, kw_only=True)
class BinaryCrossEntropy:
    """Cross entropy between the sigmoid of each logit and its target, the mean over the samples.

        loss = mean over samples of R over k of -(t_k log s_k + (1 - t_k) log(1 - s_k))
        s = sigmoid(logits);   R: mean over classes (class_mean) or sum over classes (class_sum)
        q_k = 1 - e + e / K for the label, e / K for every other class;   t = q, or t_k = 1 if q_k > threshold else 0

    Notation: K classes, e `label_smoothing`. The order is smoothing, mixing, threshold: with a threshold of 0.2 both
    labels of a mixed image count whole if the smaller share is above it, so the targets of a row may add up to 2.
    Computed as softplus(z) - z t, which neither overflows nor loses a small loss.

    Args:
        label_smoothing: the uniform share e of the targets, in [0, 1).
        reduction: over the K classes of a sample: `class_mean` or `class_sum`. The sum is K times the mean and wants a
            rate K times smaller.
        target_threshold: in [0, 1): targets above it become 1, the others 0, compared in float32; null keeps them.
        head_bias: initial bias of the model's last layer; -log(K) makes every class start near a probability of 1/K.
            null leaves the model's own.
    Raises:
        ValueError: a field is out of range. When `initialize` is called: the model has no head `fc` with a bias. When
            the loss is called: `target_threshold` is below e / K, so that every class of every sample would be a 1.

    Source: timm, loss/binary_cross_entropy.py and data/mixup.py (class_mean, the threshold, the order); Composer,
        loss/loss.py, binary_cross_entropy_with_logits (class_sum); Wightman et al. 2021, arXiv 2110.00476 (used so).
    """

    label_smoothing: float = 0.0
    reduction: Literal["class_mean", "class_sum"] = "class_mean"
    target_threshold: float | None = None
    head_bias: float | None = None

    def __post_init__(self) -> None:
        require_share("BinaryCrossEntropy.label_smoothing", self.label_smoothing)
        if self.reduction not in _REDUCTIONS:
            raise ValueError(f"BinaryCrossEntropy.reduction must be class_mean or class_sum, got {self.reduction!r}")
        if self.target_threshold is not None:
            require_share("BinaryCrossEntropy.target_threshold", self.target_threshold)
        if self.head_bias is not None:
            require_number("BinaryCrossEntropy.head_bias", self.head_bias)

    def build(self) -> Callable[[chainer.Variable, np.ndarray], chainer.Variable]:
        """A function of logits (samples x classes, float) and targets that returns a scalar Variable.

        Targets are int (samples,), labels, or float (samples, classes), mixtures of labels before smoothing.
        """
        return self._loss

    def initialize(self, model: chainer.Link) -> None:
        """Set the bias of the model's head to `head_bias`, if that is given.

        The head is the link `fc`, or the one that a ChainerCV model names in `pick`.
        """
        if self.head_bias is None:
            return
        head = getattr(model, "fc", None) or getattr(model, str(getattr(model, "pick", None)), None)
        bias = getattr(head, "b", None)
        if bias is None or bias.array is None:
            raise ValueError(
                f"BinaryCrossEntropy.head_bias is {self.head_bias}, but {type(model).__name__} has no link `fc` with a "
                "bias: leave head_bias out, or call the model's last linear layer fc"
            )
        bias.array[...] = self.head_bias

    def _loss(self, logits: chainer.Variable, targets: np.ndarray) -> chainer.Variable:
        import chainer.functions as F

        from trainers.losses.soft_targets import soft_targets
        from trainers.losses.softplus import Softplus

        t = soft_targets(targets, like=logits, label_smoothing=self.label_smoothing)
        num_samples, num_classes = t.shape
        if self.target_threshold is not None:
            self.require_classes(num_classes)
            t = (t.astype("f") > self.target_threshold).astype(t.dtype)  # NumPy rounds the number to float32 too
        z = F.cast(logits, t.dtype)
        total = F.sum(Softplus().apply((z,))[0] - z * t)
        return total / (num_samples * (num_classes if self.reduction == "class_mean" else 1))

    def require_classes(self, num_classes: int) -> None:
        """Refuse a threshold that makes a 1 of every target of so many classes.

        Raises:
            InputRefused: it is below label_smoothing / num_classes.
        """
        if self.target_threshold is not None and self.target_threshold < self.label_smoothing / num_classes:
            raise InputRefused(
                f"BinaryCrossEntropy.target_threshold is {self.target_threshold}, but smoothing alone gives each of "
                f"{num_classes} classes {self.label_smoothing / num_classes}: every target would be 1; "
                "raise the threshold or lower label_smoothing"
            )
