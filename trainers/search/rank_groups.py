"""A group of ranks as the supervisor sees it: one MPI job that trains one run after another.

A run that a group was given: what its ranks report, and how it ended.

Messages between a supervisor and the ranks of a group: lines of JSON in files on a shared file system.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Protocol

from recipes.schema.positions import last_multiple
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.mpi_ranks import LaunchError, start_ranks, users_environment
from trainers.runs.progress import Tail
from trainers.runs.run_folder import ENVIRONMENT, LOG, METRICS
from trainers.runs.stop_request import STOP_FILE, request_stop
from trainers.search.hosts import Placement, launcher

ORDERS, ANSWERS = "orders.jsonl", "answers.jsonl"
HEARTBEAT_SECONDS = 10.0  # how often a supervisor touches each group's orders, its heartbeat
_GONE_SECONDS = 120.0  # without a heartbeat the writer is taken for dead


def write_message(path: Path, message: Mapping[str, Any]) -> None:
    """Append a message to a file, which is made if there is none."""
    with open(path, "ab") as file:
        file.write(json.dumps(message).encode() + b"\n")


class MessageReader:
    """Reads the messages of a file, each once, in order.

    The file is reopened for every read: over NFS that is the only way to see what another host has written.

    Args:
        path: of the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._read = path, 0
        self._sign: float | None = None
        self._seen = time.monotonic()

    def new(self) -> list[dict[str, Any]]:
        """The messages since the last call."""
        try:
            with open(self._path, "rb") as file:
                self._notice(os.fstat(file.fileno()).st_mtime)
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        return [json.loads(line) for line in whole.splitlines()]

    @property
    def silent(self) -> bool:
        """Whether the writer is taken for dead: the file existed, and was not written or touched for two minutes."""
        return self._sign is not None and time.monotonic() - self._seen > _GONE_SECONDS

    def _notice(self, sign: float) -> None:
        if sign != self._sign:  # its age is measured by this process's clock: clocks of hosts differ
            self._sign, self._seen = sign, time.monotonic()


JOBS = "jobs"  # in the search's folder: a folder for each group
_LAST_SECONDS = 10.0  # for dismissed ranks to end by themselves


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
        start: (folder for orders and answers, log) -> the ranks, started.
        talk: name of the folder for orders and answers, for ranks that run already; else each start has a new one, so
            that ranks of an earlier start cannot read its orders.
    """

    def __init__(
        self, number: int, folder: Path, start: Callable[[Path, Path], MpiJob], *, talk: str | None = None
    ) -> None:
        self.number, self.folder = number, group_folder(folder, number)
        self.log = self.folder / LOG
        self.num_starts = 0
        self._start, self._talk_name = start, talk
        self._talk = self.folder
        self._job: MpiJob | None = None
        self._killed = False
        self._answers = MessageReader(self._talk / ANSWERS)
        self._num_errors, self._log_start, self._signed = 0, 0, 0.0

    def give(self, request: TrainRequest) -> None:
        """Have a run trained; the previous one must have been answered, or its ranks have ended."""
        if self._killed:
            self.wait()
        if self._job is None or self._job.poll() is not None:
            self._begin()
        assert self._job is not None
        self._num_errors, self._log_start = self._job.num_errors(), _size(self.log)
        self._answers.new()
        write_message(self._talk / ORDERS, {"train": request.as_tree()})

    def answer(self) -> dict[str, Any] | None:
        """How the last run given has ended; None while its ranks have not answered."""
        return next(iter(self._answers.new()), None)

    def poll(self) -> int | None:
        """The exit code of the ranks; None while they run."""
        assert self._job is not None, "a run was given"
        return self._job.poll()

    def kill(self) -> None:
        """End the ranks at once, also one that hangs."""
        self._killed = True
        if self._job is not None:
            self._job.kill()

    def last_words(self) -> tuple[str, str]:
        """What ranks that have ended wrote to stderr and to the log since the last run was given."""
        assert self._job is not None, "a run was given"
        errors = self._job.errors(self._num_errors)
        with open(self.log, "rb") as file:
            file.seek(self._log_start)
            return errors, file.read().decode(errors="replace")

    def first_exit(self) -> int | None:
        """The rank that ended first, of ranks that have ended."""
        return self._job and self._job.first_exit()

    def sign(self) -> None:
        """Tell the ranks, now and then, that the supervisor lives."""
        if self._job is not None and time.monotonic() - self._signed > HEARTBEAT_SECONDS:
            self._signed = time.monotonic()
            os.utime(self._talk / ORDERS)

    def dismiss(self) -> None:
        """No more runs: the ranks end by themselves."""
        if self._talk_name is not None:  # ranks that others started and wait for; they read orders from the start
            dismiss(self.folder / self._talk_name)
            self._job = None
        elif self._job is not None and self._job.poll() is None:
            dismiss(self._talk)

    def wait(self) -> None:
        """Return when dismissed or killed ranks have ended; those that do not end in time are killed."""
        end = time.monotonic() + _LAST_SECONDS
        while self._job is not None and self._job.poll() is None:
            if time.monotonic() > end:
                self._job.kill()
                end += _LAST_SECONDS
            time.sleep(0.02)

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for old in self.folder.iterdir():
            if old.is_dir() and old.name != self._talk_name:
                shutil.rmtree(old, ignore_errors=True)
        self._talk = self.folder / (self._talk_name or f"start-{time.time_ns()}")
        self._talk.mkdir(exist_ok=True)
        for name in (ANSWERS, ORDERS):
            (self._talk / name).touch()
        self._killed = False
        self._answers, self._signed = MessageReader(self._talk / ANSWERS), time.monotonic()
        self._job = self._start(self._talk, self.log)
        self.num_starts += 1


def group_folder(folder: Path, number: int) -> Path:
    """The folder of a group, in that of a search."""
    return folder / JOBS / f"group-{number:02d}"


def dismiss(talk: Path) -> None:
    """Tell the ranks that read their orders in a folder, which need not exist yet, that no run follows."""
    talk.mkdir(parents=True, exist_ok=True)
    write_message(talk / ORDERS, {"train": None})


def rank_starter(place: Placement) -> Callable[[Path, Path], MpiJob]:
    """A function that starts the ranks of a group at a place; see `Group`."""

    def start(talk: Path, log: Path) -> MpiJob:
        words = ["search-ranks", str(talk)]
        if place.neighbours is not None:
            words += ["--ranks-here", str(place.neighbours)]
        words += ["--ranks-before", str(place.before)] if place.before else []
        environment = users_environment()  # without our thread limits: each rank sets those of its own machine
        kept = {"log": log, "outlive_us": False, "launcher": launcher(place), "environment": environment}
        return start_ranks(place.ranks, words, **kept)

    return start


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


_EXIT_PYTHON = 1  # an exception before the ranks had joined in MPI
_EXIT_LAUNCHER = 255  # of an mpiexec that cannot reach a host, or does not find its program there
_FAILED_RANK = re.compile(r"^rank (\d+) on \S+ failed:$", re.MULTILINE)
_NAMED_RANK = re.compile(r"rank (\d+) ")
_STOOD_STILL = "; --watchdog allows "
_KILLED = re.compile(r"PID (\d+) RUNNING AT")


@dataclass(frozen=True, kw_only=True)
class Report:
    """A score of a trial at a point of its own run.

    Args:
        number: of the point, from 1; the search's `reports` at the end of the run.
        value: of the objective there.
        epoch: of the point.
    """

    number: int
    value: float
    epoch: float


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended.

    Args:
        how: `success`; `stopped`, as it was asked to; `failed`, by an error that a retry would meet again; or `died`: a
            rank was killed, crashed or left without an error.
        reason: in words, where it is not success.
        rank: that failed or died; None where it is not known.
    """

    how: Literal["success", "stopped", "failed", "died"]
    reason: str = ""
    rank: int | None = None


