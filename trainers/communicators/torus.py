"""All-reduce on a two-dimensional torus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.arguments import require_count
from trainers.communicators.connection import Connection, ring_share, shares
from trainers.communicators.ring import ring_allgather, ring_reduce_scatter, ring_sum
from trainers.communicators.wire import Wire


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Reduce-scatter along the rows, all-reduce of a part along the columns, all-gather along the rows; all by rings.

        2 (X - 1) + 2 (Y - 1) messages a worker            2 (P - 1)/P n numbers a worker on the wire

    P = X Y workers, X in a row, n numbers. As few bytes as one ring and about 2 sqrt(P) latencies instead of 2 P; with
    the workers of a node as a row, only n/X numbers a worker leave it.

    Args:
        row: X, workers in a row, a divisor of P; null for the one nearest to sqrt(P) from below.
    Raises:
        ValueError: `row` is below 1, or, once connected, does not divide the workers.

    Source: Mikami et al. 2018, arXiv 1811.05233 (not checked).
    """

    row: int | None = None

    def __post_init__(self) -> None:
        if self.row is not None:
            require_count("Torus.row", self.row)

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        length = self.row or max(x for x in range(1, math.isqrt(mpi.size) + 1) if mpi.size % x == 0)
        if mpi.size % length:
            raise ValueError(f"Torus.row: {mpi.size} workers do not divide into rows of {length}")
        row = mpi.Split(mpi.rank // length, mpi.rank)
        column = mpi.Split(mpi.rank % length, mpi.rank)

        def sum_of(values: np.ndarray, wire: Wire) -> None:
            parts = shares(len(values), row.size)
            ring_reduce_scatter(row, values, parts, wire)
            ring_sum(column, values[parts[row.rank]], wire)
            ring_allgather(row, values, parts, wire)

        sent = ring_share(row.size) + ring_share(column.size) / row.size
        return Connection(mpi, sum_of, num_roundings=row.size + column.size, parts=(row, column), sent=sent)
