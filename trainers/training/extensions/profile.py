"""`profile.json`: a timeline of all ranks, for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

from chainer.training import Extension, Trainer

from trainers.runs.phase_clock import Event, PhaseClock
from trainers.runs.run_folder import write_whole
from trainers.training.extensions.gpu_profile import GpuProfile

log = logging.getLogger("kilobatch")

_TAG = 7401
_ROUNDS = 16
_SKIPPED = 10  # first updates of a session, which no profile shows
_MAIN, _EXCHANGE = 0, 1  # threads


class Profile(Extension):
    """Records the events of all ranks in some updates, then writes them.

    The file is in Chrome's trace event format: a process is a rank, its threads are the one that trains and the one
    that exchanges gradients. Times are on rank 0's clock, from the first event on.

    Bytes on the wire: about 50 an event from each rank to rank 0, once; before, those of `clock_offset`.

    Args:
        path: of the file, which rank 0 writes.
        clock: records this rank's events.
        mpi: communicator of all ranks, all of which have this extension.
        updates: the first one to record, and the one after the last.
        gpu: of this rank, where it has one; the log of rank 0 then has its kernels by class.
    """

    priority = 50  # after all other extensions
    trigger = (1, "iteration")

    def __init__(
        self, path: Path, clock: PhaseClock, mpi: Any, *, updates: tuple[int, int], gpu: GpuProfile | None = None
    ) -> None:
        self._path, self._clock, self._mpi, self._gpu = path, clock, mpi, gpu
        self._first, self._end = updates
        self._behind, self._written = 0.0, False

    def initialize(self, trainer: Trainer) -> None:
        """Compare the clocks, and begin if the next update is the first to record."""
        self._behind = clock_offset(self._mpi)
        self._begin_at(trainer.updater.iteration)

    def __call__(self, trainer: Trainer) -> None:
        updater = trainer.updater
        if self._clock.events is not None and (updater.iteration >= self._end or trainer.stop_trigger(trainer)):
            self._write()
        self._begin_at(updater.iteration)

    def finalize(self) -> None:
        """Warn if the run has ended before there was anything to write; Chainer calls this when the loop ends."""
        if not self._written and self._mpi.rank == 0:
            log.warning("warning: the run ended before updates %d to %d: no profile", self._first, self._end - 1)

    def _begin_at(self, update: int) -> None:
        if update == self._first < self._end:
            self._clock.events = []
            if self._gpu is not None:
                self._gpu.begin()

    def _write(self) -> None:
        self._written = True
        own, self._clock.events = self._clock.events, None
        if self._gpu is not None and (classes := self._gpu.end()) and self._mpi.rank == 0:
            words = ", ".join(f"{kind} {time:.2f} ms ({count})" for kind, (time, count) in classes.items())
            log.info("kernels of the profiled updates by class (launches): %s", words)
        own.sort(key=lambda event: (event.began, -event.ended))  # an event comes before those nested in it
        events = [_trace_event(event, rank=self._mpi.rank, behind=self._behind) for event in own]
        gathered = self._mpi.gather((socket.gethostname(), events), root=0)
        if gathered is None:
            return
        started = min(event["ts"] for _, events in gathered for event in events)
        for _, events in gathered:
            for event in events:
                event["ts"] = round(event["ts"] - started, 3)
        names = [name for rank, (host, _) in enumerate(gathered) for name in _names(rank, host)]
        timeline = {"traceEvents": names + [event for _, events in gathered for event in events]}
        timeline["displayTimeUnit"] = "ms"
        write_whole(self._path, json.dumps(timeline, separators=(",", ":")))


def profiled_updates(number: int, *, begin: int, end: int) -> tuple[int, int]:
    """The first update to record and the one after the last: `number` updates of a session, which begins at `begin`.

    The session's first updates are left out: up to ten, as far as enough remain.

    >>> profiled_updates(5, begin=0, end=100), profiled_updates(5, begin=30, end=38)
    ((10, 15), (33, 38))
    >>> profiled_updates(5, begin=0, end=3)
    (0, 3)
    """
    first = max(begin, min(begin + _SKIPPED, end - number))
    return first, min(first + number, end)


def clock_offset(mpi: Any) -> float:
    """Seconds to add to this rank's `time.perf_counter` to get rank 0's; all ranks call this together.

        offset = rank 0's time - the middle between sending and answer, in the fastest of 16 round trips

    Bytes on the wire: 16 messages of 4 from each rank to rank 0, one rank after the other, and answers of 21.
    """
    if mpi.rank > 0:
        round_trips = []  # (seconds, offset)
        for _ in range(_ROUNDS):
            sent = time.perf_counter()
            there = mpi.sendrecv(None, dest=0, sendtag=_TAG, source=0, recvtag=_TAG)
            received = time.perf_counter()
            round_trips.append((received - sent, there - (sent + received) / 2))
        return min(round_trips)[1]
    for rank in range(1, mpi.size):
        for _ in range(_ROUNDS):
            mpi.recv(source=rank, tag=_TAG)
            mpi.send(time.perf_counter(), dest=rank, tag=_TAG)
    return 0.0


def _trace_event(event: Event, *, rank: int, behind: float) -> dict[str, Any]:
    """An event in Chrome's trace event format, in microseconds."""
    of_bucket = event.bucket is not None
    return {
        "name": f"bucket {event.bucket}" if of_bucket else event.name,
        "cat": "exchange" if of_bucket else "main",
        "ph": "X",
        "ts": 1e6 * (event.began + behind),
        "dur": round(1e6 * (event.ended - event.began), 3),
        "pid": rank,
        "tid": _EXCHANGE if of_bucket else _MAIN,
    }


def _names(rank: int, host: str) -> list[dict[str, Any]]:
    names = [("process_name", _MAIN, f"rank {rank} on {host}"), ("thread_name", _MAIN, "training")]
    names.append(("thread_name", _EXCHANGE, "exchange"))
    return [
        {"name": what, "ph": "M", "pid": rank, "tid": thread, "args": {"name": name}} for what, thread, name in names
    ]
