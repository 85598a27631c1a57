"""Softmax cross entropy on a GPU: a loss a sample, their mean, and the gradient. Sums have a fixed order."""

from __future__ import annotations

from typing import Any

from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import THREADS

_LANES = 64  # threads that share a sample, at most; assumed


def cross_entropy(x: Any, targets: Any, *, label_smoothing: float) -> tuple[Any, Any]:
    """The mean over samples, an array without axes, and what `cross_entropy_gradient` needs.

    Both are float32 where x has 16 bits. A label outside the classes makes the mean NaN.

    Args:
        x: logits, (samples, classes).
        targets: int32 or int64 (samples,), labels; or float32 (samples, classes), mixtures of them before smoothing.
        label_smoothing: in [0, 1).
    """
    xp, kind = launcher.device.xp, launcher.vector_type(x)
    losses, kept, mean = xp.empty(len(x), "d"), xp.empty((len(x), 3), kind), xp.empty((), kind)
    _launch("cross_entropy", x, targets, label_smoothing, losses, kept)
    launcher.device.launch("mean_loss", x.dtype.char, 1, (1,), (losses, mean, len(x)))
    return mean, kept


def cross_entropy_gradient(x: Any, targets: Any, kept: Any, gy: Any, *, label_smoothing: float) -> Any:
    """The gradient of `cross_entropy` with respect to its x.

    Args:
        kept: the second result of `cross_entropy`.
        gy: gradient of the mean, without axes.
    """
    xp = launcher.device.xp
    gx = xp.empty(x.shape, x.dtype)
    _launch("cross_entropy_gradient", x, targets, label_smoothing, kept, xp.ascontiguousarray(gy, kept.dtype), gx)
    return gx


def _launch(name: str, x: Any, targets: Any, label_smoothing: float, *arguments: Any) -> None:
    xp, (samples, classes) = launcher.device.xp, x.shape
    lanes = min(_LANES, 1 << (classes - 1).bit_length())
    given = [xp.ascontiguousarray(array) for array in (x, targets)]
    bytes_of_a_label = 0 if targets.dtype.kind == "f" else targets.dtype.itemsize
    numbers = (float(label_smoothing), bytes_of_a_label, samples, classes, lanes)
    blocks = -(-samples * lanes // THREADS)
    launcher.device.launch(name, x.dtype.char, 1, (blocks,), (*given, *numbers, *arguments))
