"""What is done to gradients between exchange and the optimizer's step: norm, clipping, search for infinities."""

from __future__ import annotations

import math

import chainer
import numpy as np


def squared_norm(model: chainer.Link) -> float:
    """Sum of the squares of all gradients, added up in float64; a parameter without a gradient counts 0."""
    return math.fsum(
        float(np.square(parameter.grad).sum(dtype=np.float64))
        for _, parameter in sorted(model.namedparams())
        if parameter.grad is not None
    )


def clip(model: chainer.Link, clip_norm: float) -> float:
    """Shorten the gradient to a global norm of at most `clip_norm`.

        g <- g * clip_norm / max(|g|, clip_norm)            |g| over all parameters together

    Args:
        model: its gradients are means over the global batch.
        clip_norm: above 0.
    Returns:
        the norm before.

    Source: Pascanu et al. 2013, arXiv 1211.5063 (not checked). Differs: PyTorch's `clip_grad_norm_` divides by
        |g| + 1e-6.
    """
    norm = math.sqrt(squared_norm(model))
    if norm > clip_norm:
        for parameter in model.params():
            parameter.grad *= parameter.dtype.type(clip_norm / norm)
    return norm


def first_not_finite(model: chainer.Link, attribute: str) -> str | None:
    """Path of the first parameter, by path, whose `array` or `grad` holds an infinity or a NaN; None if none does."""
    for path, parameter in sorted(model.namedparams()):
        values = getattr(parameter, attribute)
        if values is not None and not np.isfinite(values).all():
            return path
    return None
