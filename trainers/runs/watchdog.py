"""Which rank is at fault when a run hangs, from the heartbeats of all ranks.

`Watchdog` runs in a rank and watches the others. `ParentWatch` in the parent process watches what they cannot see;
`watch_next_rank` notices a dead rank where there is no such parent.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainers.runs.errors import abort_all_ranks, print_and_drain
from trainers.runs.heartbeat import PATIENCE, Heartbeat, HeartbeatRecord, read_heartbeat
from trainers.runs.mpi_ranks import Ranks, process_fields, process_mark
from trainers.runs.run_folder import METRICS, newest_by_name

_WATCHES_FROM = 1 / 8  # part of a rank's allowed time after which, without progress, it watches the others
_SILENT = 3 / 4  # part of a rank's allowed time without a heartbeat after which it counts as stopped or dead
_TURN = 3  # heartbeats that a watcher waits for the watcher before it to report
_CHECK_SECONDS = 0.5  # between two looks at whether the ranks have started up
_ALONE_SECONDS = 3.0  # between the end of the launcher's proxy and that of the ranks that it leaves, at least
_PROXY_SECONDS = 20.0  # for mpiexec to start its proxy, which a signal to all processes may have killed
_LAUNCHER_SECONDS = 1.0  # for a launcher to end the ranks itself once one of them has ended
_LEAST_STARTUP_SECONDS = 45.0  # to import everything and to join MPI, on a slow disk and busy cores
_STATES = {
    "T": "its process is stopped (SIGSTOP)",
    "t": "its process is stopped by a debugger",
    "D": "its process waits for a disk or a network file system",
    "Z": "its process has ended",
    None: "its process has ended",
}


def start_watchdog(heartbeat: Heartbeat) -> None:
    """End the run if one of its ranks hangs or has died; all ranks call this together, after `Heartbeat.start`.

    A rank without progress for `seconds` reads the others' heartbeats. Ranks that wrote none in three quarters of that
    time are stopped or dead. If all write and none makes progress, those that do not wait for others are at fault. They
    are named, with host, update and Python stack, and all ranks end with exit code 3.

    Up to four ranks watch, so each file is read by at most four. Nothing is watched where `seconds` is 0, or where the
    hosts do not share the folder: then `heartbeat` gets a warning.

    Bytes on the wire: a barrier, and about 15 from each rank to each; some more where a heartbeat cannot be read.
    """
    folder, mpi = heartbeat.folder, heartbeat.mpi
    mpi.Barrier()  # all have written a heartbeat
    watches = heartbeat.seconds > 0 and mpi.rank in watchers(mpi.size)
    unseen = [rank for rank in range(mpi.size) if read_heartbeat(folder, rank) is None] if watches else []
    unseen = sorted({rank for ranks in mpi.allgather(unseen) for rank in ranks})
    if unseen:
        heartbeat.warnings.append(
            f"no watchdog: {folder} is not shared by all hosts (rank {unseen[0]} is not seen there by all); "
            "a rank that hangs would be waited for without end"
        )
    elif watches:
        watchdog = Watchdog(folder, rank=mpi.rank, num_ranks=mpi.size, seconds=heartbeat.seconds)

        def end_if_at_fault(own: HeartbeatRecord) -> None:
            if message := watchdog.check(own):
                checkpoint = newest_by_name(folder) or "none was written yet"
                print_and_drain(f"kilobatch: {message}\nLast good checkpoint: {checkpoint}")
                abort_all_ranks()

        heartbeat.on_beat = end_if_at_fault


def watch_next_rank(world: Any, way_on: str) -> threading.Event:
    """End all ranks once the next one on this host has ended, as srun does not, until the returned event is set.

    All ranks call this together. A rank that is alone on its host is not watched.
    Bytes on the wire: about 40 from each rank to each.

    Args:
        way_on: what the user can do then, in words.
    """
    over, marks = threading.Event(), world.allgather(process_mark(os.getpid()))
    here = [rank for rank, mark in enumerate(marks) if mark and process_mark(int(mark.split()[0])) == mark]
    following = here[(here.index(world.rank) + 1) % len(here)] if world.rank in here else world.rank
    process, *_, host = marks[following].split() or ["", ""]

    def watch() -> None:
        while process_mark(int(process)) == marks[following]:
            if over.wait(_CHECK_SECONDS):
                return
        if not over.wait(_LAUNCHER_SECONDS):
            print_and_drain(f"kilobatch: rank {following} on {host} (process {process}) has ended; {way_on}")
            abort_all_ranks()

    if following != world.rank:
        threading.Thread(target=watch, name="watch of the next rank", daemon=True).start()
    return over


def watchers(num_ranks: int) -> list[int]:
    """The ranks that watch: up to four, far apart, so that one of them should survive."""
    return sorted({0, num_ranks // 3, 2 * num_ranks // 3, num_ranks - 1})


@dataclass(kw_only=True)
class _Seen:
    record: HeartbeatRecord | None
    since: float  # when it was first read, by this process's clock: those of hosts may differ


class Watchdog:
    """Reads the other ranks' heartbeats while this rank makes no progress.

    Args:
        rank: of this process, one of the watchers.
        seconds: without progress that end the run.
    """

    def __init__(self, folder: Path, *, rank: int, num_ranks: int, seconds: float) -> None:
        self._folder, self._rank, self._num_ranks, self._seconds = folder, rank, num_ranks, seconds
        self._seen: dict[int, _Seen] = {}
        self._checked = time.monotonic()
        self._rounds = 0

    def check(self, own: HeartbeatRecord) -> str | None:
        """Who is at fault, in words, if it is this rank's turn to report; to be called at each heartbeat of it."""
        now = time.monotonic()
        held_up = now - self._checked > self._seconds * _SILENT / 2  # by the file system, perhaps: others are as well
        self._checked = now
        if held_up or own.still_seconds < self._seconds * _WATCHES_FROM:
            self._seen.clear()
            self._rounds = 0
            return None
        for rank in range(self._num_ranks):
            self._read(rank, now)
        at_fault = self._at_fault(now, own) if own.still_seconds >= self._seconds else []
        if not at_fault:
            self._rounds = 0
            return None
        reporters = [rank for rank in watchers(self._num_ranks) if rank not in at_fault]
        turn = reporters.index(self._rank) if self._rank in reporters else len(reporters)
        self._rounds += 1
        return self._message(at_fault, now, own) if self._rounds > _TURN * turn else None

    def _read(self, rank: int, now: float) -> None:
        record, before = read_heartbeat(self._folder, rank), self._seen.get(rank)
        if before is None or (record is not None and (before.record is None or record.beat != before.record.beat)):
            self._seen[rank] = _Seen(record=record, since=now)

    def _silent(self, now: float) -> list[int]:
        return [
            rank
            for rank, seen in self._seen.items()
            if now - seen.since >= _SILENT * (seen.record.allowed_seconds if seen.record else self._seconds)
            and not (seen.record and seen.record.finished)
        ]

    def _at_fault(self, now: float, own: HeartbeatRecord) -> list[int]:
        """Ranks without a heartbeat; else, once all are overdue, those that do not wait for others; else all."""
        if silent := self._silent(now):
            return silent
        newest = [seen.record for seen in self._seen.values()]
        records = [record for record in newest if record is not None and not record.finished]
        if None in newest or not own.overdue or not all(record.overdue for record in records):
            return []
        return [record.rank for record in records if not record.waits] or [record.rank for record in records]

    def _message(self, at_fault: list[int], now: float, own: HeartbeatRecord) -> str:
        silent = set(self._silent(now))
        lines = [self._describe_silent(rank, now) if rank in silent else self._describe_hang(rank) for rank in at_fault]
        lines.append(f"No progress {own.when} for {own.still_seconds:.1f} s; --watchdog allows {self._seconds:g}.")
        return "\n".join(lines)

    def _describe_silent(self, rank: int, now: float) -> str:
        seen = self._seen[rank]
        if seen.record is None:
            return f"rank {rank} has written no heartbeat; its host is not known"
        text = f"{seen.record.name} has written no heartbeat for {now - seen.since:.1f} s, the last {seen.record.when}"
        if seen.record.host != socket.gethostname():
            return f"{text}: it is stopped or dead, or its host cannot be reached"
        return f"{text}: {process_state(seen.record.process)}"

    def _describe_hang(self, rank: int) -> str:
        record = self._seen[rank].record
        assert record is not None
        does = "waits for others that do not come" if record.waits else "hangs"
        stack = "".join(f"\n  {line}" for line in record.stack)
        return f"{record.name} {does} {record.when}, for {record.still_seconds:.1f} s:{stack}"


