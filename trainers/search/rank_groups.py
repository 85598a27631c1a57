"""A group of ranks as the supervisor sees it: one MPI job that trains one run after another.

The supervisor and the first rank of a group exchange messages: lines of JSON in two files on a shared file system. The
supervisor writes requests to train, the rank writes how each run ended.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainers.launch.request import TrainRequest
from trainers.runs.mpi_ranks import Ranks
from trainers.runs.run_folder import LOG

REQUESTS, RESULTS = "orders.jsonl", "answers.jsonl"
JOBS = "jobs"  # in the search's folder: a folder for each group
HEARTBEAT_SECONDS = 10.0  # how often a supervisor touches each group's requests
_DEAD_SECONDS = 120.0  # without a heartbeat the supervisor is taken for dead
_END_SECONDS = 10.0  # for dismissed ranks to end by themselves
_LAUNCHERS = re.compile(r"\[?(srun|slurm\w*|ssh|mpiexec|proxy)\b")  # how their lines begin
_HYDRA = re.compile(r"\[(mpiexec|proxy)\b")  # lines that say where in MPICH's source it ended


def write_message(path: Path, message: Mapping[str, Any]) -> None:
    """Append a message to a file, which is created if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class MessageReader:
    """Reads the messages of a file, each once, in order.

    The file need not exist yet. It is reopened every time: over NFS only that shows what another host has written.
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


class Group:
    """Ranks that train one run after another; if they have ended, the next run starts them again.

    Args:
        number, folder: of the group, from 0, and of the search.
        start: (folder for messages, log) -> the ranks, started; None: another launcher has started them.
        messages: name of the folder for messages, for ranks that run already; else each start has a new one.
        hosts: of each rank, as placed; once they have joined, `hosts` is their own report.
        join_seconds: for started ranks to join, see `never_joined`.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        start: Callable[[Path, Path], Ranks] | None,
        *,
        messages: str | None = None,
        hosts: Sequence[str] = (),
        join_seconds: float = 60.0,
    ) -> None:
        self.number, self.folder = number, group_folder(folder, number)
        self.log, self.num_starts = self.folder / LOG, 0
        self.hosts = tuple(hosts)
        self.gpus: tuple[str, ...] = ()  # of each rank, once they have joined; empty text: none
        self._start, self._fixed_messages, self._join_seconds = start, messages, join_seconds
        self._messages = self.folder / (messages or "")
        self._job: Ranks | None = None
        self._killed = self._joined = self._dismissed = False
        self._results = MessageReader(self._messages / RESULTS)
        self._begin_time = self._heartbeat = 0.0
        self._num_errors = self._log_start = self._log_begin = 0

    def train(self, request: TrainRequest) -> None:
        """Begin a run; the previous one must have a result, or its ranks have ended."""
        if self._killed:
            self.wait()
        if not self._runs:
            self._begin()
        self._num_errors = 0 if self._job is None else self._job.num_errors()
        self._log_start = len(self._logged())
        write_message(self._messages / REQUESTS, {"train": request.as_tree()})

    def result(self) -> dict[str, Any] | None:
        """How the run ended, as fields of a `RunEnd`; None while its ranks have not written it."""
        return self._results.next() if self._has_joined() else None

    @property
    def never_joined(self) -> bool:
        """Whether started ranks have ended before they joined in MPI, or have not joined in time: no trial's fault."""
        late = not self._runs or time.monotonic() - self._begin_time > self._join_seconds  # before the message is read
        return not self._has_joined() and late and self.num_starts > 0

    def launcher_words(self) -> str:
        """The first lines that srun or mpiexec wrote since the ranks were started; of ranks that never joined, any."""
        lines = [*filter(str.strip, self._logged()[self._log_begin :].decode(errors="replace").splitlines())]
        words = [line for line in lines if _LAUNCHERS.match(line)]
        if not self._has_joined() and all(map(_HYDRA.match, words)):
            words = sorted(lines, key=lambda line: _HYDRA.match(line) is not None)
        return "\n".join([*dict.fromkeys(words)][:5])

    def poll(self) -> int | None:
        """The exit code of the ranks; None while they run."""
        return self._job and self._job.poll()

    def kill(self) -> None:
        """End the ranks at once, also one that hangs; those of another launcher end all together, and this process."""
        self._killed = True
        if self._job is not None:
            self._job.kill()
        elif self._runs:
            if sys.exc_info()[0] is not None:
                traceback.print_exc()  # the next line ends this process as well
            os.kill(os.getppid(), signal.SIGKILL)

    def output(self) -> tuple[str, str]:
        """What ranks that have ended wrote to stderr and to the log since the run began."""
        errors = self._job.errors(self._num_errors) if self._job else ""
        return errors, self._logged()[self._log_start :].decode(errors="replace")

    def first_exit(self) -> int | None:
        """The rank that ended first, of ranks that have ended."""
        return self._job and self._job.first_exit()

    def send_heartbeat(self) -> None:
        """Show the ranks, every ten seconds, that the supervisor lives."""
        if self.num_starts and time.monotonic() - self._heartbeat > HEARTBEAT_SECONDS:
            self._heartbeat = time.monotonic()
            os.utime(self._messages / REQUESTS)

    def dismiss(self) -> None:
        """Begin no more runs: the ranks end by themselves."""
        if self._start is None or self._runs:
            dismiss(self._messages)
        self._dismissed = True

    def wait(self) -> None:
        """Return when dismissed or killed ranks have ended; those that do not end in time are killed."""
        end = time.monotonic() + _END_SECONDS
        while self._job is not None and self._job.poll() is None:
            if time.monotonic() > end:
                self._job.kill()
                end += _END_SECONDS
            time.sleep(0.02)

    @property
    def _runs(self) -> bool:
        return self.num_starts > 0 and not self._dismissed and self.poll() is None

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if old.is_dir() and old.name != self._fixed_messages:
                shutil.rmtree(old, ignore_errors=True)
        # A new folder: ranks of an earlier start must not read the requests.
        self._messages = self.folder / (self._fixed_messages or f"start-{time.time_ns()}")
        self._messages.mkdir(exist_ok=True)
        (self._messages / REQUESTS).touch()
        self._killed = self._joined = False
        self._results, self._log_begin = MessageReader(self._messages / RESULTS), len(self._logged())
        self._begin_time = self._heartbeat = time.monotonic()
        self._job = self._start and self._start(self._messages, self.log)
        self.num_starts += 1

    def _has_joined(self) -> bool:
        message = None if self._joined else self._results.next()
        if message is not None:
            self._joined, self.hosts, self.gpus = True, tuple(message["joined"]), tuple(message["gpus"])
        return self._joined

    def _logged(self) -> bytes:
        return self.log.read_bytes() if self.log.exists() else b""


def group_folder(folder: Path, number: int) -> Path:
    """The folder of a group, in that of a search."""
    return folder / JOBS / f"group-{number:02d}"


def dismiss(messages: Path) -> None:
    """End the ranks that read their requests in a folder, which need not exist yet."""
    messages.mkdir(parents=True, exist_ok=True)
    write_message(messages / REQUESTS, {"train": None})
