"""Scaling rules: how the full learning rate follows the global batch size.

full rate = reference rate * s(B), B the global batch size.
"""

from __future__ import annotations

import math

from lr_schedules.units import require_number

__all__ = ["linear_scaling", "no_scaling", "power_scaling", "sqrt_scaling"]


def linear_scaling(global_batch_size: int, *, per: int) -> float:
    """The learning rate grows with the batch: one large update stands for many small ones.

        s(B) = B / per

    Args:
        global_batch_size: B, samples averaged into one update.
        per: the batch size at which the reference rate was found.
    Returns:
        The factor on the reference rate.
    Raises:
        ValueError: a size is not a finite number greater than 0.

    >>> 0.1 * linear_scaling(8192, per=256)
    3.2

    Source: Goyal et al. 2017, arXiv 1706.02677 (eta = 0.1 kn / 256).
    """
    _require_sizes("linear_scaling", global_batch_size, per)
    return global_batch_size / per


def sqrt_scaling(global_batch_size: int, *, per: int) -> float:
    """The learning rate grows with the square root of the batch, as the gradient's noise shrinks.

        s(B) = sqrt(B / per)

    Args:
        global_batch_size: B, samples averaged into one update.
        per: the batch size at which the reference rate was found.
    Returns:
        The factor on the reference rate.
    Raises:
        ValueError: a size is not a finite number greater than 0.

    >>> sqrt_scaling(4096, per=256)
    4.0

    Source: Hoffer et al. 2017, arXiv 1705.08741 (reference batch 128).
    """
    _require_sizes("sqrt_scaling", global_batch_size, per)
    return math.sqrt(global_batch_size / per)


def power_scaling(global_batch_size: int, *, per: int, exponent: float) -> float:
    """The learning rate grows with a power of the batch that you have measured: rate = c B^p.

        s(B) = (B / per) ** exponent

    Args:
        global_batch_size: B, samples averaged into one update.
        per: the batch size at which the reference rate was found.
        exponent: p, at least 0; 1 is the linear rule, 1/2 the root, 0 no scaling.
    Returns:
        The factor on the reference rate.
    Raises:
        ValueError: a size is not a finite number greater than 0; `exponent` is none of at least 0.

    >>> power_scaling(4096, per=256, exponent=0.75)
    8.0

    Source: the formula itself, between Goyal et al. 2017, arXiv 1706.02677 (p = 1), and Hoffer et al. 2017, arXiv
        1705.08741 (p = 1/2). Shallue et al. 2018, arXiv 1811.03600: the best rates follow neither everywhere.
    """
    _require_sizes("power_scaling", global_batch_size, per)
    require_number("power_scaling: exponent", exponent, at_least=0)
    return float((global_batch_size / per) ** exponent)


def no_scaling(global_batch_size: int, *, per: int) -> float:
    """The learning rate does not follow the batch.

        s(B) = 1

    Args:
        global_batch_size: B, samples averaged into one update; without effect.
        per: the batch size at which the reference rate was found; without effect.
    Returns:
        1.0.
    Raises:
        ValueError: a size is not a finite number greater than 0.

    >>> no_scaling(8192, per=256)
    1.0

    Source: Goyal et al. 2017, arXiv 1706.02677, measured it: 41.67 % top-1 error at batch 8192 and rate 0.1.
    """
    _require_sizes("no_scaling", global_batch_size, per)
    return 1.0


def _require_sizes(rule: str, global_batch_size: int, per: int) -> None:
    require_number(f"{rule}: global_batch_size", global_batch_size, above=0)
    require_number(f"{rule}: per", per, above=0)
