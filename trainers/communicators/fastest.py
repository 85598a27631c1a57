"""Chooses among connections by a short measurement, for each size of what is summed."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire, Wire

_REPEATS = (3, 9)  # at least and at most
_ENOUGH_SECONDS = 0.1  # once the repeats have taken this, no more than the least are made
_LONG_SECONDS = 1.0  # a first repeat that takes this is the only one
_MOST_ROUNDINGS = 32  # of a partial sum to 16 bits: a ring of 1,024 workers lost up to 12 % (EXPERIMENTS.md)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A connection to choose from.

    Args:
        name: in the log.
        connection: on an MPI communicator of its own.
        sums_16_bits: whether it can sum on 16-bit wires.
    """

    name: str
    connection: Connection
    sums_16_bits: bool = True

    @property
    def competes_on_16_bits(self) -> bool:
        """Whether it sums a 16-bit wire, and rounds no partial sum too often."""
        return self.sums_16_bits and self.connection.num_roundings <= _MOST_ROUNDINGS


class Fastest(Connection):
    """Sums by the candidate with the lowest cost on the slowest worker, chosen for each length up to a factor of two.

    Bytes on the wire: those of the one that was chosen. Before, for each size and wire that is new, up to nine sums of
    each candidate, and those of `cost_of`.

    Args:
        mpi: communicator of its own.
        candidates: at least one of which competes on 16 bits; the first one's memory and stream serve all.
        warms_up: whether each sums once untimed before: on GPUs, where the first sum registers memory with the network,
            and where a candidate itself chooses by measurement.
    """

    def __init__(self, mpi: Any, candidates: list[Candidate], *, warms_up: bool = False) -> None:
        self._candidates, self._warms_up = candidates, warms_up
        self._chosen: dict[tuple[int, str], Connection] = {}
        roundings = max(one.connection.num_roundings for one in candidates if one.competes_on_16_bits)
        super().__init__(mpi, self._sum, num_roundings=roundings)

    @property
    def beside_backward(self) -> bool:
        """Whether a thread waits here while another one computes."""
        return self._beside_backward

    @beside_backward.setter
    def beside_backward(self, value: bool) -> None:
        self._beside_backward = value
        for candidate in self._candidates:
            candidate.connection.beside_backward = value

    @property
    def waiting(self) -> str:
        return ", ".join(dict.fromkeys(connection.waiting for connection in self._chosen.values())) or "sleeps"

    def allocate(self, num_values: int, dtype: Any) -> Any:
        return self._first.allocate(num_values, dtype)

    def sent_values(self, num_values: int) -> float | None:
        found = [chosen for (size, _), chosen in self._chosen.items() if size == num_values.bit_length()]
        return found[0].sent_values(num_values) if found else None

    def sends_nothing(self) -> bool:
        return self._first.sends_nothing()  # true only where all workers share memory

    def mark(self) -> Any:
        return self._first.mark()

    def after(self, mark: Any) -> contextlib.AbstractContextManager[None]:
        return self._first.after(mark)

    @property
    def _first(self) -> Connection:
        return self._candidates[0].connection

    def _sum(self, values: Any, wire: Wire) -> None:
        self._fastest(values, wire, 1.0).sum(values, wire)

    def mean(self, values: Any, wire: Wire, before: float, after: float) -> tuple[int, int]:
        return self._fastest(values, wire, before).mean(values, wire, before, after)

    def _fastest(self, values: Any, wire: Wire, factor: float) -> Connection:
        """The fastest connection for this length and wire, measured the first time, with values times `factor`."""
        kind = (len(values).bit_length(), wire.name)
        if kind not in self._chosen:
            self._chosen[kind] = self._measured(values, wire, factor)
        return self._chosen[kind]

    def _measured(self, values: Any, wire: Wire, factor: float) -> Connection:
        full = isinstance(wire, FullWire)
        candidates = [candidate for candidate in self._candidates if full or candidate.competes_on_16_bits]
        said = f"for buckets like {values.nbytes / 1e6:.3g} MB"
        if len(candidates) == 1:
            self.choices.append(f"{candidates[0].name} {said}, alone on {wire.name}")
            return candidates[0].connection
        before = values.copy()
        costs = [self._cost(candidate.connection, values, before, wire, factor) for candidate in candidates]
        values[...] = before
        best = int(np.argmin(costs))
        self.choices.append(f"{candidates[best].name} {said} ({1000 * costs[best]:.3g} ms)")
        return candidates[best].connection

    def _cost(self, connection: Connection, values: Any, before: Any, wire: Wire, factor: float) -> float:
        def run() -> None:
            with connection.after(connection.mark()):  # which waits for a GPU: its work is timed as well
                values[...] = before
                connection.mean(values, wire, factor, 1.0)

        if self._warms_up:
            run()
        return cost_of(self.mpi, run, int(threading.current_thread() is not threading.main_thread()))

    def close(self) -> None:
        for candidate in self._candidates:
            candidate.connection.close()
        super().close()


def cost_of(mpi: Any, run: Callable[[], None], of_processor: int) -> float:
    """Seconds that all workers take to do something together: the slowest one's, median over repeats, the same on all.

    Bytes on the wire, beside those of `run`: a barrier, and about 30 from each worker to each, up to nine times.

    Args:
        mpi: communicator of all workers, which call this together.
        run: what they do.
        of_processor: weight of this thread's processor time, which is added.
    """
    costs: list[float] = []
    least, most = _REPEATS
    while not costs or (costs[0] < _LONG_SECONDS and len(costs) < (most if sum(costs) < _ENOUGH_SECONDS else least)):
        mpi.Barrier()
        began, processor = time.perf_counter(), time.thread_time()
        run()
        own = time.perf_counter() - began + of_processor * (time.thread_time() - processor)
        costs.append(max(mpi.allgather(own)))
    return statistics.median(costs)
