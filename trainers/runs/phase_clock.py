"""The phases of an update: the seconds of each on this worker, and on all workers."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from recipes.planning.phase_times import PHASES, busy_seconds, split_exchange

Item = TypeVar("Item")


@dataclass(frozen=True, kw_only=True)
class Event:
    """A stretch of time in which something was done."""

    name: str
    began: float  # of `time.perf_counter`
    ended: float
    bucket: int | None = None  # number of a bucket that the exchange summed; None for what the worker itself did


class PhaseClock:
    """Seconds of a worker by phase. A phase within another one is taken out of it, so that no second counts twice.

    Attributes:
        events: what was done, while it is a list; None without a profile.
        ranges: `cupy.cuda.nvtx` while phases are marked for Nsight Systems, else None.
    """

    def __init__(self) -> None:
        self.events: list[Event] | None = None
        self.ranges: Any = None
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = 0.0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Around what belongs to a phase; all calls come from one thread."""
        began = self._turn()
        self._open.append(phase)
        try:
            with self.range(phase):
                yield
        finally:
            ended = self._turn()
            self._open.pop()
            if self.events is not None:
                self.events.append(Event(name=phase, began=began, ended=ended))

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """Around what is to be a range on a profiler's timeline, on any thread."""
        ranges = self.ranges
        if ranges is None:
            yield
            return
        ranges.RangePush(name)
        try:
            yield
        finally:
            ranges.RangePop()

    def each(self, phase: str, items: Iterable[Item]) -> Iterator[Item]:
        """The items, whose making belongs to a phase."""
        iterator, end = iter(items), object()
        while True:
            with self(phase):
                item = next(iterator, end)
            if item is end:
                return
            yield item

    def around(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that does the same, as a phase."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self(phase):
                return function(*args, **kwargs)

        return timed

    def bucket(self, number: int, began: float, ended: float) -> None:
        """Note that the exchange has summed a bucket, on whatever thread."""
        if self.events is not None:
            self.events.append(Event(name="exchange", began=began, ended=ended, bucket=number))

    def take(self) -> dict[str, float]:
        """The seconds since the last call, and forget them."""
        taken, self._seconds = self._seconds, {}
        return taken

    def _turn(self) -> float:
        now = time.perf_counter()
        if self._open:
            phase = self._open[-1]
            self._seconds[phase] = self._seconds.get(phase, 0.0) + now - self._since
        self._since = now
        return now


def phase(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a method of whatever has a `clock` a phase."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(self: Any, *args: Any, **kwargs: Any) -> Any:
            with self.clock(name):
                return method(self, *args, **kwargs)

        return timed

    return decorate


@dataclass(frozen=True, kw_only=True)
class ExchangeStats:
    """The figures of one finished exchange."""

    lost: np.ndarray  # (buckets, 2), this worker's numbers that overflowed on the wire, and that were flushed to zero
    seconds: float  # spent on all buckets, on whatever thread
    waited_seconds: float  # in `ExchangeHandle.finish`, not hidden behind computation


@dataclass(frozen=True, kw_only=True)
class UpdateSeconds:
    """Where the time of one update went, on all workers."""

    seconds: np.ndarray  # (workers, phases), the latter as in `PHASES`
    exchange_seconds: float  # of all buckets, hidden behind backward or not; mean over the workers
    lost: np.ndarray | None  # as in `ExchangeStats`, over all workers; None where nothing is rounded

    def as_line(self) -> dict[str, float | int | list[int]]:
        """Plain data for a line: means over the workers, and the worker that was busy longest."""
        names = [f"{name}_seconds" for name in PHASES]
        line = dict(zip(names, split_exchange(self.seconds).mean(axis=0).tolist(), strict=True))
        line["exchange_seconds"] = self.exchange_seconds
        busy = busy_seconds(self.seconds)
        slowest = int(busy.argmax())
        line |= {"slowest_rank": slowest, "slowest_seconds": float(busy[slowest])}
        line = {name: value if isinstance(value, int) else round(value, 6) for name, value in line.items()}
        lost = [] if self.lost is None else self.lost.T.tolist()
        for name, by_bucket in zip(("wire_overflowed", "wire_flushed"), lost, strict=False):
            line[name] = sum(by_bucket)
            if line[name]:
                line[f"{name}_by_bucket"] = by_bucket
        return line


class RankSeconds:
    """Brings the seconds of all workers to rank 0.

    Bytes on the wire: 56 a worker and update, all to rank 0; where 16 bits are sent, 16 more a bucket.

    Args:
        clock: of this worker.
        mpi: communicator of all workers.
        counts_lost: whether numbers are rounded to 16 bits.
    """

    def __init__(self, clock: PhaseClock, mpi: Any, *, counts_lost: bool) -> None:
        self._clock, self._mpi, self._counts_lost = clock, mpi, counts_lost

    def restart(self) -> None:
        """What was done since the last update does not count."""
        self._clock.take()

    def gather(self, exchanged: ExchangeStats | None) -> UpdateSeconds | None:
        """Of the update that has just ended; all workers call this together. None on all ranks but 0."""
        taken = self._clock.take()
        lost = exchanged.lost.ravel() if exchanged and self._counts_lost else ()
        seconds = [*(taken.get(name, 0.0) for name in PHASES), exchanged.seconds if exchanged else 0.0]
        own = np.array([*seconds, *lost], dtype=np.float64)
        rows = np.empty((self._mpi.size, own.size)) if self._mpi.rank == 0 else None
        with self._clock("waiting"):  # counted in the next update
            self._mpi.Gather(own, rows, root=0)
        if rows is None:
            return None
        return UpdateSeconds(
            seconds=rows[:, : len(PHASES)],
            exchange_seconds=float(rows[:, len(PHASES)].mean()),
            lost=rows[:, len(seconds) :].sum(axis=0).astype(np.int64).reshape(-1, 2) if self._counts_lost else None,
        )
