"""Whether all ranks start up: until each has given signs of life, they cannot watch one another.

A rank's sign of life: a file that a separate thread renews, from which the other ranks learn what became of it.

Where this process is: the Python stack of its main thread, and whether it waits for other ranks there.
"""

from __future__ import annotations

import ast
import json
import linecache
import logging
import os
import shutil
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from trainers.runs.errors import end_all, say
from trainers.runs.mpi_ranks import Ranks, parent_is_gone
from trainers.runs.run_folder import METRICS, newest_checkpoint_name
from trainers.runs.watchdog import BEATS, Sign, Watchdog, fate_of, is_stopped, read_sign, sign_file, watchers

EXCHANGE_THREAD = "exchange"  # the name of the thread that sends gradients while backward runs
_FRAMES = 8  # innermost ones that are reported
_COMMUNICATORS = "/trainers/communicators/"  # a thread with a frame in there waits for others


@dataclass(frozen=True, kw_only=True)
class Whereabouts:
    """Where a process is.

    Args:
        waits: whether it waits for other ranks, in a call of MPI or in a communicator, and so is not at fault.
        stack: of its main thread, the innermost frame last.
    """

    waits: bool
    stack: tuple[str, ...]


def whereabouts() -> Whereabouts:
    """Where the main thread is. If it waits for the exchange thread, `waits` is that of the exchange thread."""
    frames = sys._current_frames()
    main = frames[threading.main_thread().ident]
    asked = main
    if main.f_code.co_filename == threading.__file__:
        named = (thread.ident for thread in threading.enumerate() if thread.name == EXCHANGE_THREAD)
        asked = next((frames[ident] for ident in named if ident in frames), main)  # a thread yet to start has no frame
    return Whereabouts(waits=_waits(asked), stack=tuple(map(_described, _outwards(main)[:_FRAMES][::-1])))


def _outwards(frame: FrameType | None) -> list[FrameType]:
    found = []
    while frame is not None:
        found.append(frame)
        frame = frame.f_back
    return found


def _described(frame: FrameType) -> str:
    code = frame.f_code
    line = linecache.getline(code.co_filename, frame.f_lineno).strip()
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_name}: {line}"


def _waits(frame: FrameType) -> bool:
    inside = any(_COMMUNICATORS in outer.f_code.co_filename for outer in _outwards(frame))
    return inside or _called(frame) in _mpi_calls()


@cache
def _mpi_calls() -> frozenset[str]:
    from mpi4py import MPI

    return frozenset(name for kind in (MPI.Comm, MPI.Intracomm, MPI.Win, MPI.Request) for name in vars(kind))


def _called(frame: FrameType) -> str | None:
    """The method that a frame is calling, from the call's position in its source; None if it is not known.

    Functions written in C, as MPI's are, have no Python frame.
    """
    first, last, begin, end = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    if first is None or last is None or begin is None or end is None:
        return None
    lines = [linecache.getline(frame.f_code.co_filename, number).encode() for number in range(first, last + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:end]  # columns count bytes
    lines[0] = lines[0][begin:]
    try:
        call = ast.parse(textwrap.dedent(b"".join(lines).decode()).strip(), mode="eval").body
    except SyntaxError:
        return None
    return call.func.attr if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) else None


log = logging.getLogger("kilobatch")
_CAUSES = {signal.SIGKILL: " (is the memory full?)", signal.SIGBUS: " (is /dev/shm full?)"}
_SLOWEST_SECONDS = 6.0  # between two signs
PATIENCE = 5  # factor on the time allowed before the first update is done and after the last one


