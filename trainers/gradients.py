"""What is done to gradients between exchange and the optimizer's step: norm, clipping, search for infinities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import chainer
import numpy as np

from trainers.kernels import seams

_PART = 1 << 20  # values squared at a time: their squares stay in the cache, and a GPU has few launches


def squared_norm(values: Any) -> float:
    """Sum of the squares of all gradients, added up in float64.

    Args:
        values: all of them, in one array without further axes.
    """
    parts = (values[start : start + _PART] for start in range(0, len(values), _PART))
    return math.fsum(map(float, read_together([np.square(part).sum(dtype=np.float64) for part in parts])))


def clip(values: Any, clip_norm: float) -> float:
    """Shorten the gradient to a global norm of at most `clip_norm`, in place.

        g <- g * clip_norm / max(|g|, clip_norm)            |g| over all parameters together

    Args:
        values: means over the global batch, of all parameters in one array without further axes.
        clip_norm: above 0.
    Returns:
        the norm before.

    Source: Pascanu et al. 2013, arXiv 1211.5063 (not checked). Differs: PyTorch's `clip_grad_norm_` divides by
        |g| + 1e-6.
    """
    norm = math.sqrt(squared_norm(values))
    if norm > clip_norm:
        values *= values.dtype.type(clip_norm / norm)
    return norm


def first_not_finite(arrays: Mapping[str, Any]) -> str | None:
    """Name of the first of these arrays that holds an infinity or a NaN; None if none does.

    Args:
        arrays: by name; those that are None are passed over.
    """
    arrays = {name: values for name, values in arrays.items() if values is not None}
    ours = seams.serving(*arrays.values()) if arrays else None
    if hasattr(ours, "finite") and all(values.flags.c_contiguous for values in arrays.values()):
        flags = ours.finite(list(arrays.values()))
    else:
        flags = read_together([np.isfinite(values).all() for values in arrays.values()])
    return next((name for name, flag in zip(arrays, flags, strict=True) if not flag), None)


def read_together(scalars: list[Any]) -> list[Any]:
    """What these arrays without axes hold: those of a GPU in one transfer, since each one waits for the GPU."""
    if not scalars or not isinstance(scalars[0], chainer.backends.cuda.ndarray):
        return scalars
    return chainer.backends.cuda.cupy.stack(scalars).get().tolist()
