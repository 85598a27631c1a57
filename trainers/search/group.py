"""A group of ranks as the supervisor sees it: one MPI job that trains one run after another.

The supervisor and the first rank of a group exchange messages: lines of JSON in two files on a shared file system. The
supervisor writes requests to train, the rank writes how each run ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trainers.launch.request import TrainRequest
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.mpi_ranks import HYDRA, Ranks
from trainers.runs.rank_exits import shared_memory_fault
from trainers.runs.run_folder import LOG
from trainers.search.placement import Placement

JOBS = "jobs"  # in the search's folder: group-00, ...
ORDERS, ANSWERS = "orders.jsonl", "answers.jsonl"
_DEAD_SECONDS = 120.0  # without a heartbeat the supervisor is taken for dead
_END_SECONDS = 10.0  # for dismissed ranks to end by themselves
_OWN = "kilobatch: "  # how our messages begin
_LAUNCHERS = re.compile(r"\[?(srun|slurm\w*|ssh|mpiexec|proxy)\b")  # how their lines begin
_EXIT_PYTHON = 1  # an exception before the ranks had joined in MPI
_FAILED_RANK = re.compile(r"^rank (\d+) on \S+ failed:$", re.MULTILINE)
_WATCHDOG, _SILENT = "; --watchdog allows ", "the ranks ended without a message"


def group_folder(folder: Path, number: int) -> Path:
    """The folder of a group of ranks, in that of a search."""
    return folder / JOBS / f"group-{number:02d}"


def write_message(path: Path, message: Mapping[str, Any]) -> None:
    """Append a message to a file, which is created if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class MessageReader:
    """Reads the messages of a file, which need not exist yet, each once, in order.

    It is reopened every time: over NFS only that shows what another host has written.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._modified, self._last_change = 0.0, time.monotonic()

    def next(self) -> dict[str, Any] | None:
        """The next message; None while there is none."""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            file.seek(self._offset)
            line = file.readline()
            if line.endswith(b"\n"):
                self._offset += len(line)
                return json.loads(line)
        return None

    @property
    def writer_is_dead(self) -> bool:
        """Whether the file existed, and was not written or touched for two minutes, in which this was called."""
        with suppress(FileNotFoundError), open(self._path, "rb") as file:
            modified = os.fstat(file.fileno()).st_mtime
            if modified != self._modified:  # its age is measured by this process's clock: clocks of hosts differ
                self._modified, self._last_change = modified, time.monotonic()
        return self._modified > 0 and time.monotonic() - self._last_change > _DEAD_SECONDS


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended.

    Args:
        how: `success`; `stopped` on request; `diverged`, its numbers were no longer finite; `failed` by an error that a
            retry would meet again; `died`: a rank was killed, crashed or left without an error; or `not_started`: the
            launcher or the system did not start the ranks.
        reason: in words, where it is not success.
        update: at which it diverged.
    """

    how: Literal["success", "stopped", "diverged", "failed", "died", "not_started"]
    reason: str = ""
    update: int | None = None


