"""The fastest algorithm for each size of bucket, by a short measurement."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.arguments import require_count
from trainers.communicators.connection import Connection
from trainers.communicators.direct import Direct
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical, node_of
from trainers.communicators.library import MpiAllreduce
from trainers.communicators.ring import Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.torus import Torus
from trainers.communicators.wire import FullWire, Wire

_REPEATS = 3
_MOST_ROUNDINGS = 32  # of a partial sum to 16 bits: a ring of 1,024 workers lost up to 12 % (EXPERIMENTS.md)


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Shared memory on one machine; between several, whatever is fastest for buckets of that size.

    Each algorithm sums the first bucket of a size three times, and the one whose slowest worker is fastest at its best
    sums all of them, up to a factor of two in size. On a 16-bit wire those that round a partial sum more than 32 times
    do not compete. The order of a sum, and with it the last bits, may differ from one start to the next: name an
    algorithm where two runs must agree bit for bit.

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
        shared = SharedWindow(ranks_per_node=self.ranks_per_node)
        if sizes[0] == mpi.size:
            connection = shared.connect(mpi)
            connection.choices = ["SharedWindow: all workers share memory"]
            return connection
        others: list[Any] = [Ring(), HalvingDoubling(), Direct(), MpiAllreduce(), Torus()]
        others.append(Hierarchical(ranks_per_node=self.ranks_per_node))
        regular = len(set(sizes)) == 1
        return _Fastest(mpi, [*([shared] if regular and sizes[0] > 1 else []), *others])


class _Fastest(Connection):
    """Chooses among connections, by the length of what is summed."""

    def __init__(self, mpi: Any, components: list[Any]) -> None:
        self._connections = [(component, component.connect(mpi.Dup())) for component in components]
        self._chosen: dict[int, Connection] = {}
        roundings = max(connection.num_roundings for _, connection in self._connections)
        super().__init__(mpi, self._sum, num_roundings=roundings)

    def allocate(self, num_values: int, dtype: Any) -> np.ndarray:
        return self._connections[0][1].allocate(num_values, dtype)  # shared memory, which serves all of them

    def sent_values(self, num_values: int) -> float | None:
        chosen = self._chosen.get(num_values.bit_length())
        return chosen and chosen.sent_values(num_values)

    def _sum(self, values: np.ndarray, wire: Wire) -> None:
        size = len(values).bit_length()
        if size not in self._chosen:
            self._chosen[size] = self._fastest(values, wire)
        self._chosen[size].sum(values, wire)

    def _fastest(self, values: np.ndarray, wire: Wire) -> Connection:
        before, times = values.copy(), []
        for component, connection in self._connections:
            coarse = isinstance(component, MpiAllreduce) or connection.num_roundings > _MOST_ROUNDINGS
            if coarse and not isinstance(wire, FullWire):
                continue
            seconds = []
            for _ in range(_REPEATS):
                self.mpi.Barrier()
                began = time.perf_counter()
                connection.sum(values, wire)
                seconds.append(time.perf_counter() - began)
                values[...] = before
            slowest = np.max(self.mpi.allgather(seconds), axis=0)  # the same on all workers
            times.append((float(slowest.min()), component, connection))
        best, component, connection = min(times, key=lambda entry: entry[0])
        megabytes = values.nbytes / 1e6
        self.choices.append(f"{type(component).__name__} for buckets like {megabytes:.3g} MB ({1000 * best:.3g} ms)")
        return connection

    def close(self) -> None:
        for _, connection in self._connections:
            connection.close()
        super().close()
