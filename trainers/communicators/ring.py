"""Ring all-reduce."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_flag
from trainers.communicators.connection import Connection, even_slices, ring_traffic
from trainers.communicators.mpi_messages import ranks_here, send_and_receive
from trainers.communicators.tcp_ring import SocketRing
from trainers.communicators.wire import FullWire, Wire


@dataclass(frozen=True, kw_only=True)
class Ring:
    """Ring all-reduce: a reduce-scatter, then an all-gather, around a ring of all workers.

        2 (P - 1) messages a worker of n/P numbers         2 (P - 1)/P n numbers a worker on the wire

    P workers, n numbers. As few bytes as possible, yet 2 (P - 1) latencies: for large buffers and few workers. On a
    16-bit wire a partial sum is rounded P - 1 times: with 1,024 workers that is half a percent (in L2) of gradients
    around zero, and up to a tenth of a number that all of them have; HalvingDoubling and Direct lose less than 0.1 %.

    Args:
        sockets: neighbours talk through TCP connections of their own, not by MPI: less work for the cores where MPI
            goes over TCP too; not where it has a faster network. A ring within one host goes by MPI all the same.
    Raises:
        ValueError: `sockets` is neither true nor false, or, once connected, a worker cannot reach the next.

    Source: Patarasu and Yuan 2009, Bandwidth optimal all-reduce algorithms for clusters of workstations
        (not checked); used by Akiba et al. 2017, arXiv 1711.04325.
    """

    sockets: bool = False

    def __post_init__(self) -> None:
        require_flag("Ring.sockets", self.sockets)

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        return _RingConnection(mpi, ring_of(mpi, whole=mpi, sockets=self.sockets))


class _RingConnection(Connection):
    """Scales numbers as they are packed, added and stored: a pass of its own would cost as much as a message."""

    def __init__(self, mpi: Any, ring: MpiRing | SocketRing) -> None:
        sum_of = functools.partial(ring_sum, ring)
        super().__init__(mpi, sum_of, num_roundings=mpi.size - 1, release=(ring.close,), sent=ring_traffic(mpi.size))
        self._ring = ring

    def mean(self, values: np.ndarray, wire: Wire, prescale: float, postscale: float) -> tuple[int, int]:
        if self.mpi.size == 1:
            return super().mean(values, wire, prescale, postscale)
        parts, lost = even_slices(len(values), self.mpi.size), np.zeros(2, np.int64)
        ring_reduce_scatter(self._ring, values, parts, wire, prescale, lost)
        if isinstance(wire, FullWire):  # once, before they are sent: the same bits as afterwards on every worker
            wire.scale(values[parts[self.mpi.rank]], postscale)
            postscale = 1.0
        ring_allgather(self._ring, values, parts, wire, postscale)
        return int(lost[0]), int(lost[1])


class MpiRing:
    """Messages from each worker to the next, all at the same time, by MPI: the numbers themselves on the wire."""

    def __init__(self, mpi: Any) -> None:
        self._mpi, self.rank, self.size = mpi, mpi.rank, mpi.size
        self._within_host = len(ranks_here(mpi)) == mpi.size

    def shift(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Send an array to the next worker and receive one, of a length that is known, from the previous one."""
        rank, size = self.rank, self.size
        send_and_receive(self._mpi, sent, (rank + 1) % size, received, (rank - 1) % size, within_host=self._within_host)

    def close(self) -> None:
        """Nothing to free: the caller owns the communicator."""


def ring_of(part: Any, *, whole: Any, sockets: bool) -> MpiRing | SocketRing:
    """The ring of the workers of `part`, a communicator split from `whole`, all workers of which call this together.

    Within one host MPI copies in memory, which takes half the time of sockets. There are sockets if any of the rings
    leaves its host: all workers of `whole` connect theirs together.

    Bytes on the wire: those of `ranks_here` and, with `sockets`, about 5 from each worker of `whole` to each.

    Raises:
        Unreachable: with `sockets`, a worker of any of these rings cannot reach the next one.
    """
    within_host = len(ranks_here(part)) == part.size
    return SocketRing(part, whole) if sockets and not all(whole.allgather(within_host)) else MpiRing(part)


def ring_sum(ring: MpiRing | SocketRing, values: np.ndarray, wire: Wire) -> None:
    """values <- their sum over the workers of a ring, the same bits on all.

    2 (P - 1)/P n numbers a worker on the wire.
    """
    parts = even_slices(len(values), ring.size)
    ring_reduce_scatter(ring, values, parts, wire)
    ring_allgather(ring, values, parts, wire)


def ring_reduce_scatter(
    ring: MpiRing | SocketRing,
    values: np.ndarray,
    parts: list[slice],
    wire: Wire,
    factor: float = 1.0,
    lost: np.ndarray | None = None,
) -> None:
    """This worker's part of `values` becomes the sum of factor * values over the ring; the other parts are overwritten.

    (P - 1)/P n numbers a worker on the wire.

    Args:
        factor, lost: as of `Wire.pack`, for this worker's numbers; only in a ring of two workers or more.
    """
    rank, size = ring.rank, ring.size
    for step in range(size - 1):
        sent, target = values[parts[(rank - step - 1) % size]], values[parts[(rank - step - 2) % size]]
        received = wire.buffer_to_add(target)
        ring.shift(wire.pack(sent) if step else wire.pack(sent, factor, lost), received)
        wire.add(target, received, factor, lost)


def ring_allgather(
    ring: MpiRing | SocketRing, values: np.ndarray, parts: list[slice], wire: Wire, factor: float = 1.0
) -> None:
    """Each part of `values` becomes that of the worker it belongs to, rounded to the wire, times the factor.

    (P - 1)/P n numbers a worker on the wire.
    """
    rank, size = ring.rank, ring.size
    sent, received = round_to(wire, values[parts[rank]], factor), wire.buffer_to_store(values)
    for step in range(size - 1):
        part = parts[(rank - step - 1) % size]
        ring.shift(sent, received[part])
        wire.store(values[part], received[part], factor)
        sent = received[part]  # forwarded as received


def round_to(wire: Wire, values: np.ndarray, factor: float = 1.0) -> np.ndarray:
    """The values packed for the wire; here they become what the others will store: rounded, times the factor."""
    packed = wire.pack(values)
    wire.store(values, packed, factor)
    return packed
