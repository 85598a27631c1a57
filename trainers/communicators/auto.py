"""The fastest algorithm for each size of bucket, chosen by a short measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_count
from trainers.communicators.connection import Connection
from trainers.communicators.direct import Direct
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical, node_of
from trainers.communicators.mpi_allreduce import MpiAllreduce
from trainers.communicators.ring import MpiRing, Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.tcp_ring import SocketRing, Unreachable
from trainers.communicators.torus import Torus
from trainers.communicators.wire import FullWire, Wire
from trainers.runs.stack_dump import waiting_for_ranks

_REPEATS = (3, 9)  # at least and at most
_ENOUGH_SECONDS = 0.1  # once the repeats have taken this, no more than the least are made
_LONG_SECONDS = 1.0  # a first repeat that takes this is the only one
_MAX_ROUNDINGS = 32  # of a partial sum to 16 bits: a ring of 1,024 workers lost up to 12 % (EXPERIMENTS.md)


class Fastest(Connection):
    """Sums by the candidate with the lowest cost on the slowest worker, chosen for each length up to a factor of two.

    Bytes on the wire: those of the one that was chosen. Before, for each size and wire that is new, up to nine sums of
    each candidate, and those of `cost_of`.

    Args:
        mpi: communicator of its own.
        candidates: by the name that the log has, each on an MPI communicator of its own; at least one competes on 16
            bits; the first one's memory and stream serve all.
    """

    def __init__(self, mpi: Any, candidates: dict[str, Connection]) -> None:
        self._candidates = candidates
        self._first = next(iter(candidates.values()))
        self._chosen: dict[tuple[int, str], Connection] = {}
        competing = (candidate for candidate in candidates.values() if _competes_on_16_bits(candidate))
        num_roundings = max(candidate.num_roundings for candidate in competing)
        super().__init__(mpi, self._sum, num_roundings=num_roundings, gpu=self._first.gpu)

    def set_beside_backward(self, value: bool) -> None:
        for candidate in self._candidates.values():
            candidate.set_beside_backward(value)

    @property
    def wait_mode(self) -> str:
        return ", ".join(dict.fromkeys(connection.wait_mode for connection in self._chosen.values())) or "sleeps"

    def allocate(self, num_values: int, dtype: Any) -> Any:
        return self._first.allocate(num_values, dtype)

    def sent_values(self, num_values: int) -> float | None:
        chosen = [one for (size, _), one in self._chosen.items() if size == num_values.bit_length()]
        return chosen[0].sent_values(num_values) if chosen else None

    def sends_nothing(self) -> bool:
        return self._first.sends_nothing()  # true only where all workers share memory

    def _sum(self, values: Any, wire: Wire) -> None:
        self._fastest(values, wire, 1.0).sum(values, wire)

    def mean(self, values: Any, wire: Wire, prescale: float, postscale: float) -> tuple[int, int]:
        return self._fastest(values, wire, prescale).mean(values, wire, prescale, postscale)

    def _fastest(self, values: Any, wire: Wire, factor: float) -> Connection:
        """The fastest connection for this length and wire, measured the first time, with values times `factor`."""
        kind = (len(values).bit_length(), wire.name)
        if kind not in self._chosen:
            self._chosen[kind] = self._measured(values, wire, factor)
        return self._chosen[kind]

    def _measured(self, values: Any, wire: Wire, factor: float) -> Connection:
        full = isinstance(wire, FullWire)
        candidates = {name: one for name, one in self._candidates.items() if full or _competes_on_16_bits(one)}
        size = f"for buckets like {values.nbytes / 1e6:.3g} MB"
        if len(candidates) == 1:
            ((name, alone),) = candidates.items()
            self.choices.append(f"{name} {size}, alone on {wire.name}")
            return alone
        before = values.copy()
        costs = {name: self._cost(candidate, values, before, wire, factor) for name, candidate in candidates.items()}
        values[...] = before
        best = min(costs, key=costs.__getitem__)
        self.choices.append(f"{best} {size} ({1000 * costs[best]:.3g} ms)")
        return candidates[best]

    def _cost(self, connection: Connection, values: Any, before: Any, wire: Wire, factor: float) -> float:
        def run() -> None:
            with connection.on_stream_after(connection.record_event()):  # waits for a GPU: its work is timed
                values[...] = before
                connection.mean(values, wire, factor, 1.0)

        return cost_of(self.mpi, run, int(threading.current_thread() is not threading.main_thread()))

    def close(self) -> None:
        for candidate in self._candidates.values():
            candidate.close()
        super().close()


def _competes_on_16_bits(connection: Connection) -> bool:
    """Whether it sums a 16-bit wire, and rounds no partial sum too often."""
    return connection.sums_16_bits and connection.num_roundings <= _MAX_ROUNDINGS


def cost_of(mpi: Any, run: Callable[[], None], of_processor: int) -> float:
    """Seconds that all workers take to do something together: the slowest one's, median over repeats, the same on all.

    Bytes on the wire, beside those of `run`: a barrier, and about 30 from each worker to each, up to nine times.

    Args:
        of_processor: weight of this thread's processor time, which is added.
    """
    costs: list[float] = []
    min_repeats, max_repeats = _REPEATS
    with waiting_for_ranks():
        while not costs or (
            costs[0] < _LONG_SECONDS and len(costs) < (max_repeats if sum(costs) < _ENOUGH_SECONDS else min_repeats)
        ):
            mpi.Barrier()
            began, processor = time.perf_counter(), time.thread_time()
            run()
            own = time.perf_counter() - began + of_processor * (time.thread_time() - processor)
            costs.append(max(mpi.allgather(own)))
    return statistics.median(costs)


_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Shared memory on one machine; between machines the fastest of a short measurement with buckets of that size.

    For each size of bucket, up to a factor of two, every algorithm sums the first one nine times (three if that takes a
    tenth of a second, once if it takes one); the one with the lowest median cost on the slowest worker sums all others.
    The cost is time; where a thread sums beside the backward pass, plus its processor time, which that pass goes
    without. On a 16-bit wire algorithms that round a partial sum more than 32 times do not compete. The order of a sum,
    and with it the last bits, may differ from one start to the next: name an algorithm where two runs must agree bit
    for bit.

    Rings go by sockets of their own or by MPI, whichever costs less for a message of a megabyte around all workers.

    On GPUs it is Nccl where every worker has a GPU of its own and NCCL is installed. Else the above sums copies in host
    memory.

    Bytes on the wire: those of what was chosen; before, up to nine sums by each, and 18 messages of a megabyte.

    Args:
        ranks_per_node: consecutive ranks that count as one node; null for those that share memory.
    Raises:
        ValueError: `ranks_per_node` is below 1.

    Source: measured when it is connected; the log has the choices.
    """

    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None:
            require_count("Auto.ranks_per_node", self.ranks_per_node)

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        node = node_of(mpi, self.ranks_per_node)
        sizes = mpi.allgather(node.size)
        node.Free()
        if sizes[0] == mpi.size:
            connection = SharedWindow(ranks_per_node=self.ranks_per_node).connect(mpi)
            connection.choices = ["SharedWindow: all workers share memory"]
            return connection
        sockets, why = _sockets_are_cheaper(mpi)
        components: list[Any] = []
        if len(set(sizes)) == 1 and sizes[0] > 1:
            components.append(SharedWindow(ranks_per_node=self.ranks_per_node, sockets=sockets))
        components += [Ring(sockets=sockets), HalvingDoubling(), Direct(), MpiAllreduce(), Torus(sockets=sockets)]
        # Not first: the first one's memory serves all of them.
        components.append(Hierarchical(ranks_per_node=self.ranks_per_node, sockets=sockets))
        candidates = {type(component).__name__: _connected(component, mpi.Dup()) for component in components}
        connection = Fastest(mpi, candidates)
        connection.choices = [why]
        return connection


def _sockets_are_cheaper(mpi: Any) -> tuple[bool, str]:
    """Whether a ring by sockets costs the workers less than one by MPI, and both costs in words; the same on all."""
    try:
        by_sockets = SocketRing(mpi)
    except Unreachable as error:
        return False, f"rings by MPI: {error}"
    sent, received = np.zeros((2, _MESSAGE_BYTES), np.uint8)
    rings = {"sockets": by_sockets, "MPI": MpiRing(mpi)}
    with contextlib.closing(by_sockets):
        costs = {name: cost_of(mpi, functools.partial(ring.shift, sent, received), 1) for name, ring in rings.items()}
    best = min(costs, key=costs.__getitem__)
    words = " and ".join(f"{1000 * cost:.3g} ms by {name}" for name, cost in costs.items())
    return best == "sockets", f"rings by {best}: a megabyte to the next worker costs {words}"


def _connected(component: Any, mpi: Any) -> Connection:
    """The component's connection; without sockets on all workers where one of its socket rings cannot be connected."""
    try:
        return component.connect(mpi)
    except Unreachable:
        return dataclasses.replace(component, sockets=False).connect(mpi)
