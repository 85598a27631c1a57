"""What every communicator gives once it is connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainers.communicators.wire import Wire

Sum = Callable[[np.ndarray, Wire], None]


class Connection:
    """Sums of arrays over all workers, in place, with the same bits on every one.

    Args:
        mpi: communicator of its own: nobody else sends on it.
        sum_of: (values, wire): one-dimensional `values` become their sums.
        num_roundings: how often a partial sum is rounded to the wire at most before it is whole.
        parts: communicators made of `mpi`, which are the connection's as well.
    """

    def __init__(self, mpi: Any, sum_of: Sum, *, num_roundings: int, parts: Sequence[Any] = ()) -> None:
        self.mpi = mpi
        self._parts = parts
        self.sum = sum_of
        self.num_roundings = num_roundings

    def mean(self, values: np.ndarray, wire: Wire, scale: float) -> None:
        """values <- scale times their sum."""
        self.sum(values, wire)
        values *= values.dtype.type(scale)

    def allocate(self, num_values: int, dtype: Any) -> np.ndarray:
        """Memory, all zero, whose parts `sum` is called with."""
        return np.zeros(num_values, dtype)

    def close(self) -> None:
        """Give the memory back, and the communicators; all workers call this together."""
        for communicator in (*self._parts, self.mpi):
            communicator.Free()


def shares(total: int, parts: int) -> list[slice]:
    """`total` values in contiguous parts, the first ones one more.

    >>> shares(5, 2)
    [slice(0, 3, None), slice(3, 5, None)]
    """
    each, more = divmod(total, parts)
    ends = [part * each + min(part, more) for part in range(parts + 1)]
    return [slice(start, stop) for start, stop in zip(ends, ends[1:], strict=False)]
