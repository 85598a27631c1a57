"""Confirmation: the best trials once more, with seeds that no trial had. The best mean of these runs wins."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from optuna.trial import FrozenTrial

from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.request import prepare
from trainers.search.outcome import has_ended, metrics_lines, trial_result
from trainers.search.rank_groups import Group
from trainers.search.trial_run import SearchOptions, TrialRun, trial_request
from trainers.search.wording import metric_name, shown

CONFIRM = "confirm"  # in the search's folder: trial-0007/seed-1000, ...
_FRESH = 1000  # added to the recipe's seed: far from those of `seeds_per_trial`
# Quantiles 0.975 of Student's distribution for 1 to 10 degrees of freedom; with more the last makes an interval a
# little too wide.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A trial's recipe, trained again on fresh seeds: the objective of each, their mean and its 95 % interval."""

    trial: int
    values: tuple[float, ...]
    mean: float
    low: float
    high: float


@dataclass(kw_only=True)
class _Job:
    trial: FrozenTrial
    seed: int
    folder: Path
    deaths: int = 0
    run: TrialRun | None = None

    @property
    def name(self) -> str:
        return f"trial {self.trial.number} with seed {self.seed}"


class Confirmation:
    """The runs that confirm a search's best trials; those that an earlier session has ended are not repeated.

    Args:
        opened: the search.
        best: the trials, the best first.
        options: of the search.
        say: what happens.
    """

    def __init__(
        self, opened: OpenedSearch, best: Sequence[FrozenTrial], options: SearchOptions, say: Callable[[str], None]
    ) -> None:
        self.opened, self.search, self.options, self._say = opened, opened.search, options, say
        seed = opened.base.recipe.seed + _FRESH
        jobs = [
            _Job(trial=trial, seed=own, folder=options.folder / CONFIRM / f"trial-{trial.number:04d}" / f"seed-{own}")
            for own in range(seed, seed + opened.search.confirm.seeds)
            for trial in best
        ]
        self._waiting = [job for job in jobs if not _is_over(job.folder)]
        self._running: list[_Job] = []

    @property
    def done(self) -> bool:
        """Whether all runs have ended."""
        return not self._waiting and not self._running

    def work(self, groups: Sequence[Group]) -> None:
        """See which runs have ended, and begin others on the groups that are free."""
        for job in list(self._running):
            end = job.run.ended()
            job.run.new_reports()
            if end is None:
                continue
            job.run.close()
            self._running.remove(job)
            if end.how in ("died", "not_started") and job.deaths < self.search.retries:
                job.deaths += 1
                self._waiting.append(job)
            elif end.how != "success":
                self._say(f"confirming {job.name}: {end.reason or end.how}")
        busy = {job.run.group.number for job in self._running}
        for group in groups:
            if self._waiting and group.number not in busy:
                self._begin(self._waiting.pop(0), group)

    def request_stop(self) -> None:
        """All runs end after their update, with a checkpoint; the next session goes on with them."""
        self._waiting.clear()
        for job in self._running:
            job.run.request_stop()

    def _begin(self, job: _Job, group: Group) -> None:
        values = job.trial.params
        request = trial_request(self.opened, job.trial.number, values, job.folder, self.options, seed=job.seed)
        prepared = prepare(request, workers=self.search.ranks_per_trial)
        job.folder.mkdir(parents=True, exist_ok=True)
        job.run = TrialRun(group, request, prepared, metric="accuracy", reports=self.search.reports)
        self._running.append(job)
        self._say(f"confirming {job.name}")


def confirmed_in(folder: Path, search: Search) -> list[Confirmed]:
    """What the runs in a search's folder confirm, the best mean first; trials with fewer than two runs are left out."""
    confirmed = []
    for trial in sorted((folder / CONFIRM).glob("trial-*")):
        values = tuple(_score(run, search) for run in sorted(trial.glob("seed-*")) if _is_over(run))
        if len(values) > 1:
            mean, half, number = fmean(values), _half_width(values), int(trial.name.removeprefix("trial-"))
            confirmed.append(Confirmed(trial=number, values=values, mean=mean, low=mean - half, high=mean + half))
    sign = -1 if search.objectives[0].direction == "maximize" else 1
    return sorted(confirmed, key=lambda one: (sign * one.mean, one.trial))


def confirmed_text(search: Search, confirmed: Confirmed) -> str:
    """A confirmed trial in words: '98.40 % (97.90 % to 98.90 %) by 5 fresh seeds'."""
    metric = search.objectives[0].metric
    mean, low, high = (shown(metric, value) for value in (confirmed.mean, confirmed.low, confirmed.high))
    return f"{mean} ({low} to {high}) by {len(confirmed.values)} fresh seeds"


def confirmed_rows(search: Search, confirmed: Sequence[Confirmed]) -> list[dict[str, str]]:
    """The table of confirmed trials, on the page and on the terminal: a row each, by column."""
    metric = search.objectives[0].metric
    return [
        {
            "trial": str(one.trial),
            f"mean {metric_name(metric)}": shown(metric, one.mean),
            "95 % interval": f"{shown(metric, one.low)} to {shown(metric, one.high)}",
            f"{len(one.values)} fresh seeds": ", ".join(shown(metric, value) for value in one.values),
        }
        for one in confirmed
    ]


def _is_over(folder: Path) -> bool:
    return has_ended(folder, "success") or has_ended(folder, "failed")


def _score(folder: Path, search: Search) -> float:
    if has_ended(folder, "failed"):  # it diverged
        return search.objectives[0].worst
    return float(trial_result(search, [metrics_lines(folder)], {}, device_hours=math.nan).values[0])


def _half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean."""
    if not all(map(math.isfinite, values)):
        return math.inf
    quantile = _STUDENT[min(len(values) - 1, len(_STUDENT)) - 1]
    return quantile * stdev(values) / math.sqrt(len(values))
