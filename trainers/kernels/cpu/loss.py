"""Softmax cross entropy by NumPy: a mean for each norm group, with the bits that the group has alone."""

from __future__ import annotations

import numpy as np


@np.errstate(over="ignore")  # a loss that is not finite ends the run with a message of its own
def cross_entropy(
    x: np.ndarray, targets: np.ndarray, *, label_smoothing: float, groups: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The mean over the samples of each group, (groups,), and the softmax, which `cross_entropy_gradient` needs.

    One group's mean has no axes.

    Args:
        x: logits, (samples, classes), float32 or float64.
        targets: int32 or int64 (samples,), labels; or float32 (samples, classes), mixtures of them before smoothing.
        label_smoothing: in [0, 1).
        groups: in which the samples stand one after the other, all of the same size.
    Raises:
        ValueError: a label is no class.
    """
    (samples, classes), even = x.shape, label_smoothing / x.shape[1]
    if targets.ndim == 1 and not 0 <= targets.min() <= targets.max() < classes:
        found = f"{targets.min()} to {targets.max()}"
        raise ValueError(f"labels of {classes} classes are from 0 to {classes - 1}, got {found}")
    softmax, means = np.empty(x.shape, x.dtype), np.empty(groups, x.dtype)
    for group, rows in enumerate(_rows(samples, groups)):
        shifted, own = x[rows] - x[rows].max(axis=1, keepdims=True), targets[rows]
        exponentials = np.exp(shifted, out=softmax[rows])
        total = exponentials.sum(axis=1, keepdims=True)
        exponentials /= total
        losses, share = np.log(total[:, 0]), 1 - label_smoothing
        if own.ndim == 1:
            losses -= share * shifted[np.arange(len(own)), own]
        else:
            own = own.astype(x.dtype, copy=False)
            losses *= share * own.sum(axis=1) + label_smoothing
            losses -= share * (own * shifted).sum(axis=1)
        if label_smoothing:
            losses -= even * shifted.sum(axis=1)
        means[group] = losses.sum() / x.dtype.type(len(losses))
    return means if groups > 1 else means.reshape(()), softmax


def cross_entropy_gradient(
    x: np.ndarray, targets: np.ndarray, softmax: np.ndarray, gy: np.ndarray, *, label_smoothing: float, groups: int = 1
) -> np.ndarray:
    """The gradient of `cross_entropy` with respect to its x.

    Args:
        softmax: the second result of `cross_entropy`.
        gy: gradient of the means.
    """
    samples, classes = x.shape
    share, even = x.dtype.type(1 - label_smoothing), x.dtype.type(label_smoothing / classes)
    if targets.ndim == 1:
        gx = softmax - even if label_smoothing else softmax.copy()
        gx[np.arange(samples), targets] -= share
    else:
        targets = targets.astype(x.dtype, copy=False)
        gx = softmax * (share * targets.sum(axis=1, keepdims=True) + x.dtype.type(label_smoothing))
        gx -= share * targets + even
    of_groups = gx.reshape(groups, -1, classes)
    of_groups *= (gy / x.dtype.type(samples // groups)).astype(x.dtype, copy=False).reshape(-1, 1, 1)
    return gx


def _rows(samples: int, groups: int) -> list[slice]:
    span = samples // groups
    return [slice(start, start + span) for start in range(0, samples, span)]
