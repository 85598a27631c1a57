"""The options of `kilobatch search` that are not in the search's file.

What a search has spent of its hours and device-hours.

Reports and endings of trials, told to the study, the display and the search's folder.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from recipes.schema import Objective, Search
from recipes.search_space.open_search import OpenedSearch
from trainers.launch.request import Prepared
from trainers.search import study as studies
from trainers.search.best import write_best
from trainers.search.comparability import note_costs
from trainers.search.display import Display
from trainers.search.rank_groups import Report, RunEnd, TrialRun, metrics_lines, reports_in
from trainers.search.study import TrialResult, outcome
from trainers.search.successive_halving import is_whole


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is executed; what is searched is in its file.

    Args:
        folder: of the search.
        stop_file: when this file appears, the search stops.
        hang_seconds: a trial without an update for this long is ended.
        data: folder of the data set's files.
        allow_code, cluster, device: as for `train`.
    """

    folder: Path
    stop_file: Path
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False
    cluster: str | None = None
    device: str | None = None


class UsedBudget:
    """Hours of all sessions of a search, and device-hours of all its trials.

    Args:
        search: with the budget.
        study: stores both, for all supervisors that share it.
    """

    def __init__(self, search: Search, study: optuna.Study) -> None:
        self._search, self._study = search, study
        self._session = uuid.uuid4().hex
        self._before, self._since = studies.spent_seconds(study), time.monotonic()

    def over(self, working_seconds: float) -> bool:
        """Whether the hours or device-hours are spent, so that no further trial may begin.

        Args:
            working_seconds: of all trials that run now, since they were given to their ranks.
        """
        budget = self._search.budget
        if budget.hours is not None and self._seconds() >= 3600 * budget.hours:
            return True
        return budget.device_hours is not None and self._device_hours(working_seconds) >= budget.device_hours

    def note(self) -> None:
        """Store how long this session has worked, and read the times of the others that share the study."""
        studies.store_spent_seconds(self._study, time.monotonic() - self._since, session=self._session)
        self._before = studies.spent_seconds(self._study, besides=self._session)

    def _seconds(self) -> float:
        return self._before + time.monotonic() - self._since

    def _device_hours(self, working_seconds: float) -> float:
        trials = self._study.get_trials(deepcopy=False)
        told = sum(trial.user_attrs.get(studies.SECONDS, 0.0) for trial in trials)
        return self._search.ranks_per_trial * (told + working_seconds) / 3600


class TrialRecorder:
    """Records what happens to the trials of one search.

    Args:
        opened: the search.
        study: of `open_study`.
        options: of the search.
        display: what the user sees.
        done: called with a trial that has ended, before the study is told.
    """

    def __init__(
        self,
        opened: OpenedSearch,
        study: optuna.Study,
        options: SearchOptions,
        display: Display,
        *,
        done: Callable[[optuna.Trial], None],
    ) -> None:
        self.opened, self.search, self.study = opened, opened.search, study
        self.options, self.display, self._done = options, display, done
        objective = self.search.reported or Objective()  # the default is for the display only
        self.reporting = {"metric": objective.metric, "reports": self.search.reports}

    def reported_before(self, trial: optuna.Trial, folder: Path, prepared: Prepared) -> set[int]:
        """Numbers of the reports of earlier sessions; those in the run's folder only are told to the study now."""
        known = set(self.study._storage.get_trial(trial._trial_id).intermediate_values)
        for report in reports_in(metrics_lines(folder), prepared, **self.reporting):
            if report.number not in known:
                known.add(report.number)
                self.report(trial, report)
        return known

    def report(self, trial: optuna.Trial, report: Report) -> None:
        """Report to the study; not with several objectives, for which Optuna takes no reports."""
        if self.search.reported is not None:
            trial.report(report.value, report.number)

    def ran(self, trial: optuna.Trial, job: TrialRun) -> None:
        """Store the total seconds of a trial with a job that has ended, and which group had it when."""
        before = trial.user_attrs.get(studies.SECONDS, 0.0)
        trial.set_user_attr(studies.SECONDS, round(before + job.seconds, 2))
        stretch = [job.group.number, round(job.began_at, 3), round(time.time(), 3)]
        trial.set_user_attr(studies.WORKED, [*trial.user_attrs.get(studies.WORKED, []), stretch])

    def costs(self, trial: optuna.Trial, job: TrialRun) -> None:
        """Store what each report of a trial's first run has cost."""
        note_costs(trial, metrics_lines(job.folder), job.prepared.opened.recipe, self.search)

    def complete(self, trial: optuna.Trial, folders: Sequence[Path], prepared: Prepared) -> None:
        """Tell the outcome of a trial whose runs have all ended."""
        hours = self.search.ranks_per_trial * trial.user_attrs.get(studies.SECONDS, 0.0) / 3600
        runs = [metrics_lines(folder) for folder in folders]
        try:
            found = outcome(self.search, runs, prepared.opened.tree, device_hours=hours)
        except ValueError as error:
            self.failed(trial, RunEnd(how="failed", reason=str(error)))
            return
        self._done(trial)
        told = studies.tell_complete(self.study, trial, found)
        state = found.state if is_whole(told) else "short"
        self._say_ended(trial.number, state, values=found.values, reason=found.broken)
        options = {"data": self.options.data, "allow_code": self.options.allow_code}
        write_best(self.options.folder, self.opened, self.study, told, **options)

    def infeasible(self, trial: optuna.Trial, found: TrialResult) -> None:
        """End a trial, untrained, whose values violate a constraint."""
        reason = f"not trained: {found.broken}"
        trial.set_user_attr(studies.REASON, reason)
        studies.store_constraints(trial, found)
        self._done(trial)
        self.study.tell(trial, state=TrialState.PRUNED)
        self._say_ended(trial.number, found.state, reason=reason)

    def pruned(self, trial: optuna.Trial, number: int) -> None:
        """Tell that a trial was pruned after report `number`."""
        trial.set_user_attr(studies.REASON, f"pruned at report {number} of {self.search.reports}")
        self._done(trial)
        self.study.tell(trial, state=TrialState.PRUNED)
        self._say_ended(trial.number, "pruned", reason=f"at report {number} of {self.search.reports}")

    def failed(self, trial: optuna.Trial, ending: RunEnd) -> None:
        """Tell that a trial could not be trained to its end."""
        trial.set_user_attr(studies.REASON, ending.reason)
        if ending.rank is not None:
            trial.set_user_attr(studies.RANK, ending.rank)
        self._done(trial)
        self.study.tell(trial, state=TrialState.FAIL)
        self._say_ended(trial.number, "failed", reason=ending.reason)

    def _say_ended(self, number: int, state: str, **words: Any) -> None:
        """Display an ending, together with the trials that other supervisors of the study have ended meanwhile."""
        self.display.know(self.study.get_trials(deepcopy=False))
        self.display.ended(number, state, **words)

    def may_retry(self, trial: optuna.Trial, ending: RunEnd) -> bool:
        """Note that a trial's ranks died; False if that was once too often, and the trial has failed."""
        reason = ending.reason or "the run was stopped"
        deaths = [*trial.user_attrs.get(studies.DEATHS, []), reason]
        trial.set_user_attr(studies.DEATHS, deaths)
        if len(deaths) <= self.search.retries:
            self.display.say(f"trial {trial.number}: {reason}; it goes on from its last checkpoint")
            return True
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        self.failed(trial, RunEnd(how="failed", reason=f"{reason}; ended {times} before its run did", rank=ending.rank))
        return False
