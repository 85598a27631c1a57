"""What is done to gradients between backward and the optimizer's step: sum over workers, norm, clipping."""

from __future__ import annotations

import math
from typing import Any

import chainer
import numpy as np


def average_over_workers(model: chainer.Link, mpi: Any, global_batch_size: int) -> None:
    """Sum the gradients over all workers, those of a worker without samples being 0, and divide by the batch.

    Args:
        model: its gradients are sums over this worker's samples.
        mpi: communicator of all workers; all call this together.
        global_batch_size: samples.
    """
    from mpi4py import MPI

    for _, parameter in sorted(model.namedparams()):
        if parameter.grad is None:
            parameter.grad = np.zeros_like(parameter.array)
        parameter.grad = np.ascontiguousarray(parameter.grad)
        mpi.Allreduce(MPI.IN_PLACE, parameter.grad)
        parameter.grad *= parameter.dtype.type(1.0 / global_batch_size)


def divide_out(model: chainer.Link, factor: float) -> None:
    """Divide all gradients by what the loss was multiplied by: a power of two, so that nothing is rounded."""
    for parameter in model.params():
        if parameter.grad is not None:
            parameter.grad *= parameter.dtype.type(1.0 / factor)


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
