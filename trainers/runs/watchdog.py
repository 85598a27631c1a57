"""Which rank is at fault when ranks wait without end: found from the signs of life that all of them give."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from trainers.runs.run_folder import RANKS

BEATS = 20  # signs within the time that a rank may be without progress
_LOOKS_FROM = 1 / 8  # part of that time after which a rank without progress watches the others
_SILENT = 3 / 4  # part of a rank's allowed time without a sign after which it counts as stopped or dead
_TURN = 3  # signs that a watcher waits for the watcher before it to report
_STATES = {
    "T": "its process is stopped (SIGSTOP)",
    "t": "its process is stopped by a debugger",
    "D": "its process waits for a disk or a network file system",
    "Z": "its process has ended",
    None: "its process has ended",
}


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A rank's sign of life.

    Args:
        rank, host, process: who it is.
        beat: number of the sign.
        update: the one it is in; None before the first.
        still_seconds: since its last progress.
        allowed_seconds: how long it may be without progress, in its present phase; 0 for any time.
        waits: whether it waits for other ranks; known where overdue.
        stack: of its main thread, where overdue.
        finished: whether it has done its part of the run.
    """

    rank: int
    host: str
    process: int
    beat: int
    update: int | None
    still_seconds: float
    allowed_seconds: float
    waits: bool
    stack: tuple[str, ...]
    finished: bool

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


def sign_file(folder: Path, rank: int) -> Path:
    """The file of a rank's signs, for the run in a folder."""
    return folder / RANKS / f"{rank:06d}.json"


def read_sign(folder: Path, rank: int) -> Sign | None:
    """A rank's newest sign; None where there is none."""
    try:
        fields = json.loads(sign_file(folder, rank).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return Sign(**{**fields, "stack": tuple(fields["stack"])})


def watchers(num_ranks: int) -> list[int]:
    """The ranks that watch: up to four, far apart, so that one of them should survive."""
    return sorted({0, num_ranks // 3, 2 * num_ranks // 3, num_ranks - 1})


@dataclass(kw_only=True)
class _Watched:
    sign: Sign | None
    since: float  # when it was first read, by this process's clock: those of hosts may differ


class Watchdog:
    """Watches the other ranks from a rank that makes no progress.

    Args:
        folder: the run's.
        rank: of this process, one of the watchers.
        num_ranks: of the run.
        seconds: without progress that end the run.
    """

    def __init__(self, folder: Path, *, rank: int, num_ranks: int, seconds: float) -> None:
        self._folder, self._rank, self._num_ranks, self._seconds = folder, rank, num_ranks, seconds
        self._watched: dict[int, _Watched] = {}
        self._looked = time.monotonic()
        self._rounds = 0

    def look(self, own: Sign) -> str | None:
        """Who is at fault, in words, if it is this rank's turn to report; to be called with each sign it gives."""
        now = time.monotonic()
        held_up = now - self._looked > self._seconds * _SILENT / 2  # by the file system, perhaps: others are as well
        self._looked = now
        if held_up or own.still_seconds < self._seconds * _LOOKS_FROM:
            self._watched.clear()
            self._rounds = 0
            return None
        for rank in range(self._num_ranks):
            self._watch(rank, now)
        found = self._culprits(now, own) if own.still_seconds >= self._seconds else []
        if not found:
            self._rounds = 0
            return None
        innocent = [rank for rank in watchers(self._num_ranks) if rank not in found]
        turn = innocent.index(self._rank) if self._rank in innocent else len(innocent)
        self._rounds += 1
        return self._told(found, now, own) if self._rounds > _TURN * turn else None

    def _watch(self, rank: int, now: float) -> None:
        sign, before = read_sign(self._folder, rank), self._watched.get(rank)
        if before is None or (sign is not None and (before.sign is None or sign.beat != before.sign.beat)):
            self._watched[rank] = _Watched(sign=sign, since=now)

    def _silent(self, now: float) -> list[int]:
        return [
            rank
            for rank, seen in self._watched.items()
            if now - seen.since >= _SILENT * (seen.sign.allowed_seconds if seen.sign else self._seconds)
            and not (seen.sign and seen.sign.finished)
        ]

    def _culprits(self, now: float, own: Sign) -> list[int]:
        """Ranks that give no sign; else, once all are overdue, those that do not wait for others; else all."""
        if silent := self._silent(now):
            return silent
        seen = [watched.sign for watched in self._watched.values()]
        signs = [sign for sign in seen if sign is not None and not sign.finished]
        if None in seen or not own.overdue or not all(sign.overdue for sign in signs):
            return []
        return [sign.rank for sign in signs if not sign.waits] or [sign.rank for sign in signs]

    def _told(self, culprits: list[int], now: float, own: Sign) -> str:
        silent = set(self._silent(now))
        words = [self._fate(rank, now) if rank in silent else self._place(rank) for rank in culprits]
        how = f"No progress {own.when} for {own.still_seconds:.1f} s; --watchdog allows {self._seconds:g}."
        return "\n".join([*words, how])

    def _fate(self, rank: int, now: float) -> str:
        seen = self._watched[rank]
        if seen.sign is None:
            return f"rank {rank} gives no sign of life any more; its host is not known"
        said = f"{seen.sign.name} has given no sign of life for {now - seen.since:.1f} s, the last {seen.sign.when}"
        if seen.sign.host != socket.gethostname():
            return f"{said}: it is stopped or dead, or its host cannot be reached"
        return f"{said}: {fate_of(seen.sign.process)}"

    def _place(self, rank: int) -> str:
        sign = self._watched[rank].sign
        assert sign is not None
        does = "waits for others that do not come" if sign.waits else "hangs"
        stack = "".join(f"\n  {line}" for line in sign.stack)
        return f"{sign.name} {does} {sign.when}, for {sign.still_seconds:.1f} s:{stack}"


def fate_of(process: int) -> str:
    """What became of a process of this machine that gives no sign, in words."""
    return _STATES.get(_state_of(process), "its process runs, but Python's threads do not")


def is_stopped(process: int) -> bool:
    """Whether a process of this machine is stopped, by a signal or a debugger."""
    return _state_of(process) in ("T", "t")


def _state_of(process: int) -> str | None:
    """The letter that the system has for the state of a process of this machine; None if it is not there."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
