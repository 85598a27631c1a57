"""Records what happens to the trials of a search: in the study (`study.tell`), on the display and in the log."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from trainers.search.display import Display
from trainers.search.study import TrialResult, trial_result
from trainers.search.successive_halving import is_whole
from trainers.search.trial_run import Report, TrialRun, metrics_lines, reports_in


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


class UsedBudget:
    """Hours of all sessions of a search, and device-hours of all its trials.

    Args:
        search: with the budget.
        study: stores both, for all supervisors that share it.
    """

    def __init__(self, search: Search, study: optuna.Study) -> None:
        self._search, self._study = search, study
        self._session = uuid.uuid4().hex
        self._other_sessions, self._began = studies.spent_seconds(study), time.monotonic()

    def is_spent(self, running_seconds: float) -> bool:
        """Whether the hours or device-hours are spent, so that no further trial may begin.

        Args:
            running_seconds: of all trials that run now, since they were given to their ranks.
        """
        budget = self._search.budget
        if budget.hours is not None:
            seconds = self._other_sessions + time.monotonic() - self._began
            if seconds >= 3600 * budget.hours:
                return True
        if budget.device_hours is None:
            return False
        trials = self._study.get_trials(deepcopy=False)
        seconds = running_seconds + sum(trial.user_attrs.get(studies.SECONDS, 0.0) for trial in trials)
        return self._search.ranks_per_trial * seconds >= 3600 * budget.device_hours

    def store(self) -> None:
        """Store how long this session has worked, and read the times of the others that share the study."""
        studies.store_spent_seconds(self._study, time.monotonic() - self._began, session=self._session)
        self._other_sessions = studies.spent_seconds(self._study, besides=self._session)


class TrialRecorder:
    """Records what happens to the trials of one search.

    Args:
        opened: the search.
        study: of `open_study`.
        options: of the search.
        display: what the user sees.
        before_tell: called with a trial that has ended, before `study.tell`.
    """

    def __init__(
        self,
        opened: OpenedSearch,
        study: optuna.Study,
        options: SearchOptions,
        display: Display,
        *,
        before_tell: Callable[[optuna.Trial], None],
    ) -> None:
        self.opened, self.search, self.study = opened, opened.search, study
        self.options, self.display, self._before_tell = options, display, before_tell
        objective = self.search.reported or Objective()  # the default is for the display only
        self.reporting = {"metric": objective.metric, "reports": self.search.reports}

    def restore_reports(self, trial: optuna.Trial, folder: Path, prepared: Prepared) -> set[int]:
        """Numbers of the reports of earlier sessions; those that are in the run's folder only are reported now."""
        numbers = set(self.study._storage.get_trial(trial._trial_id).intermediate_values)
        for report in reports_in(metrics_lines(folder), prepared, **self.reporting):
            if report.number not in numbers:
                numbers.add(report.number)
                self.report(trial, report)
        return numbers

    def report(self, trial: optuna.Trial, report: Report) -> None:
        """Report to the study; not with several objectives, for which Optuna takes no reports."""
        if self.search.reported is not None:
            trial.report(report.value, report.number)

    def store_time(self, trial: optuna.Trial, run: TrialRun) -> None:
        """Store the total seconds of a trial with a run that has ended, and which group trained it when."""
        before = trial.user_attrs.get(studies.SECONDS, 0.0)
        trial.set_user_attr(studies.SECONDS, round(before + run.seconds, 2))
        stretch = [run.group.number, round(run.began_at, 3), round(time.time(), 3)]
        trial.set_user_attr(studies.WORKED, [*trial.user_attrs.get(studies.WORKED, []), stretch])

    def store_costs(self, trial: optuna.Trial, run: TrialRun) -> None:
        """Store what each report of a trial's first run has cost: once, because every write takes milliseconds."""
        how = {"ranks": self.search.ranks_per_trial, "reports": self.search.reports}
        costs = report_costs(metrics_lines(run.folder), epochs=run.prepared.opened.recipe.epochs, **how)
        trial.set_user_attr(studies.COSTS, costs)

    def tell_complete(self, trial: optuna.Trial, folders: Sequence[Path], prepared: Prepared) -> None:
        """Tell the study the result of a trial whose runs have all ended, and write its recipe if it is the best."""
        hours = self.search.ranks_per_trial * trial.user_attrs.get(studies.SECONDS, 0.0) / 3600
        runs = [metrics_lines(folder) for folder in folders]
        try:
            result = trial_result(self.search, runs, prepared.opened.tree, device_hours=hours)
        except ValueError as error:
            self.tell_failed(trial, str(error))
            return
        self._before_tell(trial)
        finished = studies.tell_complete(self.study, trial, result)
        state = result.state if is_whole(finished) else "short"
        self._display_end(trial.number, state, values=result.values, reason=result.violated)
        write_best(self.options.folder, self.opened, self.study, finished)

    def tell_infeasible(self, trial: optuna.Trial, result: TrialResult) -> None:
        """End a trial, untrained, whose values violate a constraint."""
        studies.store_constraints(trial, result)
        self._tell(trial, TrialState.PRUNED, result.state, f"not trained: {result.violated}")

    def tell_pruned(self, trial: optuna.Trial, number: int) -> None:
        """End a trial that was pruned after report `number`."""
        at = f"at report {number} of {self.search.reports}"
        self._tell(trial, TrialState.PRUNED, "pruned", f"pruned {at}", shown=at)

    def tell_failed(self, trial: optuna.Trial, reason: str, rank: int | None = None) -> None:
        """End a trial that could not be trained to its end."""
        if rank is not None:
            trial.set_user_attr(studies.RANK, rank)
        self._tell(trial, TrialState.FAIL, "failed", reason)

    def may_retry(self, trial: optuna.Trial, reason: str, rank: int | None = None) -> bool:
        """Count the death of a trial's ranks; False if that was once too often, and the trial has failed."""
        reason = reason or "the run was stopped"
        deaths = [*trial.user_attrs.get(studies.DEATHS, []), reason]
        trial.set_user_attr(studies.DEATHS, deaths)
        if len(deaths) <= self.search.retries:
            self.display.say(f"trial {trial.number}: {reason}; it goes on from its last checkpoint")
            return True
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        self.tell_failed(trial, f"{reason}; ended {times} before its run did", rank)
        return False

    def _tell(self, trial: optuna.Trial, state: TrialState, shown_state: str, reason: str, *, shown: str = "") -> None:
        trial.set_user_attr(studies.REASON, reason)
        self._before_tell(trial)
        self.study.tell(trial, state=state)
        self._display_end(trial.number, shown_state, reason=shown or reason)

    def _display_end(self, number: int, state: str, **details: Any) -> None:
        """Display the end of a trial, together with trials that other supervisors of the study have ended meanwhile."""
        self.display.add_trials(self.study.get_trials(deepcopy=False))
        self.display.ended(number, state, **details)


def report_costs(lines: Iterable[Mapping[str, Any]], *, ranks: int, reports: int, epochs: float) -> dict[str, list]:
    """Number of each report -> [samples, device-hours] that the trial had used until then.

    Args:
        lines: of the trial's `metrics.jsonl`, of all its sessions; the time between two sessions is not counted.
        ranks: how many trained it.
        reports: of the whole run.
        epochs: of the whole run.
    """
    costs: dict[str, list] = {}
    hours, last_ms = 0.0, None
    for line in lines:
        now_ms = line.get("time_ms")
        if line.get("key") == "run_start":
            last_ms = now_ms
        if now_ms is None or last_ms is None:
            continue
        hours, last_ms = hours + ranks * (now_ms - last_ms) / 3.6e6, now_ms
        if line["key"] == "eval_accuracy":
            number = min(reports, math.floor(line["epoch"] / epochs * reports + 1e-9))
            costs[str(number)] = [line["samples"], float(f"{hours:.4g}")]
    return costs
