"""All-reduce on a two-dimensional torus."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_count, require_flag
from trainers.communicators.connection import Connection, Misfit, even_slices, ring_traffic
from trainers.communicators.ring import ring_allgather, ring_of, ring_reduce_scatter, ring_sum
from trainers.communicators.wire import Wire


@dataclass(frozen=True, kw_only=True)
class Torus:
    """Reduce-scatter along the rows, all-reduce of a part along the columns, all-gather along the rows; all by rings.

        2 (X - 1) + 2 (Y - 1) messages a worker            2 (P - 1)/P n numbers a worker on the wire

    P = X Y workers, X in a row, n numbers. As few bytes as one ring and about 2 sqrt(P) latencies instead of 2 P; with
    the workers of a node as a row, only n/X numbers a worker leave it.

    Args:
        row: X, workers in a row, a divisor of P; null for the one nearest to sqrt(P) from below.
        sockets: as for `Ring`, in all rings.
    Raises:
        ValueError: `row` is below 1 or `sockets` neither true nor false; once connected, `row` does not divide the
            workers, or a worker cannot reach the next one of its rings.

    Source: Mikami et al. 2018, arXiv 1811.05233 (not checked).
    """

    row: int | None = None
    sockets: bool = False

    def __post_init__(self) -> None:
        require_flag("Torus.sockets", self.sockets)
        if self.row is not None:
            require_count("Torus.row", self.row)

    def misfit(self, workers: int) -> str:
        """Why so many workers cannot use this; empty where they can."""
        return f"{workers} workers do not divide into rows of {self.row}" if workers % (self.row or 1) else ""

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        if misfit := self.misfit(mpi.size):
            raise Misfit(f"Torus.row: {misfit}")
        length = self.row or max(x for x in range(1, math.isqrt(mpi.size) + 1) if mpi.size % x == 0)
        lines = [mpi.Split(mpi.rank // length, mpi.rank), mpi.Split(mpi.rank % length, mpi.rank)]
        row, column = (ring_of(line, whole=mpi, sockets=self.sockets) for line in lines)

        def sum_of(values: np.ndarray, wire: Wire) -> None:
            parts = even_slices(len(values), row.size)
            ring_reduce_scatter(row, values, parts, wire)
            ring_sum(column, values[parts[row.rank]], wire)
            ring_allgather(row, values, parts, wire)

        sent = ring_traffic(row.size) + ring_traffic(column.size) / row.size
        release = (row.close, column.close, *(line.Free for line in lines))
        return Connection(mpi, sum_of, num_roundings=row.size + column.size, release=release, sent=sent)
