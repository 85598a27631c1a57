"""The supervisor: hands trials to groups of ranks, compares their reports, and loses none of them."""

from __future__ import annotations

import time
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from recipes.open_search import OpenedSearch
from recipes.schema import Objective
from trainers.request import Prepared, TrainRequest, prepare
from trainers.run_folder import RUN
from trainers.search import study as studies
from trainers.search.best import write_best
from trainers.search.display import Display
from trainers.search.fairness import note_comparable, note_costs
from trainers.search.job import Ending, Job, Report, last_line, metrics_lines, reports_in
from trainers.search.leases import LEASE, RENEW_SECONDS, is_stale, own_lease
from trainers.search.outcome import Outcome, known_before, outcome
from trainers.search.rungs import is_whole, place, promote
from trainers.search.trial_run import trial_request

TRIALS = "trials"  # in the search's folder: a run's folder for each trial
_POLL_SECONDS = 0.1


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How a search is done, as opposed to what is searched.

    Args:
        folder: of the search.
        groups: trials side by side.
        hang_seconds: a trial that reports no update for so long is ended.
        data: folder of the data set's files.
        allow_code: as of `train`.
    """

    folder: Path
    groups: int
    hang_seconds: float = 600.0
    data: Path | None = None
    allow_code: bool = False


@dataclass(kw_only=True)
class _Work:
    """A trial and its job."""

    trial: optuna.Trial
    job: Job
    values: dict[str, Any]
    reported: set[int]
    pruned_at: int | None = None
    hung: bool = False


class Supervisor:
    """One process, one thread: what happens to the study happens in one order.

    Args:
        opened: the search.
        study: of `open_study`.
        options: how.
        display: what the user sees.
    """

    def __init__(self, opened: OpenedSearch, study: optuna.Study, options: SearchOptions, display: Display) -> None:
        self.opened, self.search, self.study, self.options = opened, opened.search, study, options
        self.display = display
        self.stopping = False
        self._working: list[_Work] = []
        trials = study.get_trials(deepcopy=False)
        self._begun = sum(trial.state != TrialState.WAITING for trial in trials)
        running = [trial for trial in trials if trial.state == TrialState.RUNNING]
        self._stale = [trial for trial in running if is_stale(trial.user_attrs.get(LEASE))]
        self._spent, self._since = studies.spent_seconds(study), time.monotonic()
        self._renewed = time.monotonic()
        objective = self.search.reported or Objective()  # else for the display alone
        self._reporting = {"metric": objective.metric, "reports": self.search.reports}

    def run(self) -> None:
        """Work until the budget is spent, or until it is asked to stop and the ranks have ended."""
        try:
            while True:
                for work in list(self._working):
                    self._attend(work)
                while not self.stopping and len(self._working) < self.options.groups and self._begin_next():
                    pass
                if not self._working:
                    break
                self._renew()
                self.display.show([(work.trial.number, work.job) for work in self._working])
                time.sleep(_POLL_SECONDS)
        finally:
            self.kill()
            studies.note_spent(self.study, self._spent_now())

    def ask_to_stop(self) -> None:
        """No trial begins; those that run write a checkpoint and stay in the study as running, for the next session."""
        self.stopping = True
        for work in self._working:
            work.job.ask_to_stop()

    def kill(self) -> None:
        """End all ranks at once."""
        for work in self._working:
            work.job.kill()

    def _spent_now(self) -> float:
        return self._spent + time.monotonic() - self._since

    def _begin_next(self) -> bool:
        """Go on with a trial that was left running, else begin one; False where there is nothing to do."""
        if self._stale:
            left = self._stale.pop(0)
            self._go_on(optuna.Trial(self.study, left._trial_id))
            return True
        hours = self.search.budget.hours
        if self._begun >= self.search.budget.trials or (hours is not None and self._spent_now() >= 3600 * hours):
            return False
        promote(self.study, self.search)
        trial = self.study.ask()
        self._begun += 1
        trial.set_user_attr(LEASE, own_lease())
        self._start(trial)
        return True

    def _go_on(self, trial: optuna.Trial) -> None:
        """What a session before this one left: told where its run had ended, else resumed."""
        trial.set_user_attr(LEASE, own_lease())
        folder = self._folder(trial)
        how = last_line(folder)
        ended = how.get("value") if how.get("key") == "run_stop" else None
        pruned_at = trial.user_attrs.get(studies.PRUNED_AT)
        if pruned_at is not None and ended != "success":
            self._pruned(trial, pruned_at)
            return
        if ended != "stopped":  # not asked to, so it was killed with its supervisor, if it had begun at all
            reason = "the search was ended"
            if ended != "success" and folder.exists() and not self._may_retry(trial, reason):
                return
        self._start(trial, ended=ended)

    def _start(self, trial: optuna.Trial, *, ended: str | None = None) -> None:
        """Start a trial's ranks from its last checkpoint, or tell what a run that had ended came to."""
        share = place(trial, self.search)
        values = studies.suggested(trial, self.search)
        folder = self._folder(trial)
        try:
            request = self._request(trial.number, values, folder, share)
            prepared = prepare(request, workers=self.search.ranks_per_trial)
            broken = known_before(self.search, prepared.opened.tree)
        except ValueError as error:  # InputRefused too
            self._fail(trial, Ending(how="failed", reason=str(error)))
            return
        if broken.broken:
            self._infeasible(trial, broken)
            return
        note_comparable(trial, prepared.opened.recipe, self.search, say=self.display.say)
        reported = self._reported_before(trial, folder, prepared)
        if ended == "success":
            self._complete(trial, folder, prepared)
            return
        folder.mkdir(parents=True, exist_ok=True)
        job = Job(request, prepared, ranks=self.search.ranks_per_trial, **self._reporting)
        self._working.append(_Work(trial=trial, job=job, values=values, reported=reported))
        self.display.began(trial.number, values, resumed=request.resume)

    def _request(self, number: int, values: dict[str, Any], folder: Path, share: Fraction) -> TrainRequest:
        return trial_request(
            self.opened,
            number,
            values,
            folder,
            share=share,
            resume=(folder / RUN).exists(),
            data=self.options.data,
            allow_code=self.options.allow_code,
        )

    def _folder(self, trial: optuna.Trial) -> Path:
        name = f"{TRIALS}/trial-{trial.number:04d}"
        if studies.FOLDER not in trial.user_attrs:
            trial.set_user_attr(studies.FOLDER, name)
        return self.options.folder / name

    def _reported_before(self, trial: optuna.Trial, folder: Path, prepared: Prepared) -> set[int]:
        """Reports of sessions before this one; what was written and not told any more is told now."""
        known = set(self.study._storage.get_trial(trial._trial_id).intermediate_values)
        for report in reports_in(metrics_lines(folder), prepared, **self._reporting):
            if report.number not in known:
                known.add(report.number)
                self._tell_report(trial, report)
        return known

    def _attend(self, work: _Work) -> None:
        """One look at a job: whether it ended, its reports, whether it hangs."""
        ending = work.job.ended()  # first: what is written until then is read below
        for report in work.job.new_reports():
            self._take(work, report, goes_on=ending is None)
        if ending is not None:
            work.job.close()
            self._working.remove(work)
            self._note_seconds(work)
            self._end(work, ending)
        elif not work.hung and time.monotonic() - work.job.heard > self.options.hang_seconds:
            work.hung = True
            work.job.kill()

    def _take(self, work: _Work, report: Report, *, goes_on: bool) -> None:
        """Tell the study of a report, and the ranks of its verdict: all of them end after the same update."""
        if report.number in work.reported:
            return
        work.reported.add(report.number)
        self._tell_report(work.trial, report)
        self.display.reported(work.trial.number, report)
        last = report.number >= self.search.reports
        comparable = goes_on and work.pruned_at is None and self.search.reported is not None
        if comparable and not last and work.trial.should_prune():
            work.pruned_at = report.number
            work.trial.set_user_attr(studies.PRUNED_AT, report.number)  # first: a dead supervisor keeps its word
            work.job.ask_to_stop()

    def _end(self, work: _Work, ending: Ending) -> None:
        """What the end of a job means for its trial."""
        trial = work.trial
        if work.hung:
            reason = f"no update for {self.options.hang_seconds:g} s, after update {work.job.update}"
            ending = Ending(how="died", reason=reason)
        if ending.how == "success":
            self._complete(trial, work.job.folder, work.job.prepared)
        elif work.pruned_at is not None and ending.how != "failed":
            self._pruned(trial, work.pruned_at)
        elif ending.how == "stopped" and self.stopping:
            trial.set_user_attr(LEASE, None)
            self.display.say(f"trial {trial.number} stopped at update {work.job.update}, with a checkpoint")
        elif ending.how == "failed":
            self._fail(trial, ending)
        elif self.stopping:
            trial.set_user_attr(LEASE, None)
        elif self._may_retry(trial, ending.reason or "the run was stopped", rank=ending.rank):
            self._start(trial)

    def _may_retry(self, trial: optuna.Trial, reason: str, *, rank: int | None = None) -> bool:
        """Note a death; False where it was one too many, and the trial has failed."""
        deaths = [*trial.user_attrs.get(studies.DEATHS, []), reason]
        trial.set_user_attr(studies.DEATHS, deaths)
        if len(deaths) <= self.search.retries:
            self.display.say(f"trial {trial.number}: {reason}; it goes on from its last checkpoint")
            return True
        times = "once" if len(deaths) == 1 else f"{len(deaths)} times"
        self._fail(trial, Ending(how="failed", reason=f"{reason}; ended {times} before its run did", rank=rank))
        return False

    def _complete(self, trial: optuna.Trial, folder: Path, prepared: Prepared) -> None:
        hours = self.search.ranks_per_trial * trial.user_attrs.get(studies.SECONDS, 0.0) / 3600
        try:
            found = outcome(self.search, [metrics_lines(folder)], prepared.opened.tree, device_hours=hours)
        except ValueError as error:
            self._fail(trial, Ending(how="failed", reason=str(error)))
            return
        told = studies.tell_complete(self.study, trial, found)
        state = found.state if is_whole(told) else "short"
        self.display.ended(trial.number, state, values=found.values, reason=found.broken)
        options = {"data": self.options.data, "allow_code": self.options.allow_code}
        write_best(self.options.folder, self.opened, self.study, told, **options)

    def _infeasible(self, trial: optuna.Trial, found: Outcome) -> None:
        """A trial whose values break a constraint is not trained."""
        reason = f"not trained: {found.broken}"
        trial.set_user_attr(studies.REASON, reason)
        studies.note_constraints(trial, found)
        self.study.tell(trial, state=TrialState.PRUNED)
        self.display.ended(trial.number, found.state, reason=reason)

    def _tell_report(self, trial: optuna.Trial, report: Report) -> None:
        """Optuna takes no reports where there are several objectives."""
        if self.search.reported is not None:
            trial.report(report.value, report.number)

    def _pruned(self, trial: optuna.Trial, number: int) -> None:
        trial.set_user_attr(studies.REASON, f"pruned at report {number} of {self.search.reports}")
        self.study.tell(trial, state=TrialState.PRUNED)
        self.display.ended(trial.number, "pruned", reason=f"at report {number} of {self.search.reports}")

    def _fail(self, trial: optuna.Trial, ending: Ending) -> None:
        trial.set_user_attr(studies.REASON, ending.reason)
        if ending.rank is not None:
            trial.set_user_attr(studies.RANK, ending.rank)
        self.study.tell(trial, state=TrialState.FAIL)
        self.display.ended(trial.number, "failed", reason=ending.reason)

    def _note_seconds(self, work: _Work) -> None:
        """Time of the trial's ranks, over all its sessions."""
        before = work.trial.user_attrs.get(studies.SECONDS, 0.0)
        work.trial.set_user_attr(studies.SECONDS, round(before + work.job.seconds, 2))
        note_costs(work.trial, metrics_lines(work.job.folder), work.job.prepared.opened.recipe, self.search)

    def _renew(self) -> None:
        if time.monotonic() - self._renewed > RENEW_SECONDS:
            self._renewed = time.monotonic()
            for work in self._working:
                work.trial.set_user_attr(LEASE, own_lease())
            studies.note_spent(self.study, self._spent_now())
