"""Sums in memory that the workers of a node share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_count, require_flag
from trainers.communicators.connection import Connection, Misfit, even_slices, ring_traffic
from trainers.communicators.hierarchical import node_of
from trainers.communicators.mpi_messages import barrier, num_cores
from trainers.communicators.ring import ring_of, ring_sum
from trainers.communicators.wire import Wire

_PIECE = 32768  # numbers; each worker's piece stays in a core's cache until it is overwritten by the sum


@dataclass(frozen=True, kw_only=True)
class SharedWindow:
    """Shared memory in a node: each worker sums its slice of all gradients there; rings sum between nodes.

        nothing on the wire in a node                      2 (N - 1)/(N k) n numbers a worker between nodes

    N nodes of k workers, n numbers. Every number is read once and written once, by the worker that sums it, while its
    piece is in the cache: as much memory traffic as one copy. Between nodes, workers of the same local rank form a ring
    for their slice, all k rings at the same time; only there the wire's 16 bits are used.

    Args:
        ranks_per_node: consecutive ranks that count as one node; null for those that share memory.
        sockets: as for `Ring`, in the rings between nodes.
    Raises:
        ValueError: `ranks_per_node` is below 1 or `sockets` neither true nor false; once connected, the nodes have not
            equally many workers, or a worker cannot reach the next one of its ring.

    Source: MPI standard, MPI_Win_allocate_shared.
    """

    ranks_per_node: int | None = None
    sockets: bool = False

    def __post_init__(self) -> None:
        require_flag("SharedWindow.sockets", self.sockets)
        if self.ranks_per_node is not None:
            require_count("SharedWindow.ranks_per_node", self.ranks_per_node)

    def misfit(self, workers: int) -> str:
        """Why so many workers cannot use this, from their number alone; empty where they can."""
        node = min(self.ranks_per_node or 1, workers)
        return f"{workers} workers do not divide into nodes of {node}; take Hierarchical" if workers % node else ""

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        return _SharedWindowConnection(mpi, node_of(mpi, self.ranks_per_node), sockets=self.sockets)


class _SharedWindowConnection(Connection):
    """One window of the node; `sum` takes parts of the array that `allocate` gave."""

    def __init__(self, mpi: Any, node: Any, *, sockets: bool) -> None:
        if len(set(mpi.allgather(node.size))) > 1:
            raise Misfit("SharedWindow: nodes with different numbers of workers; take Hierarchical")
        self._node = node
        across = mpi.Split(node.rank, mpi.rank)
        self._across = ring_of(across, whole=mpi, sockets=sockets)
        self._window: Any = None
        self._crowded = node.size > num_cores(node)
        sent = ring_traffic(across.size) / node.size
        release = (node.Free, self._across.close, across.Free)
        super().__init__(mpi, self._sum, num_roundings=across.size, release=release, sent=sent)

    def allocate(self, num_values: int, dtype: Any) -> np.ndarray:
        from mpi4py import MPI

        item = np.dtype(dtype).itemsize
        self._window = MPI.Win.Allocate_shared(num_values * item, item, comm=self._node)
        queried = (self._window.Shared_query(rank)[0] for rank in range(self._node.size))
        self._of_rank = [np.frombuffer(memory, dtype=dtype, count=num_values) for memory in queried]
        own = self._of_rank[self._node.rank]
        own[...] = 0
        self._node.Barrier()
        return own

    def mean(self, values: np.ndarray, wire: Wire, prescale: float, postscale: float) -> tuple[int, int]:
        lost = wire.scale(values, prescale)
        self._sum(values, wire, postscale)
        return lost

    def _sum(self, values: np.ndarray, wire: Wire, scale: float = 1.0) -> None:
        """values <- scale times their sum."""
        node, rank = self._node, self._node.rank
        start = (values.ctypes.data - self._of_rank[rank].ctypes.data) // values.itemsize
        values_of_rank = [memory[start : start + len(values)] for memory in self._of_rank]
        part = even_slices(len(values), node.size)[rank]  # only this worker touches it, in every rank's memory
        first, *others = (memory[part] for memory in values_of_rank)
        barrier(node, lambda: self._sleeps)  # all have written
        alone = self._across.size == 1
        for piece in (slice(begin, begin + _PIECE) for begin in range(0, len(first), _PIECE)):
            total = first[piece]  # always in the order of the ranks
            for other in others:
                total += other[piece]
            if alone:
                total *= total.dtype.type(scale)
                for other in others:
                    np.copyto(other[piece], total)
        if not alone:
            ring_sum(self._across, first, wire)
            first *= first.dtype.type(scale)
            for other in others:
                np.copyto(other, first)
        barrier(node, lambda: self._sleeps)  # all workers have written their sums

    @property
    def wait_mode(self) -> str:
        return "sleeps" if self._sleeps else "spins"

    @property
    def _sleeps(self) -> bool:
        return self._crowded or self._beside_backward

    def close(self) -> None:
        self._of_rank = []
        if self._window is not None:
            self._window.Free()
        super().close()
