"""Normalisation with ReLU behind it, and a sum between. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
import chainer.functions as F
import chainer.links as L


def normalized_relu(
    norm: L.BatchNormalization, x: chainer.Variable, plus: chainer.Variable | None = None
) -> chainer.Variable:
    """max(0, norm(x) + plus), in one pass where the kernels have one.

    Args:
        norm: as it was made, or as `trainers.norm_groups` has changed it.
        plus: None for nothing.
    """
    if hasattr(norm, "norm_groups"):
        return norm(x, plus, True)
    h = norm(x)
    return F.relu(h if plus is None else h + plus)
