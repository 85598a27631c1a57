"""A run that a group was given: what its ranks report, and how it ended."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from recipes.positions import last_multiple
from trainers.faults import EXIT_FAILED, EXIT_INPUT
from trainers.launch import LaunchError
from trainers.progress import Tail
from trainers.request import Prepared, TrainRequest
from trainers.run_folder import ENVIRONMENT, LOG, METRICS
from trainers.search.group import Group
from trainers.stopping import STOP_FILE, ask_to_stop

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
class Ending:
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


class Job:
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

    def ask_to_stop(self) -> None:
        """All ranks end the run after the same update, with a checkpoint."""
        ask_to_stop(self.folder / STOP_FILE, "search")

    def kill(self) -> None:
        """All ranks end at once, also one that hangs."""
        self.group.kill()

    def ended(self) -> Ending | None:
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
            return Ending(**answer)
        assert code is not None
        errors, said = self.group.last_words()
        with open(self.folder / LOG, "a", encoding="utf-8") as file:  # to which the ranks wrote the rest
            file.write(errors)
        return self._failure_of_ranks(code, errors, said)

    def close(self) -> None:
        """Close the files."""
        self._tail.close()

    def _failure_of_ranks(self, code: int, errors: str, said: str) -> Ending:
        if code in (_EXIT_PYTHON, EXIT_FAILED, EXIT_INPUT):
            failure = _failure(errors)
            if code == EXIT_INPUT and failure.rank is None:  # they could not begin, nor could those of another trial
                raise LaunchError(failure.reason)
            return failure
        if code == 0:
            rank = self.group.first_to_leave()
            who = "a rank" if rank is None else f"rank {rank}"
            reason = f"{who} left before the run ended, without an error of its own"
            return Ending(how="died", reason=reason, rank=rank)
        if code == _EXIT_LAUNCHER and self.group.num_starts == 1 and self.heard == self.began:
            # Else this group would be given one trial after the other, and each would fail within a second.
            first = next((line for line in (*said.splitlines(), *errors.splitlines()) if line.strip()), "no word")
            what = f"mpiexec could not start the ranks of group {self.group.number}: {first}"
            raise LaunchError(f"{what}; mend that, and the same command goes on; all it said: {self.group.log}")
        return self._death(code, said)

    def _death(self, code: int, said: str) -> Ending:
        """Which rank a signal ended: as seen here, else by the process that mpiexec names, which the run has noted."""
        # mpiexec returns a signal's number, srun 128 more, as a shell does; below 0 it ended mpiexec itself.
        number = -code if code < 0 else code % 128
        known = number in {member.value for member in signal.Signals}
        by = f"by {signal.Signals(number).name}" if known else f"with code {code}"
        if code < 0:
            return Ending(how="died", reason=f"the launcher of the ranks was ended {by}")
        rank = self.group.first_to_leave()
        if rank is None:
            ranks = {entry.get("pid"): entry["rank"] for entry in _hosts(self.folder)}
            rank = next((ranks[int(pid)] for pid in _KILLED.findall(said) if int(pid) in ranks), None)
        return Ending(how="died", reason=f"{'a rank' if rank is None else f'rank {rank}'} was ended {by}", rank=rank)


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


def _failure(errors: str) -> Ending:
    """The cause in what the ranks wrote to stderr: the last line of the first traceback of a rank, or our own line."""
    found = _FAILED_RANK.search(errors)
    if found:
        trace = _FAILED_RANK.split(errors[found.start() :])[2]
        return Ending(how="failed", reason=_last_said(trace), rank=int(found[1]))
    ours = [line.removeprefix("kilobatch: ") for line in errors.splitlines() if line.startswith("kilobatch: ")]
    if ours and _STOOD_STILL in errors:  # the ranks' own watchdog
        named = _NAMED_RANK.match(ours[0])
        return Ending(how="died", reason=ours[0].rstrip(":"), rank=named and int(named[1]))
    return Ending(how="failed", reason=ours[0] if ours else _last_said(errors))


def _last_said(trace: str) -> str:
    """The line of a traceback that names the exception, without what MPI writes after it."""
    said = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "Abort", "="))]
    return said[-1] if said else "the ranks ended without a word"


def _hosts(folder: Path) -> list[dict[str, Any]]:
    try:
        return json.loads((folder / ENVIRONMENT).read_text(encoding="utf-8"))["ranks"]
    except (OSError, ValueError, LookupError):
        return []
