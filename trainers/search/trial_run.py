"""A run of a trial: the request that a group of ranks trains, its reports, and how it ended."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from recipes.schema.positions import last_multiple
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.progress import Tail
from trainers.runs.run_folder import ENVIRONMENT, LOG, METRICS, RUN
from trainers.runs.stop_request import STOP_FILE, request_stop
from trainers.search.outcome import metrics_lines
from trainers.search.rank_groups import Group

_EXIT_PYTHON = 1  # an exception before the ranks had joined in MPI
_FAILED_RANK = re.compile(r"^rank (\d+) on \S+ failed:$", re.MULTILINE)
_NAMED_RANK = re.compile(r"rank (\d+) ")
_WATCHDOG = "; --watchdog allows "
_KILLED = re.compile(r"PID (\d+) RUNNING AT")


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is executed; what is searched is in its file.

    Args:
        folder: of the search.
        stop_file: when this file appears, the search stops.
        hang_seconds: a trial without an update for this long is ended.
        cluster, device: as for `train`.
    """

    folder: Path
    stop_file: Path
    hang_seconds: float = 600.0
    cluster: str | None = None
    device: str | None = None


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: dict[str, Any],
    folder: Path,
    options: SearchOptions,
    *,
    seed: int | None = None,
) -> TrainRequest:
    """The training request of one of a trial's runs.

    Args:
        opened: the search.
        number: of the trial.
        values: path -> the trial's value.
        folder: of the run, which is resumed if the folder has one.
        options: of the search.
        seed: of the run; None for the trial's own.
    """
    search, report = opened.search, f"{1 / opened.search.reports!r}run"
    given = {
        **search.fixed,
        **values,
        **({} if seed is None else {"seed": seed}),
        "name": f"{search.name}-trial-{number}",
        "title": f"Trial {number} of the search {search.name} over {search.recipe}",
        "evaluation.every": report,
        "claims": [],
        "card": None,
    }
    return TrainRequest(
        recipe=os.fspath(opened.base.path),
        overrides=tuple(assignments(given)),
        overrides_from=f"search {search.name} trial {number}",
        out=folder,
        resume=(folder / RUN).exists(),
        checkpoint_every=report,
        data=opened.options["data_root"],
        allow_code=opened.options["allow_code"],
        cluster=options.cluster,
        device=options.device,
    )


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
        how: `success`; `stopped` on request; `diverged`, its numbers were no longer finite; `failed` by an error that a
            retry would meet again; `died`: a rank was killed, crashed or left without an error; or `not_started`: the
            launcher or the system did not start the ranks.
        reason: in words, where it is not success.
        rank: that failed or died; None where it is not known.
        update: at which it diverged.
    """

    how: Literal["success", "stopped", "diverged", "failed", "died", "not_started"]
    reason: str = ""
    rank: int | None = None
    update: int | None = None


class TrialRun:
    """A run that a group of ranks trains; creating it begins the run.

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
        self.began = self.last_news = time.monotonic()
        self.update = 0
        # All lines of a new run are new, whatever the clock of the host that writes them says.
        self._tail = Tail(self.folder / METRICS, int(self.began_at * 1000) if request.resume else 0)
        self._ended = False
        group.train(request)

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def new_reports(self) -> list[Report]:
        """Reports since the last call."""
        lines = self._tail.lines(ended=self._ended)
        if lines:
            self.last_news = time.monotonic()
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
        """How it ended; None while it runs."""
        code = self.group.poll()  # before the result: ranks may write it and then end
        result = self.group.result()
        if result is None and code is None:
            return None
        self._ended = True
        if result is not None:
            return RunEnd(**result)
        assert code is not None
        errors, log = self.group.output()
        with open(self.folder / LOG, "a", encoding="utf-8") as file:  # to which the ranks wrote the rest
            file.write(errors)
        return self._failure_of_ranks(code, errors, log)

    def close(self) -> None:
        """Close the files."""
        self._tail.close()

    def _failure_of_ranks(self, code: int, errors: str, log: str) -> RunEnd:
        if self.group.never_joined:
            own = [line for line in (*errors.splitlines(), *log.splitlines()) if line.startswith("kilobatch: ")]
            words = own[:1] or self.group.launcher_words().splitlines()[:2]
            return RunEnd(how="not_started", reason=" | ".join(words) or _failure(errors).reason)
        if code in (_EXIT_PYTHON, EXIT_FAILED, EXIT_INPUT):
            return _failure(errors)
        if code == 0:
            rank = self.group.first_exit()
            who = "a rank" if rank is None else f"rank {rank}"
            words = self.group.launcher_words().splitlines()  # of a node that died
            reason = words[0] if words else f"{who} left before the run ended, without an error of its own"
            return RunEnd(how="died", reason=reason, rank=rank)
        return self._death(code, log)

    def _death(self, code: int, log: str) -> RunEnd:
        """Which rank a signal ended: as seen here, else by the process that mpiexec names, which the run has noted."""
        # mpiexec returns a signal's number, srun 128 more, as a shell does; below 0 it ended mpiexec itself.
        number = -code if code < 0 else code % 128
        known = number in {member.value for member in signal.Signals}
        by = f"by {signal.Signals(number).name}" if known else f"with code {code}"
        if code < 0:
            return RunEnd(how="died", reason=f"the launcher of the ranks was ended {by}")
        rank = self.group.first_exit()
        if rank is None:
            ranks = self._ranks_by_process()
            rank = next((ranks[int(pid)] for pid in _KILLED.findall(log) if int(pid) in ranks), None)
        return RunEnd(how="died", reason=f"{'a rank' if rank is None else f'rank {rank}'} was ended {by}", rank=rank)

    def _ranks_by_process(self) -> dict[int, int]:
        try:
            ranks = json.loads((self.folder / ENVIRONMENT).read_text(encoding="utf-8"))["ranks"]
            return {entry.get("pid"): entry["rank"] for entry in ranks}
        except (OSError, ValueError, LookupError):
            return {}


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


def _failure(errors: str) -> RunEnd:
    """The cause in what the ranks wrote to stderr: the last line of the first traceback of a rank, or our own line."""
    failed = _FAILED_RANK.search(errors)
    if failed:
        trace = _FAILED_RANK.split(errors[failed.start() :])[2]
        return RunEnd(how="failed", reason=_exception_line(trace), rank=int(failed[1]))
    ours = [line.removeprefix("kilobatch: ") for line in errors.splitlines() if line.startswith("kilobatch: ")]
    if ours and _WATCHDOG in errors:  # the ranks' own watchdog
        named = _NAMED_RANK.match(ours[0])
        return RunEnd(how="died", reason=ours[0].rstrip(":"), rank=named and int(named[1]))
    return RunEnd(how="failed", reason=ours[0] if ours else _exception_line(errors))


def _exception_line(trace: str) -> str:
    """The line of a traceback that names the exception, without what MPI writes after it."""
    lines = [line for line in trace.splitlines() if line.strip() and not line.startswith((" ", "Abort", "="))]
    return lines[-1] if lines else "the ranks ended without a word"
