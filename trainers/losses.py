"""Losses: each a frozen dataclass whose `build` gives a function (logits, targets) -> mean over the samples given.

One of the user's own may be that function itself, by `__call__`.

A function with an argument `norm_groups` may be asked for the means of so many norm groups, which stand one after the
other: (norm_groups,), each with the bits that the group has alone, or None where it is to be called for each group.

Targets are int (samples,), labels, or float32 (samples, classes): mixtures of labels, not smoothed yet. A loss's
`initialize(model)`, if it has one, is called once, after the model's initial weights were drawn.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lr_schedules.units import require_number
from recipes.arguments import require_share, younger
from recipes.errors import InputRefused

__all__ = ["BinaryCrossEntropy", "SoftmaxCrossEntropy"]

if TYPE_CHECKING:
    import chainer

_MOST = float(np.finfo(np.float32).max)  # in which weights are multiplied


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
        if self.reduction not in ("class_mean", "class_sum"):
            raise ValueError(f"BinaryCrossEntropy.reduction must be class_mean or class_sum, got {self.reduction!r}")
        if self.target_threshold is not None:
            require_share("BinaryCrossEntropy.target_threshold", self.target_threshold)
        if self.head_bias is not None:
            require_number("BinaryCrossEntropy.head_bias", self.head_bias)

    def build(self) -> Callable[[chainer.Variable, np.ndarray], chainer.Variable]:
        """A function of logits (samples x classes, float) and targets that returns a scalar Variable."""
        return self._loss

    def initialize(self, model: chainer.Link) -> None:
        """Set the bias of the model's head to `head_bias`, if that is given.

        The head is that of `head_of`.
        """
        if self.head_bias is None:
            return
        bias = getattr(head_of(model), "b", None)
        if bias is None or bias.array is None:
            raise ValueError(
                f"BinaryCrossEntropy.head_bias is {self.head_bias}, but {type(model).__name__} has no link `fc` with a "
                "bias: leave head_bias out, or call the model's last linear layer fc"
            )
        bias.array[...] = self.head_bias

    def _loss(self, logits: chainer.Variable, targets: np.ndarray) -> chainer.Variable:
        import chainer.functions as F

        from trainers.kernels.fused_loss import Softplus

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
                f"BinaryCrossEntropy.target_threshold must be at least {self.label_smoothing / num_classes:g}, which "
                f"label_smoothing alone gives each of {num_classes} classes: every target would be 1, "
                f"got {self.target_threshold}"
            )


@dataclass(frozen=True, kw_only=True)
class SoftmaxCrossEntropy:
    """Cross entropy between the softmax of the logits and the targets, the mean over the samples.

        loss = mean over samples of -sum over k of w_k q_k log p_k
        p = softmax(logits);   q_k = 1 - e + e / K for the label, e / K for every other class

    Notation: K classes, e `label_smoothing`, w `class_weights`. e is shared by all K classes, the label's own included.
    Mixed targets are mixtures of the smoothed q of their labels.

    Args:
        label_smoothing: the uniform share e of the targets, in [0, 1); 0 is the plain cross entropy.
        class_weights: w, one number a class, in the order of the labels, at least 0; null: 1 for all. `data inspect`
            prints those that make up for classes of different sizes: samples / (K * samples of the class).
    Raises:
        ValueError: `label_smoothing` is outside [0, 1); a weight is below 0 or above float32's range, or all are 0.

    Source: Szegedy et al. 2015, arXiv 1512.00567, section 7 (not checked); PyTorch's documentation of CrossEntropyLoss
        mixes in the same uniform share.
    Differs: PyTorch divides by the weights of the labels in the batch, this by the samples, so that a sample counts the
        same beside any others. With the weights of `data inspect` both are equal in the mean.
    """

    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] | None = younger(None)

    def __post_init__(self) -> None:
        require_share("SoftmaxCrossEntropy.label_smoothing", self.label_smoothing)
        if self.class_weights is None:
            return
        if not isinstance(self.class_weights, tuple) or not self.class_weights:
            raise ValueError(f"SoftmaxCrossEntropy.class_weights must be numbers, got {self.class_weights!r}")
        for weight in self.class_weights:
            require_number("SoftmaxCrossEntropy.class_weights", weight, at_least=0, at_most=_MOST)
        if not any(map(np.float32, self.class_weights)):
            raise ValueError("SoftmaxCrossEntropy.class_weights must not all be 0: nothing would be learned")

    def build(self) -> Callable[..., chainer.Variable | None]:
        """A function of logits (samples x classes, float) and targets that returns a scalar Variable.

        A label outside 0 to K - 1 gives a loss of NaN in the fused kernels of a GPU, and is refused by those of a CPU.
        """
        if self.class_weights is None:
            return self._loss
        import chainer

        of_targets = SoftmaxCrossEntropy().build()

        @functools.cache  # on a GPU one array, which a captured graph goes on reading
        def weights_on(xp: Any) -> Any:
            return xp.asarray(self.class_weights, np.float32)

        def weighted(logits: chainer.Variable, targets: np.ndarray, norm_groups: int = 1) -> chainer.Variable | None:
            q = soft_targets(targets, like=logits, label_smoothing=self.label_smoothing)
            return of_targets(logits, q * weights_on(chainer.backend.get_array_module(q)), norm_groups)

        return weighted

    def require_classes(self, num_classes: int) -> None:
        """Refuse weights of more or fewer classes.

        Raises:
            InputRefused: they are not as many.
        """
        if self.class_weights is not None and len(self.class_weights) != num_classes:
            raise InputRefused(
                f"SoftmaxCrossEntropy.class_weights must be one number a class, {num_classes} in all, such as "
                f"`kilobatch data inspect` prints, got a list of {len(self.class_weights)}"
            )

    def _loss(self, logits: chainer.Variable, targets: np.ndarray, norm_groups: int = 1) -> chainer.Variable | None:
        import chainer.functions as F

        from trainers.kernels.fused_loss import fused_cross_entropy

        smoothed = functools.partial(soft_targets, targets, like=logits, label_smoothing=self.label_smoothing)
        fused = fused_cross_entropy(
            logits,
            targets,
            label_smoothing=self.label_smoothing,
            soft_targets=smoothed,
            groups=norm_groups,
        )
        if fused is not None or norm_groups > 1:
            return fused
        if self.label_smoothing == 0 and targets.ndim == 1:
            return F.softmax_cross_entropy(logits, targets)
        q = smoothed()
        return -F.sum(q * F.log_softmax(F.cast(logits, q.dtype))) / len(q)


def head_of(model: chainer.Link) -> Any:
    """The model's last layer: the link `fc`, or what a ChainerCV model names in `pick`; None if it has neither."""
    return getattr(model, "fc", None) or getattr(model, str(getattr(model, "pick", None)), None)


