"""The supervisor: hands trials to groups of ranks, compares their reports, and loses none of them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import TrialState

from recipes.errors import InputRefused
from recipes.open_search import OpenedSearch
from trainers.request import Prepared, TrainRequest, prepare
from trainers.run_folder import RUN
from trainers.search import study as studies
from trainers.search.best import write_best
from trainers.search.display import Display
from trainers.search.hand_out import HandOut, run_folder
from trainers.search.job import Ending, Job, Report, last_line, metrics_lines, reports_in
from trainers.search.leases import RENEW_SECONDS, own_lease
from trainers.search.trial_run import trial_request, warmup_end

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
        self._trials = HandOut(study, options.folder)
        self._session = own_lease()["grant"]
        self._spent, self._since = studies.spent_seconds(study), time.monotonic()
        self._noted = time.monotonic()

    def run(self) -> None:
        """Work until the budget is spent, or until it is asked to stop and the ranks have ended."""
        try:
            while True:
                for work in list(self._working):
                    try:
                        self._attend(work)
                    except UpdateFinishedTrialError:  # another supervisor has finished it
                        self._drop(work)
                while not self.stopping and len(self._working) < self.options.groups and self._begin_next():
                    pass
                if not self._working and (self.stopping or not self._trials.undecided()):
                    break
                self._renew()
                self.display.show([(work.trial.number, work.job) for work in self._working])
                time.sleep(_POLL_SECONDS)
        finally:
            self.kill()
        self._note_spent()

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
        left = self._trials.left()
        if left is not None:
            self._go_on(left)
            return True
        hours = self.search.budget.hours
        if hours is not None and self._spent_now() >= 3600 * hours:
            return False
        trial = self._trials.new(self.search.budget.trials)
        if trial is not None:
            self._start(trial)
        return trial is not None

    def _go_on(self, trial: optuna.Trial) -> None:
        """What a session before this one left: told where its run had ended, else resumed."""
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
        values = studies.suggested(trial, self.search)
        folder = self._folder(trial)
        request = self._request(trial.number, values, folder)
        try:
            prepared = prepare(request, workers=self.search.ranks_per_trial)
        except InputRefused as error:
            self._fail(trial, Ending(how="failed", reason=str(error)))
            return
        reported = self._reported_before(trial, folder, prepared)
        if ended == "success":
            self._complete(trial, folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        names = {"metric": self.search.objective.metric, "reports": self.search.reports}
        job = Job(request, prepared, ranks=self.search.ranks_per_trial, **names)
        self._working.append(_Work(trial=trial, job=job, values=values, reported=reported))
        self.display.began(trial.number, values, resumed=request.resume)

    def _request(self, number: int, values: dict[str, Any], folder: Path) -> TrainRequest:
        return trial_request(
            self.opened,
            number,
            values,
            folder,
            resume=(folder / RUN).exists(),
            data=self.options.data,
            allow_code=self.options.allow_code,
        )

    def _folder(self, trial: optuna.Trial) -> Path:
        name = f"{TRIALS}/trial-{trial.number:04d}"
        if studies.FOLDER not in trial.user_attrs:
            trial.set_user_attr(studies.FOLDER, name)
        return run_folder(trial, name, self.options.folder)

    def _reported_before(self, trial: optuna.Trial, folder: Path, prepared: Prepared) -> set[int]:
        """Reports of sessions before this one; what was written and not told any more is told now."""
        known = set(self.study._storage.get_trial(trial._trial_id).intermediate_values)
        names = {"metric": self.search.objective.metric, "reports": self.search.reports}
        for report in reports_in(metrics_lines(folder), prepared, **names):
            if report.number not in known:
                known.add(report.number)
                trial.report(report.value, report.number)
        return known

    def _attend(self, work: _Work) -> None:
        """One look at a job: whether its trial is still ours, whether it ended, its reports, whether it hangs."""
        if not self._trials.holds(work.trial):
            self._drop(work)
            return
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
        work.trial.report(report.value, report.number)
        self.display.reported(work.trial.number, report)
        early = report.epoch < warmup_end(work.job.prepared)
        last = report.number >= self.search.reports
        if goes_on and work.pruned_at is None and not early and not last and work.trial.should_prune():
            work.pruned_at = report.number
            work.trial.set_user_attr(studies.PRUNED_AT, report.number)  # first: a dead supervisor keeps its word
            work.job.ask_to_stop()

    def _drop(self, work: _Work) -> None:
        """It stood still for so long that another host has taken the trial."""
        work.job.kill()
        work.job.close()
        self._working = [other for other in self._working if other is not work]
        self._trials.done(work.trial)
        self.display.say(f"trial {work.trial.number} was taken by another supervisor of the study")

    def _end(self, work: _Work, ending: Ending) -> None:
        """What the end of a job means for its trial."""
        trial = work.trial
        if work.hung:
            reason = f"no update for {self.options.hang_seconds:g} s, after update {work.job.update}"
            ending = Ending(how="died", reason=reason)
        if ending.how == "success":
            self._complete(trial, work.job.folder)
        elif work.pruned_at is not None and ending.how != "failed":
            self._pruned(trial, work.pruned_at)
        elif ending.how == "stopped" and self.stopping:
            self._trials.release(trial)
            self.display.say(f"trial {trial.number} stopped at update {work.job.update}, with a checkpoint")
        elif ending.how == "failed":
            self._fail(trial, ending)
        elif self.stopping:
            self._trials.release(trial)
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

    def _complete(self, trial: optuna.Trial, folder: Path) -> None:
        key = f"eval_{self.search.objective.metric}"
        scores = [line["value"] for line in metrics_lines(folder) if line.get("key") == key]
        value = scores[-1]
        if not math.isfinite(value):
            self._fail(trial, Ending(how="failed", reason=f"the {self.search.objective.metric} is {value}"))
            return
        told = self._tell(trial, value=value)
        self.display.ended(trial.number, "complete", value=value)
        best = studies.best_trial(self.study)
        if best is not None and best.number == told.number:
            options = self.options
            write_best(options.folder, self.opened, told, data=options.data, allow_code=options.allow_code)

    def _tell(self, trial: optuna.Trial, *, value: float | None = None, state: TrialState | None = None) -> Any:
        self._trials.done(trial)
        return self.study.tell(trial, value, state=state)

    def _pruned(self, trial: optuna.Trial, number: int) -> None:
        trial.set_user_attr(studies.REASON, f"pruned at report {number} of {self.search.reports}")
        self._tell(trial, state=TrialState.PRUNED)
        self.display.ended(trial.number, "pruned", reason=f"at report {number} of {self.search.reports}")

    def _fail(self, trial: optuna.Trial, ending: Ending) -> None:
        trial.set_user_attr(studies.REASON, ending.reason)
        if ending.rank is not None:
            trial.set_user_attr(studies.RANK, ending.rank)
        self._tell(trial, state=TrialState.FAIL)
        self.display.ended(trial.number, "failed", reason=ending.reason)

    def _note_seconds(self, work: _Work) -> None:
        """Time of the trial's ranks, over all its sessions."""
        before = work.trial.user_attrs.get(studies.SECONDS, 0.0)
        work.trial.set_user_attr(studies.SECONDS, round(before + work.job.seconds, 2))

    def _renew(self) -> None:
        self._trials.renew()
        if time.monotonic() - self._noted > RENEW_SECONDS:
            self._note_spent()

    def _note_spent(self) -> None:
        """Keep how long this session has worked, and learn of the others' that share the study."""
        self._noted = time.monotonic()
        studies.note_spent(self.study, self._noted - self._since, session=self._session)
        self._spent = studies.spent_seconds(self.study, besides=self._session)
