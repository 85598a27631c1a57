"""A group of ranks as the supervisor sees it: the hosts it runs on, and one MPI job that trains one run after another.

The supervisor and the first rank of a group exchange messages: lines of JSON in two files on a shared file system. The
supervisor writes requests to train, the rank writes how each run ended.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from trainers.launch.request import TrainRequest, refused
from trainers.runs.mpi_ranks import find_mpiexec, start_ranks, users_environment
from trainers.runs.run_folder import LOG

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

    hosts: tuple[str, ...] = ()
    never_joined = False

    def launcher_words(self) -> str:
        return ""

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
        if placement.max_ranks_per_host is not None:
            words += ["--ranks-here", str(placement.max_ranks_per_host)]
        words += ["--ranks-before", str(placement.ranks_before)] if placement.ranks_before else []
        environment = users_environment()  # without our thread limits: each rank sets those of its own machine
        how = {"log": log, "outlive_us": False, "launcher": launcher_command(placement), "environment": environment}
        return start_ranks(placement.ranks, words, **how)

    return start


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The hosts of one group.

    Args:
        ranks: of the group.
        hosts: (host, number of the group's ranks there); empty: this machine.
        slurm: run as a step of the Slurm allocation that this process is in.
        max_ranks_per_host: largest number of ranks of all groups on any one of these hosts; None if unknown.
        ranks_before: ranks of earlier groups on the first of these hosts; 0 if unknown.
    """

    ranks: int
    hosts: tuple[tuple[str, int], ...] = ()
    slurm: bool = False
    max_ranks_per_host: int | None = None
    ranks_before: int = 0


def launcher_command(placement: Placement, environment: Mapping[str, str] = os.environ) -> list[str]:
    """The launcher's words before a command that runs once for each rank.

    Under Slurm `--exact` limits a step to what it asks for, so that the groups run side by side. The cores of a rank
    come from the allocation's `--cpus-per-task`; `SLURM_MPI_TYPE` selects Slurm's MPI plugin.

    >>> launcher_command(Placement(ranks=2, slurm=True), {"SLURM_CPUS_PER_TASK": "8"})
    ['srun', '--ntasks=2', '--exact', '--kill-on-bad-exit=1', '--input=none', '--cpus-per-task=8']
    """
    if placement.slurm:
        words = ["srun", f"--ntasks={placement.ranks}", "--exact", "--kill-on-bad-exit=1", "--input=none"]
        cores = environment.get("SLURM_CPUS_PER_TASK")
        return words + ([f"--cpus-per-task={cores}"] if cores else [])
    words = [find_mpiexec()]
    if placement.hosts:
        words += ["-hosts", ",".join(f"{name}:{ranks}" for name, ranks in placement.hosts)]
    return [*words, "-n", str(placement.ranks)]


def placements(
    *, each: int, workers: int | None, hosts: str | None = None, environment: Mapping[str, str] = os.environ
) -> list[Placement]:
    """The placement of each group: consecutive slots of the hosts, in the order of `hosts`.

    Args:
        each: ranks of a group.
        workers: ranks of all groups; None: as many as the hosts or the allocation have, or else one group.
        hosts: such as `a,b,c:4`; None: the Slurm allocation that this process is in, or else this machine.
        environment: of this process.
    Raises:
        RecipeError: there are fewer ranks than a group needs, or the hosts do not add up to `workers`.
    """
    has_srun = shutil.which("srun", path=environment.get("PATH")) is not None
    slurm = hosts is None and "SLURM_JOB_ID" in environment and has_srun
    named = [] if hosts is None else hosts_named(hosts, workers)
    tasks = environment.get("SLURM_NTASKS", "") if slurm else ""
    workers = workers or sum(ranks for _, ranks in named) or (int(tasks) if tasks.isdecimal() else each)
    if workers < each:
        raise refused("-n", f"{workers} ranks are fewer than the {each} of a trial", f"ask for {each} or more")
    slots = [name for name, ranks in named for _ in range(ranks)]
    groups = []
    for start in range(0, workers - each + 1, each):
        own = tuple(Counter(slots[start : start + each]).items())
        max_ranks = max((slots.count(name) for name, _ in own), default=None if slurm else workers)
        before = slots[:start].count(slots[start]) if slots else 0 if slurm else start
        groups.append(Placement(ranks=each, hosts=own, slurm=slurm, max_ranks_per_host=max_ranks, ranks_before=before))
    return groups


def hosts_named(text: str, workers: int | None) -> list[tuple[str, int]]:
    """Hosts and the ranks of each; hosts without a number share the remaining ranks evenly.

    >>> hosts_named("a,b,c:4", 8)
    [('a', 2), ('b', 2), ('c', 4)]

    Raises:
        RecipeError: a name or a number is missing, or they do not add up to `workers`.
    """
    way_out = "write --hosts a,b or a:4,b:4, with -n the ranks of all of them"
    parts = [part.strip().partition(":") for part in text.split(",")]
    if not all(name and (number.isdecimal() and int(number) > 0 if colon else True) for name, colon, number in parts):
        raise refused("--hosts", f"{text!r} is no list of hosts, each with a number of ranks or none", way_out)
    if len({name for name, _, _ in parts}) < len(parts):
        raise refused("--hosts", f"{text!r} names a host twice", way_out)
    given = sum(int(number) for _, _, number in parts if number)
    num_open = sum(1 for _, _, number in parts if not number)
    if num_open and workers is None:
        raise refused("--hosts", f"{text!r} does not say how many ranks run on each host", way_out)
    left = 0 if workers is None else workers - given
    if left % num_open or left < num_open if num_open else left:
        raise refused("--hosts", f"the hosts {text} do not add up to {workers} ranks", way_out)
    return [(name, int(number) if number else left // num_open) for name, _, number in parts]
