"""Confirmation: the best trials once more, with seeds that no trial had. The best mean of these runs wins."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist, fmean, stdev

from optuna.trial import FrozenTrial

from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.request import prepare
from trainers.search.display import Confirmed, Display, shown
from trainers.search.outcome import has_succeeded, metrics_lines, trial_result
from trainers.search.rank_groups import Group
from trainers.search.trial_run import SearchOptions, TrialRun, trial_request

CONFIRM = "confirm"  # in the search's folder: trial-0007/seed-1000, ...
_FRESH = 1000  # added to the recipe's seed: far from those of `seeds_per_trial`
# Quantiles 0.975 of Student's distribution for 1 to 10 degrees of freedom; beyond, its expansion about the normal one.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


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
        display: says what happens.
    """

    def __init__(
        self, opened: OpenedSearch, best: Sequence[FrozenTrial], options: SearchOptions, display: Display
    ) -> None:
        self.opened, self.search, self.options, self.display = opened, opened.search, options, display
        seed, confirm = opened.base.recipe.seed, opened.search.confirm
        jobs = [
            _Job(trial=trial, seed=own, folder=options.folder / CONFIRM / f"trial-{trial.number:04d}" / f"seed-{own}")
            for own in range(seed + _FRESH, seed + _FRESH + confirm.seeds)
            for trial in best
        ]
        self._waiting = [job for job in jobs if not _has_ended(job.folder)]
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
                self.display.say(f"confirming {job.name}: {end.reason or end.how}")
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
        request = trial_request(
            self.opened, job.trial.number, job.trial.params, job.folder, self.options, seed=job.seed
        )
        prepared = prepare(request, workers=self.search.ranks_per_trial)
        job.folder.mkdir(parents=True, exist_ok=True)
        job.run = TrialRun(group, request, prepared, metric="accuracy", reports=self.search.reports)
        self._running.append(job)
        self.display.say(f"confirming {job.name}")


def confirmed_in(folder: Path, search: Search) -> list[Confirmed]:
    """What the runs in a search's folder confirm, the best mean first; trials with fewer than two runs are left out."""
    confirmed = []
    for trial in sorted((folder / CONFIRM).glob("trial-*")):
        values = tuple(_score(run, search) for run in sorted(trial.glob("seed-*")) if _has_ended(run))
        if len(values) > 1:
            mean, half = fmean(values), _half_width(values)
            number = int(re.sub(r"\D", "", trial.name))
            confirmed.append(Confirmed(trial=number, values=values, mean=mean, low=mean - half, high=mean + half))
    sign = -1 if search.objectives[0].direction == "maximize" else 1
    return sorted(confirmed, key=lambda one: (sign * one.mean, one.trial))


def confirmed_text(search: Search, confirmed: Confirmed) -> str:
    """A confirmed trial in words: '98.40 % (97.90 % to 98.90 %) by 5 fresh seeds'."""
    metric = search.objectives[0].metric
    mean, low, high = (shown(metric, value) for value in (confirmed.mean, confirmed.low, confirmed.high))
    return f"{mean} ({low} to {high}) by {len(confirmed.values)} fresh seeds"


def _has_ended(folder: Path) -> bool:
    return has_succeeded(folder) or _has_diverged(folder)


def _has_diverged(folder: Path) -> bool:
    lines = metrics_lines(folder)
    return bool(lines) and (lines[-1].get("key"), lines[-1].get("value")) == ("run_stop", "failed")


def _score(folder: Path, search: Search) -> float:
    if _has_diverged(folder):
        return search.objectives[0].worst
    return float(trial_result(search, [metrics_lines(folder)], {}, device_hours=math.nan).values[0])


def _half_width(values: Sequence[float]) -> float:
    """Half the width of the 95 % interval of the mean."""
    if not all(map(math.isfinite, values)):
        return math.inf
    freedom, z = len(values) - 1, NormalDist().inv_cdf(0.975)
    expansion = z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else expansion
    return quantile * stdev(values) / math.sqrt(len(values))