class Pulse:
    """Tells the other ranks that this one is alive, and ends the run if one of them hangs or has died.

    A rank without progress for `seconds` looks at the others' signs. Ranks that gave none in three quarters of that
    time are stopped or dead; if all give signs and none makes progress, those that do not wait for others are at fault.
    They are named, with host, update and Python stack, and all ranks end with exit code 3. Before the first update is
    done and after the last one, five times as long without progress is allowed.

    Progress is any call of `moved`: every image loaded, every loss, every update, every file of a checkpoint. Up to
    four ranks watch, so each file is read by at most four.

    Args:
        folder: the run's, shared by all hosts; else nothing is watched, and a warning says so.
        mpi: communicator of all workers.
        seconds: without progress that end the run; 0 gives signs, but never ends a run.
        is_orphan: whether the process that wants this run has gone.
    Attributes:
        at: () -> number of the update this rank is in; None before there is one.
        orphaned: whether the process that started this rank has gone.
        warnings: of `start`, in words.
    """

    def __init__(
        self, folder: Path, *, mpi: Any, seconds: float, is_orphan: Callable[[], bool] = parent_is_gone
    ) -> None:
        self.at: Callable[[], int] | None = None
        self.orphaned = False
        self.warnings: list[str] = []
        self._folder, self._mpi, self._rank, self._seconds = folder, mpi, mpi.rank, seconds
        self._is_orphan = is_orphan
        self._interval = min(seconds / BEATS or _SLOWEST_SECONDS, _SLOWEST_SECONDS)
        self._beat, self._moved, self._patience = 0, time.monotonic(), PATIENCE
        self._dog: Watchdog | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="pulse", daemon=True)

    def start(self) -> None:
        """Give the first sign, and check that those of all ranks can be read; all ranks call this together.

        Bytes on the wire: a barrier, and about 15 from each rank to each; some more where a sign cannot be read.
        """
        self._write(self._sign())
        self._mpi.Barrier()
        ranks = range(self._mpi.size)
        watches = self._seconds > 0 and self._rank in watchers(self._mpi.size)
        unseen = [rank for rank in ranks if read_sign(self._folder, rank) is None] if watches else []
        unseen = sorted({rank for ranks in self._mpi.allgather(unseen) for rank in ranks})
        if watches and not unseen:
            self._dog = Watchdog(self._folder, rank=self._rank, num_ranks=self._mpi.size, seconds=self._seconds)
        self._thread.start()
        if unseen:
            self.warnings.append(
                f"no watchdog: {self._folder} is not shared by all hosts (rank {unseen[0]} is not seen there by all); "
                "a rank that hangs would be waited for without end"
            )

    def moved(self) -> None:
        """This rank has made progress."""
        self._moved = time.monotonic()

    def marking(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, every call of which counts as progress."""

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
        """Give the last sign: this rank has done its part."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
            self._write(self._sign(finished=True))

    def _serve(self) -> None:
        while not self._ended.wait(self._interval):
            if not self.orphaned and self._is_orphan():
                self.orphaned = True  # logged to stdout: stderr led to that process, and mpiexec fails on writing there
                log.warning("the process that started this run has gone: stopping, with a checkpoint")
            sign = self._sign()
            self._write(sign)
            if self._dog is not None and (found := self._dog.look(sign)) is not None:
                name = newest_checkpoint_name(self._folder)
                say(f"kilobatch: {found}\nLast good checkpoint: {name or 'none was written yet'}")
                end_all()

    def _sign(self, *, finished: bool = False) -> Sign:
        still = time.monotonic() - self._moved
        allowed = self._seconds * self._patience
        where = whereabouts() if 0 < allowed <= still else None
        self._beat += 1
        return Sign(
            rank=self._rank,
            host=socket.gethostname(),
            process=os.getpid(),
            beat=self._beat,
            update=self.at and self.at(),
            still_seconds=round(still, 3),
            allowed_seconds=allowed,
            waits=where is not None and where.waits,
            stack=where.stack if where is not None else (),
            finished=finished,
        )

    def _write(self, sign: Sign) -> None:
        with suppress(OSError):  # a full disk, or a folder that only other hosts see
            path = sign_file(self._folder, self._rank)
            partial = path.with_suffix(".partial")
            partial.write_text(json.dumps(asdict(sign)), encoding="utf-8")
            partial.rename(path)


def forget_signs(folder: Path, *, anew: bool = True) -> None:
    """Remove the signs of a run that has ended; with `anew` make an empty folder for those of one that begins."""
    place = sign_file(folder, 0).parent
    shutil.rmtree(place, ignore_errors=True)
    if anew:
        place.mkdir(parents=True)


def first_to_leave(code: int, order: list[tuple[int, int]], signs: list[Sign | None], last: dict[str, Any]) -> str:
    """Which rank left a run that did not end as it should, in words.

    Args:
        code: mpiexec's exit status; it can be 0, or that of another rank, which mpiexec killed.
        order: in which the ranks ended, (rank, process).
        signs: the last sign of life of each rank.
        last: the last line of the metrics.
    """
    said = f"mpiexec ended with {code}"
    with suppress(ValueError):
        said += f", as for {signal.Signals(code).name}{_CAUSES.get(code, '')}"
    left = [entry for entry in order if not ((sign := signs[entry[0]]) and sign.finished)]
    if not left:
        return f"a rank left before the run ended, without an error of its own; {said}"
    rank, process = left[0]
    reached = f"after {last['update'] + (last['key'] == 'train_loss')} updates" if "update" in last else "at the start"
    return (
        f"rank {rank} on {socket.gethostname()} (process {process}) left {reached}, before the run ended and without "
        f"an error of its own: it was killed, crashed or exited; {said}"
    )


_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 60.0  # to import everything and to join MPI, on a slow disk and busy cores


class Beginning:
    """Kills all ranks if one does not start up in time, for example because it was stopped before it joined in MPI.

    Args:
        folder: of the run, without signs of a previous run.
        ranks: that were just started.
        seconds: to start up.
    Attributes:
        told: which ranks did not start up, in words, if all were killed for it; else None.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, seconds: float) -> None:
        self.told: str | None = None
        self._folder, self._ranks, self._seconds = folder, ranks, seconds
        self._metrics_before = self._metrics()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="beginning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The ranks have ended."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        waited = 0.0
        while missing := self._missing():
            if self._over.wait(_LOOK_SECONDS):
                return
            waited += _LOOK_SECONDS  # not by the clock: this process may have been stopped as well
            if waited >= self._seconds:
                self.told = self._fates(missing)
                self._ranks.kill()
                return

    def _missing(self) -> list[int]:
        """Ranks that have not given a second sign yet."""
        if self._metrics() != self._metrics_before:  # they train, even if their signs cannot be seen from here
            return []
        signs = (read_sign(self._folder, rank) for rank in range(self._ranks.num_ranks))
        return [rank for rank, sign in enumerate(signs) if sign is None or not (sign.finished or sign.beat > 1)]

    def _metrics(self) -> int | None:
        try:
            return (self._folder / METRICS).stat().st_mtime_ns
        except OSError:
            return None

    def _fates(self, missing: list[int]) -> str:
        processes = self._ranks.processes()
        stopped = [rank for rank in missing if rank in processes and is_stopped(processes[rank])]
        named = [
            f"rank {rank} on {socket.gethostname()} (process {processes[rank]}) did not begin within "
            f"{self._seconds:g} s: {fate_of(processes[rank])}"
            for rank in stopped
        ]
        ranks = ", ".join(map(str, missing))
        return "\n".join(named) or f"these ranks did not begin within {self._seconds:g} s: {ranks}"


def seconds_to_begin(watchdog_seconds: float) -> float:
    """Time that ranks have to start up, until they watch one another; 0 for no limit.

    >>> seconds_to_begin(120), seconds_to_begin(3), seconds_to_begin(0)
    (600, 60.0, 0.0)
    """
    return max(PATIENCE * watchdog_seconds, _LEAST_SECONDS) if watchdog_seconds > 0 else 0.0
