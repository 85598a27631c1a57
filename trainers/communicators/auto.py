"""The fastest algorithm for each size of bucket, by a short measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.arguments import require_count
from trainers.communicators.connection import Connection
from trainers.communicators.direct import Direct
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical, node_of
from trainers.communicators.library import MpiAllreduce
from trainers.communicators.ring import MpiRing, Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.sockets import SocketRing, Unreachable
from trainers.communicators.torus import Torus
from trainers.communicators.wire import FullWire, Wire

_REPEATS = 3
_LONG_SECONDS = 1.0  # of which one is enough
_MESSAGE_BYTES = 1 << 20
_MOST_ROUNDINGS = 32  # of a partial sum to 16 bits: a ring of 1,024 workers lost up to 12 % (EXPERIMENTS.md)


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Shared memory on one machine; between several, whatever is fastest for buckets of that size.

    Each algorithm sums the first bucket of a size three times, or once where that takes a second, and the one that
    costs its slowest worker least at its best sums all of them, up to a factor of two in size. What it costs is the
    time, and where a thread sums beside the backward pass also its processor time, which that pass goes without. On a
    16-bit wire those that round a partial sum more than 32 times do not compete. The order of a sum, and with it the
    last bits, may differ from one start to the next: name an algorithm where two runs must agree bit for bit.

    Rings go by sockets of their own or by MPI, whichever costs less for a message of a megabyte around all workers.

    On GPUs it is Nccl where every worker has one of its own, else the same of copies in host memory.

    Args:
        ranks_per_node: consecutive ranks that count as one node; null for those that share memory.
    Raises:
        ValueError: `ranks_per_node` is below 1.

    Source: measured on the spot; what was chosen stands in the log.
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
        sockets, said = _sockets_pay(mpi)
        per_node = {"ranks_per_node": self.ranks_per_node, "sockets": sockets}
        others: list[Any] = [SharedWindow(**per_node)] if len(set(sizes)) == 1 and sizes[0] > 1 else []
        others += [Ring(sockets=sockets), HalvingDoubling(), Direct(), MpiAllreduce(), Torus(sockets=sockets)]
        connection = _Fastest(mpi, [*others, Hierarchical(**per_node)])
        connection.choices = [said]
        return connection


def _sockets_pay(mpi: Any) -> tuple[bool, str]:
    """Whether a ring by sockets costs the workers less than one by MPI, and both costs in words; the same on all."""
    try:
        by_sockets = SocketRing(mpi)
    except Unreachable as error:
        return False, f"rings by MPI: {error}"
    sent, received = np.zeros((2, _MESSAGE_BYTES), np.uint8)
    rings = {"sockets": by_sockets, "MPI": MpiRing(mpi)}
    with contextlib.closing(by_sockets):
        costs = {name: _cost(mpi, functools.partial(ring.pass_on, sent, received), 1) for name, ring in rings.items()}
    best = min(costs, key=costs.__getitem__)
    words = " and ".join(f"{1000 * cost:.3g} ms by {name}" for name, cost in costs.items())
    return best == "sockets", f"rings by {best}: a megabyte to the next worker costs {words}"


def _connected(component: Any, mpi: Any) -> tuple[Any, Connection]:
    """A component and its connection; without sockets where a ring of it does not close, on all workers alike."""
    try:
        return component, component.connect(mpi)
    except Unreachable:
        component = dataclasses.replace(component, sockets=False)
        return component, component.connect(mpi)


def _cost(mpi: Any, run: Callable[[], None], of_processor: int) -> float:
    """Seconds of what all workers do together, its best repeat on the slowest of them, the same on all.

    Args:
        of_processor: how often the processor time of this thread is added.
    """
    costs: list[float] = []
    while len(costs) < _REPEATS and (not costs or costs[0] < _LONG_SECONDS):
        mpi.Barrier()
        began, processor = time.perf_counter(), time.thread_time()
        run()
        own = time.perf_counter() - began + of_processor * (time.thread_time() - processor)
        costs.append(max(mpi.allgather(own)))
    return min(costs)


class _Fastest(Connection):
    """Chooses among connections, by the length of what is summed."""

    def __init__(self, mpi: Any, components: list[Any]) -> None:
        self._connections = [_connected(component, mpi.Dup()) for component in components]
        self._chosen: dict[tuple[int, str], Connection] = {}
        roundings = max(connection.num_roundings for _, connection in self._connections)
        super().__init__(mpi, self._sum, num_roundings=roundings)

    @property
    def beside_backward(self) -> bool:
        """Whether a thread waits here while another one computes."""
        return self._beside_backward

    @beside_backward.setter
    def beside_backward(self, value: bool) -> None:
        self._beside_backward = value
        for _, connection in self._connections:
            connection.beside_backward = value

    @property
    def waiting(self) -> str:
        return ", ".join(dict.fromkeys(connection.waiting for connection in self._chosen.values())) or "sleeps"

    def allocate(self, num_values: int, dtype: Any) -> np.ndarray:
        return self._connections[0][1].allocate(num_values, dtype)  # shared memory, which serves all of them

    def sent_values(self, num_values: int) -> float | None:
        found = [chosen for (size, _), chosen in self._chosen.items() if size == num_values.bit_length()]
        return found[0].sent_values(num_values) if found else None

    def _sum(self, values: np.ndarray, wire: Wire) -> None:
        self._fastest(values, wire, 1.0).sum(values, wire)

    def mean(self, values: np.ndarray, wire: Wire, before: float, after: float) -> tuple[int, int]:
        return self._fastest(values, wire, before).mean(values, wire, before, after)

    def _fastest(self, values: np.ndarray, wire: Wire, before: float) -> Connection:
        """What was fastest for as many values, to be multiplied by `before` on their way."""
        kind = (len(values).bit_length(), wire.name)
        if kind not in self._chosen:
            self._chosen[kind] = self._measured(values, wire, before)
        return self._chosen[kind]

    def _measured(self, values: np.ndarray, wire: Wire, before: float) -> Connection:
        given, costs = values.copy(), []
        beside = int(threading.current_thread() is not threading.main_thread())
        for component, connection in self._connections:
            coarse = isinstance(component, MpiAllreduce) or connection.num_roundings > _MOST_ROUNDINGS
            if coarse and not isinstance(wire, FullWire):
                continue

            def run(connection: Connection = connection) -> None:
                values[...] = given
                connection.mean(values, wire, before, 1.0)

            costs.append((_cost(self.mpi, run, beside), component, connection))
        values[...] = given
        best, component, connection = min(costs, key=lambda entry: entry[0])
        megabytes = values.nbytes / 1e6
        self.choices.append(f"{type(component).__name__} for buckets like {megabytes:.3g} MB ({1000 * best:.3g} ms)")
        return connection

    def close(self) -> None:
        for _, connection in self._connections:
            connection.close()
        super().close()
