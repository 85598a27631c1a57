"""Divisors of batches and norm groups, which a refusal suggests instead."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["largest_divisor"]


def largest_divisor(limit: int, sizes: Sequence[int]) -> int:
    """The largest number up to `limit` (and a million, which bounds the search) that divides all sizes.

    >>> largest_divisor(40, [64, 96])
    32
    """
    return next(number for number in range(min(limit, 10**6), 0, -1) if not any(size % number for size in sizes))
