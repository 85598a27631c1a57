"""A group of ranks as the supervisor sees it: one MPI job that trains one run after another.

The supervisor and the first rank of a group exchange messages: lines of JSON in two files on a shared file system. The
supervisor writes requests to train, the rank writes how each run ended.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from trainers.launch.request import TrainRequest
from trainers.runs.mpi_ranks import start_ranks, users_environment
from trainers.runs.run_folder import LOG
from trainers.search.hosts import Placement, launcher_command

REQUESTS, RESULTS = "orders.jsonl", "answers.jsonl"
JOBS = "jobs"  # in the search's folder: a folder for each group
HEARTBEAT_SECONDS = 10.0  # how often a supervisor touches each group's requests
_DEAD_SECONDS = 120.0  # without a heartbeat the supervisor is taken for dead
_END_SECONDS = 10.0  # for dismissed ranks to end by themselves


def write_message(path: Path, message: Mapping[str, Any]) -> None:
    """Append a message to a file, which is created if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class MessageReader:
    """Reads the messages of a file, each once, in order.

    The file is reopened for every read: over NFS that is the only way to see what another host has written.

    Args:
        path: of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0
        self._modified: float | None = None
        self._last_change = time.monotonic()

    def read(self) -> list[dict[str, Any]]:
        """The messages since the last call."""
        try:
            with open(self._path, "rb") as file:
                modified = os.fstat(file.fileno()).st_mtime
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        if modified != self._modified:  # its age is measured by this process's clock: clocks of hosts differ
            self._modified, self._last_change = modified, time.monotonic()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def writer_is_dead(self) -> bool:
        """Whether the file existed, and was not written or touched for two minutes."""
        return self._modified is not None and time.monotonic() - self._last_change > _DEAD_SECONDS


class MpiJob(Protocol):
    """Ranks that run, or have run; `trainers.runs.mpi_ranks.Ranks` is one."""

    def poll(self) -> int | None:
        """The exit code; None while they run."""

    def kill(self) -> None:
        """End them at once."""

    def errors(self, since: int = 0) -> str:
        """What they wrote to stderr after its first `since` lines, once they have ended."""

    def num_errors(self) -> int:
        """Lines on stderr so far."""

    def first_exit(self) -> int | None:
        """The rank that ended first, once all have; None where that is not known."""


class Group:
    """Ranks that train one run after another; if they have ended, the next run starts them again.

    Args:
        number: of the group, from 0.
        folder: of the search.
        start: (folder for messages, log) -> the ranks, started.
        messages: name of the folder for messages, for ranks that run already; else each start has a new one, so that
            ranks of an earlier start cannot read its requests.
    """

    def __init__(
        self, number: int, folder: Path, start: Callable[[Path, Path], MpiJob], *, messages: str | None = None
    ) -> None:
        self.number, self.folder = number, group_folder(folder, number)
        self.log = self.folder / LOG
        self.num_starts = 0
        self._start, self._fixed_messages = start, messages
        self._messages = self.folder
        self._job: MpiJob | None = None
        self._killed = False
        self._results = MessageReader(self._messages / RESULTS)
        self._num_errors, self._log_start, self._heartbeat = 0, 0, 0.0

    def train(self, request: TrainRequest) -> None:
        """Begin a run; the previous one must have a result, or its ranks have ended."""
        if self._killed:
            self.wait()
        if self._job is None or self._job.poll() is not None:
            self._begin()
        assert self._job is not None
        self._num_errors = self._job.num_errors()
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        self._results.read()
        write_message(self._messages / REQUESTS, {"train": request.as_tree()})

    def result(self) -> dict[str, Any] | None:
        """How the run ended, as fields of a `RunEnd`; None while its ranks have not written it."""
        return next(iter(self._results.read()), None)

    def poll(self) -> int | None:
        """The exit code of the ranks; None while they run."""
        assert self._job is not None, "no run was begun"
        return self._job.poll()

    def kill(self) -> None:
        """End the ranks at once, also one that hangs."""
        self._killed = True
        if self._job is not None:
            self._job.kill()

    def output(self) -> tuple[str, str]:
        """What ranks that have ended wrote to stderr and to the log since the run began."""
        assert self._job is not None, "no run was begun"
        errors = self._job.errors(self._num_errors)
        with open(self.log, "rb") as file:
            file.seek(self._log_start)
            return errors, file.read().decode(errors="replace")

    def first_exit(self) -> int | None:
        """The rank that ended first, of ranks that have ended."""
        return self._job and self._job.first_exit()

    def send_heartbeat(self) -> None:
        """Show the ranks, every ten seconds, that the supervisor lives."""
        if self._job is not None and time.monotonic() - self._heartbeat > HEARTBEAT_SECONDS:
            self._heartbeat = time.monotonic()
            os.utime(self._messages / REQUESTS)

    def dismiss(self) -> None:
        """Begin no more runs: the ranks end by themselves."""
        if self._fixed_messages is not None:  # ranks that another launcher started and waits for
            dismiss(self.folder / self._fixed_messages)
            self._job = None
        elif self._job is not None and self._job.poll() is None:
            dismiss(self._messages)

    def wait(self) -> None:
        """Return when dismissed or killed ranks have ended; those that do not end in time are killed."""
        end = time.monotonic() + _END_SECONDS
        while self._job is not None and self._job.poll() is None:
            if time.monotonic() > end:
                self._job.kill()
                end += _END_SECONDS
            time.sleep(0.02)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if old.is_dir() and old.name != self._fixed_messages:
                shutil.rmtree(old, ignore_errors=True)
        self._messages = self.folder / (self._fixed_messages or f"start-{time.time_ns()}")
        self._messages.mkdir(exist_ok=True)
        for name in (RESULTS, REQUESTS):
            (self._messages / name).touch()
        self._killed = False
        self._results, self._heartbeat = MessageReader(self._messages / RESULTS), time.monotonic()
        self._job = self._start(self._messages, self.log)
        self.num_starts += 1


def group_folder(folder: Path, number: int) -> Path:
    """The folder of a group, in that of a search."""
    return folder / JOBS / f"group-{number:02d}"


def dismiss(messages: Path) -> None:
    """End the ranks that read their requests in a folder, which need not exist yet."""
    messages.mkdir(parents=True, exist_ok=True)
    write_message(messages / REQUESTS, {"train": None})


def rank_starter(placement: Placement) -> Callable[[Path, Path], MpiJob]:
    """A function that starts the ranks of a group on their hosts; see `Group`."""

    def start(messages: Path, log: Path) -> MpiJob:
        words = ["search-ranks", str(messages)]
        if placement.most_on_a_host is not None:
            words += ["--ranks-here", str(placement.most_on_a_host)]
        words += ["--ranks-before", str(placement.ranks_before)] if placement.ranks_before else []
        environment = users_environment()  # without our thread limits: each rank sets those of its own machine
        how = {"log": log, "outlive_us": False, "launcher": launcher_command(placement), "environment": environment}
        return start_ranks(placement.ranks, words, **how)

    return start