class ParentWatch:
    """What the parent sees of its ranks and they cannot see of themselves; it then kills them all.

    A rank does not start up in time, for example because it was stopped before it joined MPI, or has ended before that,
    for which mpiexec waits without end. Their launcher has died: mpiexec would wait for it, or leave the ranks alone.
    All of them are stopped (SIGSTOP), so that none can say so.

    Args:
        folder: of the run, without heartbeats of a previous run.
        ranks: that were just started.
        seconds: to start up; 0 for no limit.
        stopped_seconds: for which all ranks may be stopped; 0 for no limit.
    Attributes:
        failure: what was seen, in words, if all were killed for it; else None.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, seconds: float, stopped_seconds: float) -> None:
        self.failure: str | None = None
        self._folder, self._ranks, self._seconds = folder, ranks, seconds
        self._stopped_seconds = stopped_seconds
        self._metrics_before = self._metrics_changed_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="watch of the ranks", daemon=True)
        self._thread.start()

    def close(self) -> str | None:
        """The ranks have ended. Returns `failure`."""
        self._over.set()
        self._thread.join()
        return self.failure

    def _serve(self) -> None:
        waited = stopped = alone = 0.0  # not by the clock: this process may have been stopped as well
        starting, had_launcher = True, False
        began: dict[int, int] = {}  # rank -> process, as it was seen
        gone: Counter[int] = Counter()  # rank -> for how many looks it has been gone
        while not self._over.wait(_CHECK_SECONDS):
            had_launcher = had_launcher or self._ranks.has_launcher() or waited >= _PROXY_SECONDS
            alone = 0.0 if self._ranks.has_launcher() or not had_launcher else alone + _CHECK_SECONDS
            missing = self._missing() if starting else []
            starting, waited = bool(missing), waited + _CHECK_SECONDS
            stopped = stopped + _CHECK_SECONDS if self._all_stopped() else 0.0
            processes = self._ranks.processes() if missing else {}
            gone = Counter({rank: gone[rank] + 1 for rank in missing if rank in began and rank not in processes})
            began |= processes
            ended = [rank for rank, looks in gone.items() if looks * _CHECK_SECONDS >= _ALONE_SECONDS]
            if ended:
                who = f"rank {ended[0]} on {socket.gethostname()} (process {began[ended[0]]})"
                self._end(f"{who} ended before all ranks had joined in MPI")
            elif alone >= _ALONE_SECONDS:
                self._end("mpiexec's process beside the ranks (hydra_pmi_proxy) was killed, and they were left alone")
            elif missing and self._seconds and waited >= self._seconds:
                self._end(self._describe(missing))
            elif self._stopped_seconds and stopped >= self._stopped_seconds:
                self._end(f"all ranks have been stopped (SIGSTOP) for {stopped:g} s; --watchdog allows no more")

    def _end(self, failure: str) -> None:
        self.failure = failure
        self._ranks.kill()
        self._over.set()

    def _all_stopped(self) -> bool:
        records = [read_heartbeat(self._folder, rank) for rank in range(self._ranks.num_ranks)]
        here = [record.process for record in records if record is not None and record.host == socket.gethostname()]
        return len(here) == self._ranks.num_ranks and all(_state_letter(process) in ("T", "t") for process in here)

    def _missing(self) -> list[int]:
        """Ranks that have not written a second heartbeat yet."""
        if self._metrics_changed_ns() != self._metrics_before:  # they train, even if this host sees no heartbeats
            return []
        records = (read_heartbeat(self._folder, rank) for rank in range(self._ranks.num_ranks))
        return [rank for rank, record in enumerate(records) if not (record and (record.finished or record.beat > 1))]

    def _metrics_changed_ns(self) -> int | None:
        try:
            return (self._folder / METRICS).stat().st_mtime_ns
        except OSError:
            return None

    def _describe(self, missing: list[int]) -> str:
        processes = self._ranks.processes()
        stopped = [
            f"rank {rank} on {socket.gethostname()} (process {processes[rank]}) did not begin within "
            f"{self._seconds:g} s: {process_state(processes[rank])}"
            for rank in missing
            if rank in processes and _state_letter(processes[rank]) in ("T", "t")
        ]
        ranks = ", ".join(map(str, missing))
        return "\n".join(stopped) or f"these ranks did not begin within {self._seconds:g} s: {ranks}"


def startup_seconds(watchdog_seconds: float) -> float:
    """Time that ranks have to start up, until they watch one another; 0 for no limit.

    >>> startup_seconds(120), startup_seconds(3), startup_seconds(0)
    (600, 45.0, 0.0)
    """
    return max(PATIENCE * watchdog_seconds, _LEAST_STARTUP_SECONDS) if watchdog_seconds > 0 else 0.0


def process_state(process: int) -> str:
    """The state of a process of this machine that writes no heartbeats, in words."""
    return _STATES.get(_state_letter(process), "its process runs, but Python's threads do not")


def _state_letter(process: int) -> str | None:
    """The state of a process of this machine, see proc(5); None if it is not there."""
    return next(iter(process_fields(process)), None)