class TrialRun:
    """A run that a group of ranks was given.

    Args:
        group: whose ranks train it.
        request: what they train; its `out` is the run's folder, which exists.
        prepared: the request, checked.
        metric: of the objective: `accuracy`, `loss` or `train_loss`.
        reports: number of points of the run at which it is evaluated.
    """

    def __init__(self, group: Group, request: TrainRequest, prepared: Prepared, *, metric: str, reports: int) -> None:
        assert request.out is not None
        self.group, self.folder, self.prepared = group, request.out, prepared
        self._metric, self._reports = metric, reports
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        self.began_at = time.time()
        self.began = self.heard = time.monotonic()
        self.update = 0
        # All lines of a new run are new, whatever the clock of the host that writes them says.
        self._tail = Tail(self.folder / METRICS, int(self.began_at * 1000) if request.resume else 0)
        self._over = False
        group.give(request)

    @property
    def seconds(self) -> float:
        """Seconds since it was given."""
        return time.monotonic() - self.began

    def new_reports(self) -> list[Report]:
        """Reports since the last call."""
        lines = self._tail.lines(ended=self._over)
        if lines:
            self.heard = time.monotonic()
            self.update = max(self.update, *(line.get("update", 0) for line in lines))
        if self._metric == "train_loss" and any(line["key"] == "eval_accuracy" for line in lines):
            lines = metrics_lines(self.folder)
        return list(reports_in(lines, self.prepared, metric=self._metric, reports=self._reports))

    def request_stop(self) -> None:
        """All ranks end the run after the same update, with a checkpoint."""
        request_stop(self.folder / STOP_FILE, "search")

    def kill(self) -> None:
        """All ranks end at once, also one that hangs."""
        self.group.kill()

    def ended(self) -> RunEnd | None:
        """How it ended; None while it runs.

        Raises:
            LaunchError: the group's ranks were refused before they had a run, or could not be started.
        """
        code = self.group.poll()  # before the answer: ranks may answer and then end
        answer = self.group.answer()
        if answer is None and code is None:
            return None
        self._over = True
        if answer is not None:
            return RunEnd(**answer)
        assert code is not None
        errors, said = self.group.last_words()
        with open(self.folder / LOG, "a", encoding="utf-8") as file:  # to which the ranks wrote the rest
            file.write(errors)
        return self._failure_of_ranks(code, errors, said)

    def close(self) -> None:
        """Close the files."""
        self._tail.close()

    def _failure_of_ranks(self, code: int, errors: str, said: str) -> RunEnd:
        if code in (_EXIT_PYTHON, EXIT_FAILED, EXIT_INPUT):
            failure = _failure(errors)
            if code == EXIT_INPUT and failure.rank is None:  # they could not begin, nor could those of another trial
                raise LaunchError(failure.reason)
            return failure
        if code == 0:
            rank = self.group.first_exit()
            who = "a rank" if rank is None else f"rank {rank}"
            reason = f"{who} left before the run ended, without an error of its own"
            return RunEnd(how="died", reason=reason, rank=rank)
        if code == _EXIT_LAUNCHER and self.group.num_starts == 1 and self.heard == self.began:
            # Else this group would be given one trial after the other, and each would fail within a second.
            first = next((line for line in (*said.splitlines(), *errors.splitlines()) if line.strip()), "no word")
            what = f"mpiexec could not start the ranks of group {self.group.number}: {first}"
            raise LaunchError(f"{what}; mend that, and the same command goes on; all it said: {self.group.log}")
        return self._death(code, said)

    def _death(self, code: int, said: str) -> RunEnd:
        """Which rank a signal ended: as seen here, else by the process that mpiexec names, which the run has noted."""
        # mpiexec returns a signal's number, srun 128 more, as a shell does; below 0 it ended mpiexec itself.
        number = -code if code < 0 else code % 128
        known = number in {member.value for member in signal.Signals}
        by = f"by {signal.Signals(number).name}" if known else f"with code {code}"
        if code < 0:
            return RunEnd(how="died", reason=f"the launcher of the ranks was ended {by}")
        rank = self.group.first_exit()
        if rank is None:
            ranks = {entry.get("pid"): entry["rank"] for entry in _hosts(self.folder)}
            rank = next((ranks[int(pid)] for pid in _KILLED.findall(said) if int(pid) in ranks), None)
        return RunEnd(how="died", reason=f"{'a rank' if rank is None else f'rank {rank}'} was ended {by}", rank=rank)


