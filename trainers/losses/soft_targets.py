"""The targets of a loss: labels or mixtures of them, smoothed."""

from __future__ import annotations

from typing import Any

import numpy as np


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