class Group:
    """Ranks that train one run after another; if they have ended, the next run starts them again.

    Args:
        number, folder: of the group, from 0, and of the search.
        placement: of the ranks; None: another launcher has started them, and they read the folder `messages`.
    """

    def __init__(self, number: int, folder: Path, placement: Placement | None, *, messages: str | None = None) -> None:
        self.number, self.folder = number, group_folder(folder, number)
        self.log, self.num_starts = self.folder / LOG, 0
        self.hosts = placement.hosts if placement else ()  # of each rank, as placed; then as it reports, with its GPU
        self.failures: set[str] = set()  # trials and starts in turn that made no progress here
        self.set_aside = ""  # why no trial is given to it any more
        self._placement, self._messages = placement, self.folder / (messages or "")
        self._results = MessageReader(self._messages / ANSWERS)
        self._job: Ranks | None = None
        self.joined = self._ending = False
        self._num_errors = 0  # lines that the ranks wrote to stderr before the run

    @property
    def name(self) -> str:
        """Its number, and its hosts and GPUs if they are known."""
        return f"group {self.number}" + (f" on {', '.join(dict.fromkeys(self.hosts))}" if self.hosts else "")

    def train(self, request: TrainRequest) -> None:
        """Begin a run; the previous one must have ended."""
        if not self._runs:
            self.wait()
            self._begin()
        self._num_errors = 0 if self._job is None else self._job.num_errors()
        write_message(self._messages / ORDERS, {"train": request.as_tree()})

    def ended(self, log: Path) -> RunEnd | None:
        """How the run ended, None while it goes on; `log` is the run's, for what its ranks wrote to stderr."""
        code = self.poll()  # before the result: ranks may write it and then end
        if not self.joined and (message := self._results.next()) is not None:
            self.joined, self.hosts = True, tuple(message["joined"])
        result = self._results.next() if self.joined else None
        if result is not None:
            return RunEnd(**result)
        if code is None:
            return None
        errors = self._job.errors(self._num_errors)
        with suppress(OSError), open(log, "a", encoding="utf-8") as file:  # a full disk does not end the search for it
            file.write(errors)
        return self._end_without_result(code, errors)

    def poll(self) -> int | None:
        """The exit code of the ranks; None while they run."""
        return self._job and self._job.poll()

    def kill(self) -> None:
        """End the ranks at once, also one that hangs. Under another launcher all ranks end, and this process too."""
        if self._job is not None:
            self._job.kill()
        elif self._runs:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()  # the next line ends this process as well
            os.kill(os.getppid(), signal.SIGKILL)
        self._ending = True

    def send_heartbeat(self) -> None:
        """Show the ranks that the supervisor lives."""
        if self.num_starts:
            os.utime(self._messages / ORDERS)

    def dismiss(self) -> None:
        """Begin no more runs: the ranks end by themselves."""
        if self._placement is None or self._runs:
            dismiss(self._messages)
        self._ending = True

    def wait(self) -> None:
        """Return when dismissed or killed ranks have ended; those that do not end in time are killed."""
        if self._job is not None:
            try:
                self._job.process.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                self._job.kill()

    @property
    def _runs(self) -> bool:
        return self.num_starts > 0 and not self._ending and self.poll() is None

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if self._placement is not None:  # a new folder: ranks of an earlier start must not read the requests
            self._messages = self.folder / f"start-{time.time_ns()}"
        self._messages.mkdir(exist_ok=True)
        (self._messages / ORDERS).touch()
        self.joined = self._ending = False
        self._results = MessageReader(self._messages / ANSWERS)
        self._job = self._placement and self._placement.start(self._messages, self.log)
        self.num_starts += 1

    def _end_without_result(self, code: int, errors: str) -> RunEnd:
        """By the launcher's exit code: of a signal mpiexec returns the number, srun 128 more, as a shell does."""
        lines = [line for line in dict.fromkeys(self._job.errors().splitlines()) if line.strip()]
        if not self.joined:
            if fault := shared_memory_fault("\n".join(lines)):
                return RunEnd(how="not_started", reason=fault)
            lines = [line for line in lines if not line.startswith(HYDRA)] or lines
            ours = [line for line in lines if line.startswith(_OWN)][:1]
            said = ours or [line for line in lines if _LAUNCHERS.match(line)] or lines or [_SILENT]
            return RunEnd(how="not_started", reason=" | ".join(said[:2]))
        if code in (_EXIT_PYTHON, EXIT_FAILED, EXIT_INPUT):
            return cause_of(errors)
        rank = self._job.first_exit()
        who = "the launcher of the ranks" if code < 0 else "a rank" if rank is None else f"rank {rank}"
        if code == 0:  # the launcher has words where a node died
            said = filter(_LAUNCHERS.match, lines)
            reason = next(said, f"{who} left before the run ended, without an error of its own")
            return RunEnd(how="died", reason=reason)
        number = -code if code < 0 else code % 128
        by = f"by {signal.Signals(number).name}" if number in list(signal.Signals) else f"with code {code}"
        return RunEnd(how="died", reason=f"{who} was ended {by}")


def dismiss(messages: Path) -> None:
    """End the ranks that read their requests in a folder, which need not exist yet."""
    messages.mkdir(parents=True, exist_ok=True)
    write_message(messages / ORDERS, {"train": None})


def cause_of(errors: str) -> RunEnd:
    """The cause in what the ranks wrote to stderr: the last line of the first traceback of a rank, or our own line."""
    _, *failed = _FAILED_RANK.split(errors)
    ours = [line.removeprefix(_OWN) for line in errors.splitlines() if line.startswith(_OWN)]
    if ours and not failed:
        how = "died" if _WATCHDOG in errors else "failed"  # the ranks' own watchdog
        return RunEnd(how=how, reason=ours[0].rstrip(":"))
    trace = failed[1] if failed else errors  # without what MPI writes after it
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "Abort", "="))]
    reason = lines[-1] if lines else _SILENT
    return RunEnd(how="failed", reason=f"rank {failed[0]}: {reason}" if failed else reason)