def reports_in(lines: Iterable[dict[str, Any]], prepared: Prepared, *, metric: str, reports: int) -> Iterable[Report]:
    """The reports among lines of a trial's metrics, each at the last point of the run that its update reached.

    A report of `train_loss` is its mean over the updates since the report before, so it needs all lines.
    """
    every, whole = prepared.opened.recipe.evaluation.every, prepared.plan.timeline.num_updates
    key = "eval_accuracy" if metric == "train_loss" else f"eval_{metric}"
    losses: list[float] = []
    for line in lines:
        if line.get("key") == "train_loss":
            losses.append(line["value"])
        elif line.get("key") == key:
            passed = round(last_multiple(line["epoch"], every) / every)
            number = reports if line["update"] == whole else min(passed, reports)
            value = fmean(losses) if metric == "train_loss" else line["value"]
            yield Report(number=number, value=value, epoch=line["epoch"])
            losses = []


def metrics_lines(folder: Path) -> list[dict[str, Any]]:
    """What a trial has written so far; a line cut off by a crash is left out."""
    try:
        texts = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for text in texts:
        try:
            found.append(json.loads(text))
        except ValueError:
            continue
    return found


def last_line(folder: Path) -> dict[str, Any]:
    """The last whole line of a trial's metrics; empty where there is none."""
    lines = metrics_lines(folder)
    return lines[-1] if lines else {}


def _failure(errors: str) -> RunEnd:
    """The cause in what the ranks wrote to stderr: the last line of the first traceback of a rank, or our own line."""
    found = _FAILED_RANK.search(errors)
    if found:
        trace = _FAILED_RANK.split(errors[found.start() :])[2]
        return RunEnd(how="failed", reason=_last_said(trace), rank=int(found[1]))
    ours = [line.removeprefix("kilobatch: ") for line in errors.splitlines() if line.startswith("kilobatch: ")]
    if ours and _STOOD_STILL in errors:  # the ranks' own watchdog
        named = _NAMED_RANK.match(ours[0])
        return RunEnd(how="died", reason=ours[0].rstrip(":"), rank=named and int(named[1]))
    return RunEnd(how="failed", reason=ours[0] if ours else _last_said(errors))


def _last_said(trace: str) -> str:
    """The line of a traceback that names the exception, without what MPI writes after it."""
    said = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "Abort", "="))]
    return said[-1] if said else "the ranks ended without a word"


def _hosts(folder: Path) -> list[dict[str, Any]]:
    try:
        return json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))["ranks"]
    except (OSError, ValueError, LookupError):
        return []
