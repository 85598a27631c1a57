"""A run of a trial: the request that a group of ranks trains, its reports, and how it ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from recipes.schema import Search
from recipes.schema.positions import last_multiple
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.request import Prepared, TrainRequest
from trainers.runs.progress import Tail
from trainers.runs.run_folder import LOG, METRICS, RUN
from trainers.runs.stop_request import STOP_FILE, request_stop
from trainers.search.group import Group, RunEnd
from trainers.search.outcome import metrics_lines


@dataclass(frozen=True, kw_only=True)
class SearchRequest:
    """The command line of `kilobatch search`; what is searched is in the search's file.

    Args:
        joined: set by rank 0 of a foreign launcher for its supervisor: see `launched_groups`.
        hang_seconds: a trial without an update for this long is ended.
    """

    search: str
    workers: int | None = None
    hosts: str | None = None
    joined: str | None = None
    out: Path | None = None
    resume: bool = False
    dry_run: bool = False
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None
    storage: str | None = None
    study: str | None = None


def trial_request(
    opened: OpenedSearch,
    number: int,
    values: Mapping[str, Any],
    folder: Path,
    options: SearchRequest,
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
        end = self.group.ended(self.folder / LOG)
        self._ended = end is not None
        return end

    def close(self) -> None:
        """Close the files."""
        self._tail.close()


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