def head_paths(model: chainer.Link, num_classes: int) -> set[str]:
    """The paths of the last layer: of `head_of`, else the matrices and convolutions with as many rows as classes."""
    head = head_of(model)
    own = {id(each) for each in head.params()} if hasattr(head, "params") else set()
    return {
        path
        for path, each in model.namedparams()
        if (id(each) in own if own else each.ndim >= 2 and len(each) == num_classes)
    }


def loss_function(component: Any) -> Callable[..., chainer.Variable]:
    """The function (logits, targets) -> mean over the samples of a loss.

    A class derived from one of this file may be it by its own `__call__`, in place of the `build` that it inherits.
    """
    build = getattr(component, "build", None)
    if build is None or (callable(component) and getattr(build, "__module__", None) == __name__):
        return component.__call__
    return build()


def soft_targets(targets: Any, *, like: Any, label_smoothing: float) -> Any:
    """The share of every class in every target, as a float array of the shape of the logits.

        q_k = (1 - e) t_k + e / K        t: the target, 1 at a label and 0 elsewhere, or a mixture of such rows

    Notation: K classes, e `label_smoothing`. A mixture's weights add up to 1, so smoothing the mixture equals mixing
    the smoothed labels.

    Args:
        targets: int (samples,), labels; or float (samples, classes), rows that add up to 1.
        like: the logits, (samples, classes).
        label_smoothing: in [0, 1).
    Returns:
        in the precision of the logits, but at least float32.
    Raises:
        ValueError: the targets do not belong to such logits.
    """
    import chainer

    xp = chainer.backend.get_array_module(like)
    num_samples, num_classes = like.shape
    dtype = np.promote_types(like.dtype, np.float32)
    targets = xp.asarray(targets)
    if targets.dtype.kind in "iu" and targets.shape == (num_samples,):
        q = xp.full(like.shape, label_smoothing / num_classes, dtype=dtype)
        q[xp.arange(num_samples), targets] += 1 - label_smoothing
        return q
    if targets.dtype.kind == "f" and targets.shape == like.shape:
        return (1 - label_smoothing) * targets.astype(dtype) + label_smoothing / num_classes
    raise ValueError(
        f"targets must be int ({num_samples},) or float {tuple(like.shape)} for these logits, "
        f"got {targets.dtype} {targets.shape}"
    )
