"""A run of a trial: the request that a group of ranks trains, its reports, and how it ended."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from recipes.schema import Search
from recipes.schema.positions import last_multiple
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.progress import Tail
from trainers.runs.run_folder import LOG, METRICS, RUN
from trainers.runs.stop_request import STOP_FILE, request_stop
from trainers.search.outcome import metrics_lines
from trainers.search.rank_groups import Group

_EXIT_PYTHON = 1  # an exception before the ranks had joined in MPI
_FAILED_RANK = re.compile(r"^rank (\d+) on \S+ failed:$", re.MULTILINE)
_NAMED_RANK = re.compile(r"rank (\d+) ")
_WATCHDOG = "; --watchdog allows "


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is executed; what is searched is in its file.

    Args:
        folder: of the search.
        hang_seconds: a trial without an update for this long is ended.
        cluster, device: as for `train`.
    """

    folder: Path
    hang_seconds: float = 600.0
    cluster: str | None = None
    device: str | None = None


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: Mapping[str, Any],
    folder: Path,
    options: SearchOptions,
    *,
    seed: int | None = None,
) -> TrainRequest:
    """The request to train trial `number` in `folder`, or to resume it; `seed` replaces that of the trial's recipe."""
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
    """A score at a point of a trial's own run; `number` counts from 1 to the search's `reports`, the end of the run."""

    number: int
    value: float


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
    """A run that a group of ranks trains; creating it begins the run, whose folder exists.

    Args:
        group, request, prepared: whose ranks train it, what, and the same checked.
        search: with the objective that is reported.
    """

    def __init__(self, group: Group, request: TrainRequest, prepared: Prepared, search: Search) -> None:
        assert request.out is not None
        self.group, self.folder, self.prepared = group, request.out, prepared
        self._search = search
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        self.began = self.last_news = time.monotonic()
        self.update = 0
        # All lines of a new run are new, whatever the clock of the host that writes them says.
        self._tail = Tail(self.folder / METRICS, int(time.time() * 1000) if request.resume else 0)
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
        if any(line["key"] == "eval_accuracy" for line in lines):
            lines = metrics_lines(self.folder)  # a mean over updates needs all of them
        return list(reports_in(lines, self.prepared, self._search))

    def request_stop(self) -> None:
        """All ranks end the run after the same update, with a checkpoint."""
        request_stop(self.folder / STOP_FILE, "search")

    def ended(self) -> RunEnd | None:
        """How it ended; None while it runs."""
        code = self.group.poll()  # before the result: ranks may write it and then end
        result = self.group.result()
        if result is None and code is None:
            return None
        self._ended = True
        if result is not None:
            return RunEnd(**result)
        errors, log = self.group.output()
        with open(self.folder / LOG, "a", encoding="utf-8") as file:  # to which the ranks wrote the rest
            file.write(errors)
        return self._end_without_result(code, errors, log)

    def close(self) -> None:
        """Close the files."""
        self._tail.close()

    def _end_without_result(self, code: int, errors: str, log: str) -> RunEnd:
        """By the launcher's exit code: of a signal mpiexec returns the number, srun 128 more, as a shell does."""
        words = self.group.launcher_words().splitlines()
        if self.group.never_joined:
            own = [line for line in (*errors.splitlines(), *log.splitlines()) if line.startswith("kilobatch: ")]
            return RunEnd(how="not_started", reason=" | ".join(own[:1] or words[:2]) or _failure(errors).reason)
        if code in (_EXIT_PYTHON, EXIT_FAILED, EXIT_INPUT):
            return _failure(errors)
        rank = self.group.first_exit()
        who = "a rank" if rank is None else f"rank {rank}"
        number = -code if code < 0 else code % 128
        known = number in {member.value for member in signal.Signals}
        by = f"by {signal.Signals(number).name}" if known else f"with code {code}"
        if code < 0:
            return RunEnd(how="died", reason=f"the launcher of the ranks was ended {by}")
        if code == 0:  # the launcher has words where a node died
            reason = words[0] if words else f"{who} left before the run ended, without an error of its own"
            return RunEnd(how="died", reason=reason, rank=rank)
        return RunEnd(how="died", reason=f"{who} was ended {by}", rank=rank)


def reports_in(lines: Iterable[Mapping[str, Any]], prepared: Prepared, search: Search) -> Iterable[Report]:
    """The reports among all lines of a run's metrics, each at the last point of the run that its update reached.

    The score is that of the search's objective, of a target the accuracy; or the training loss, as a mean over the
    updates since the report before. With several objectives it is the accuracy, for the display.
    """
    every, whole = prepared.opened.recipe.evaluation.every, prepared.plan.timeline.num_updates
    metric = search.reported.metric if search.reported and not search.has_goal else "accuracy"
    key = "eval_accuracy" if metric == "train_loss" else f"eval_{metric}"
    losses: list[float] = []
    for line in lines:
        if line.get("key") == "train_loss":
            losses.append(line["value"])
        elif line.get("key") == key:
            passed = round(last_multiple(line["epoch"], every) / every)
            number = search.reports if line["update"] == whole else min(passed, search.reports)
            yield Report(number=number, value=fmean(losses) if metric == "train_loss" else line["value"])
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
