"""Normalisation, an optional sum, and ReLU in one node. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L


def normalized_relu(
    norm: L.BatchNormalization,
    x: chainer.Variable,
    plus: chainer.Variable | None = None,
    *,
    after: L.Convolution2D | None = None,
) -> chainer.Variable:
    """max(0, norm(after(x)) + plus), in one pass where the kernels have one.

    Args:
        norm: Chainer's, or one that `trainers.models.batch_norm` has changed.
        plus: added before the ReLU; None for nothing.
        after: convolution to normalise the output of; None to normalise x itself.
    """
    if hasattr(norm, "norm_groups"):
        return norm(x, plus, True, after)
    h = norm(x if after is None else after(x))
    return F.relu(h if plus is None else h + plus)


def normalized(norm: L.BatchNormalization, x: chainer.Variable, *, after: L.Convolution2D) -> chainer.Variable:
    """norm(after(x)), in one pass where the kernels have one; see `normalized_relu`."""
    return norm(x, None, False, after) if hasattr(norm, "norm_groups") else norm(after(x))
