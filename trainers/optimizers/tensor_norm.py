"""Norms of one tensor for optimizers with a trust ratio; `xp` is the array module of the parameter's device."""

from __future__ import annotations

from typing import Any


def norm(xp: Any, array: Any) -> Any:
    """Euclidean norm as a float64 array of shape (), on the device of `array`.

    Squares are taken in float64 too: in float32 those of numbers below 1e-23 are 0.
    """
    values = array.astype(xp.float64)
    return xp.asarray(xp.sqrt((values * values).sum()))


def one_where_a_norm_is_0(xp: Any, ratio: Any, *norms: Any) -> Any:
    """`ratio`, or 1 where one of the norms is 0; a norm of NaN leaves `ratio` as it is."""
    for each in norms:
        ratio = xp.where(each == 0, 1.0, ratio)
    return ratio
