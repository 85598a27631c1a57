"""A rank's heartbeat: a file in the run's folder that a separate thread renews and the other ranks read."""

from __future__ import annotations

import functools
import json
import logging
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trainers.runs.mpi_ranks import parent_is_gone
from trainers.runs.run_folder import RANKS
from trainers.runs.stack_dump import dump_stack

log = logging.getLogger("kilobatch")
BEATS = 20  # heartbeats within the time that a rank may be without progress
PATIENCE = 5  # factor on that time before the first update is done and after the last one
_SLOWEST_SECONDS = 6.0  # between two heartbeats


@dataclass(frozen=True, kw_only=True)
class HeartbeatRecord:
    """What a rank writes at a heartbeat."""

    rank: int
    host: str
    process: int
    beat: int  # number of the heartbeat
    update: int | None  # None before the first
    still_seconds: float  # since its last progress
    allowed_seconds: float  # how long it may be without progress, in its present phase; 0 for any time
    waits: bool  # for other ranks; only where it is overdue
    stack: tuple[str, ...]  # of its main thread, where it is overdue
    finished: bool  # it has done its part of the run

    @property
    def overdue(self) -> bool:
        """Whether it has made no progress for too long."""
        return 0 < self.allowed_seconds <= self.still_seconds

    @property
    def name(self) -> str:
        """Rank and host, for a message."""
        return f"rank {self.rank} on {self.host}"

    @property
    def when(self) -> str:
        """How far the rank is, for a message."""
        return "before the first update" if self.update is None else f"in update {self.update}"


def heartbeat_file(folder: Path, rank: int) -> Path:
    """The file with a rank's newest heartbeat, for the run in a folder."""
    return folder / RANKS / f"{rank:06d}.json"


def read_heartbeat(folder: Path, rank: int) -> HeartbeatRecord | None:
    """A rank's newest heartbeat; None where there is none."""
    try:
        fields = json.loads(heartbeat_file(folder, rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return HeartbeatRecord(**{**fields, "stack": tuple(fields["stack"])})


def clear_heartbeats(folder: Path) -> None:
    """Remove the heartbeats of a run that has ended."""
    shutil.rmtree(folder / RANKS, ignore_errors=True)


class Heartbeat:
    """Writes this rank's heartbeats.

    Progress is any call of `moved`: every image loaded, every loss, every update, every file of a checkpoint. Before
    the first update is done and after the last one, a rank may be without progress five times as long.

    Args:
        seconds: that a rank may be without progress; 0 for any time.
        is_orphan: whether the process that started this run has gone.
    Attributes:
        current_update: () -> number of the update this rank is in; None before there is one.
        orphaned: whether the process that started this rank has gone.
        on_beat: called with each heartbeat, on the thread that writes it.
        warnings: of the watchdog, in words.
    """

    def __init__(
        self, folder: Path, *, mpi: Any, seconds: float, is_orphan: Callable[[], bool] = parent_is_gone
    ) -> None:
        self.folder, self.mpi, self.seconds = folder, mpi, seconds
        self.current_update: Callable[[], int] | None = None
        self.orphaned = False
        self.on_beat: Callable[[HeartbeatRecord], None] = lambda record: None
        self.warnings: list[str] = []
        self._is_orphan = is_orphan
        self._interval = min(seconds / BEATS or _SLOWEST_SECONDS, _SLOWEST_SECONDS)
        self._beat, self._moved, self._patience = 0, time.monotonic(), PATIENCE
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Write the first heartbeat; the thread writes all others."""
        self._write(self._record())
        self._thread.start()

    def moved(self) -> None:
        """This rank has made progress."""
        self._moved = time.monotonic()

    def marking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, every call of which counts as progress."""

        @functools.wraps(call)
        def marked(*arguments: Any, **named: Any) -> Any:
            self.moved()
            return call(*arguments, **named)

        return marked

    def updated(self) -> None:
        """An update is done."""
        self._patience = 1
        self.moved()

    def ending(self) -> None:
        """The last update is done: what follows may take longer than an update."""
        self._patience = PATIENCE
        self.moved()

    def finish(self) -> None:
        """Write the last heartbeat: this rank has done its part."""
        began = self._thread.is_alive()  # asked before it may end
        self._ended.set()
        if began:
            self._thread.join()
            self._write(self._record(finished=True))

    def _serve(self) -> None:
        while not self._ended.wait(self._interval):
            if not self.orphaned and self._is_orphan():
                self.orphaned = True  # logged to stdout: stderr led to that process, and mpiexec fails on writing there
                log.warning("the process that started this run has gone: stopping, with a checkpoint")
            record = self._record()
            self._write(record)
            self.on_beat(record)

    def _record(self, *, finished: bool = False) -> HeartbeatRecord:
        still = time.monotonic() - self._moved
        allowed = self.seconds * self._patience
        dump = dump_stack() if 0 < allowed <= still else None
        self._beat += 1
        return HeartbeatRecord(
            rank=self.mpi.rank,
            host=socket.gethostname(),
            process=os.getpid(),
            beat=self._beat,
            update=self.current_update and self.current_update(),
            still_seconds=round(still, 3),
            allowed_seconds=allowed,
            waits=dump is not None and dump.waits,
            stack=dump.stack if dump is not None else (),
            finished=finished,
        )

    def _write(self, record: HeartbeatRecord) -> None:
        with suppress(OSError):  # a full disk, or a folder that only other hosts see
            path = heartbeat_file(self.folder, record.rank)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(asdict(record)), encoding="utf-8")
            partial.rename(path)
