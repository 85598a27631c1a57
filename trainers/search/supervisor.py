"""The supervisor: hands trials to groups of ranks, compares their reports, and loses none of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from recipes.search_space.open_search import OpenedSearch
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.run_folder import RUN
from trainers.runs.stop_request import requester_text, stop_requester
from trainers.search import study as studies
from trainers.search.comparability import store_comparability
from trainers.search.display import Display
from trainers.search.rank_groups import Group, Report, RunEnd, TrialRun, last_line
from trainers.search.search_folder import TRIALS
from trainers.search.study import check_constraints
from trainers.search.successive_halving import place, promote
from trainers.search.trial_leases import RENEW_SECONDS, TrialLeases, run_folder
from trainers.search.trial_recorder import SearchOptions, TrialRecorder, UsedBudget
from trainers.search.trial_run import run_folders, trial_request

_POLL_SECONDS = 0.02
_SHOW_SECONDS = 0.2
_LOOK_SECONDS = 1.0


@dataclass(kw_only=True)
class _Work:
    """A trial, and the run of it that a group trains; only a trial's first run is compared with other trials'."""

    trial: optuna.Trial
    job: TrialRun
    reported: set[int]
    run: int
    pruned_at: int | None = None
    hung: bool = False


class Supervisor:
    """Runs the trials of a study on groups of ranks. One thread of one process: it changes the study in one order.

    Args:
        opened: the search.
        study: of `open_study`.
        options: of this session.
        display: what the user sees.
        groups: of ranks, each for one trial at a time.
    """

    def __init__(
        self,
        opened: OpenedSearch,
        study: optuna.Study,
        options: SearchOptions,
        display: Display,
        groups: Sequence[Group],
    ) -> None:
        self.opened, self.search, self.study, self.options = opened, opened.search, study, options
        self.display, self.groups = display, groups
        self.stopped_by = ""
        self._working: list[_Work] = []
        self._trials, self._used = TrialLeases(study, options.folder), UsedBudget(self.search, study)
        self._recorder = TrialRecorder(opened, study, options, display, done=self._trials.done)
        self._noted = self._shown = time.monotonic()
        self._look_again = 0.0

    def run(self) -> None:
        """Work until the budget is spent, or until it is asked to stop and the ranks have ended."""
        try:
            while True:
                for work in list(self._working):
                    try:
                        self._attend(work)
                    except UpdateFinishedTrialError:  # another supervisor has finished it
                        self._drop(work)
                while self._has_room() and self._begin_next():
                    pass
                if not self._working and (self.stopping or not self._trials.undecided()):
                    break
                self._keep_up()
                time.sleep(_POLL_SECONDS)
            for group in self.groups:
                group.dismiss()
            for group in self.groups:
                group.wait()
        finally:
            self.kill()
        self._used.note()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.stopped_by != ""

    def request_stop(self, by: str) -> None:
        """No trial begins; those that run write a checkpoint and stay in the study as running, for the next session.

        Args:
            by: what asks, in words.
        """
        self.stopped_by = by
        for work in self._working:
            work.job.request_stop()

    def kill(self) -> None:
        """End all ranks at once."""
        for group in self.groups:
            group.kill()

    def _has_room(self) -> bool:
        """Whether a group is free; False within a second after a look that found nothing to do."""
        return not self.stopping and len(self._working) < len(self.groups) and time.monotonic() > self._look_again

    def _begin_next(self) -> bool:
        """Continue a trial that was left running, else begin one; False where there is nothing to do."""
        self._look_again = time.monotonic() + _LOOK_SECONDS
        left = self._trials.left()
        if left is not None:
            self._look_again = 0.0
            self._go_on(left)
            return True
        if self._used.over(sum(work.job.seconds for work in self._working)):
            return False
        promote(self.study, self.search)
        trial = self._trials.new(self.search.budget.trials)
        if trial is not None:
            self._look_again = 0.0
            self._start(trial)
        return trial is not None

    def _go_on(self, trial: optuna.Trial) -> None:
        """Continue a trial that an earlier session left: tell the study if its runs have ended, else resume it."""
        folders = self._folders(trial)
        run = _num_ended(folders)
        pruned_at = trial.user_attrs.get(studies.PRUNED_AT)
        if pruned_at is not None and run == 0:
            self._recorder.pruned(trial, pruned_at)
            return
        begun = run < len(folders) and folders[run].exists()
        killed = begun and last_line(folders[run]).get("value") != "stopped"  # it ended together with its supervisor
        if not killed or self._recorder.may_retry(trial, RunEnd(how="died", reason="the search was ended")):
            self._start(trial)

    def _start(self, trial: optuna.Trial) -> None:
        """Have a trial's next run trained, from its last checkpoint if there is one; else tell the study the result."""
        values, folders = studies.suggested(trial, self.search), self._folders(trial)
        run = _num_ended(folders)
        share = place(trial, self.search)
        try:
            request = self._request(trial.number, values, folders, run=min(run, len(folders) - 1), share=share)
            prepared = prepare(request, workers=self.search.ranks_per_trial)
            broken = check_constraints(self.search, prepared.opened.tree)
        except ValueError as error:  # InputRefused too
            self._recorder.failed(trial, RunEnd(how="failed", reason=str(error)))
            return
        if broken.broken:
            self._recorder.infeasible(trial, broken)
            return
        reported = self._recorder.reported_before(trial, folders[0], prepared)
        if run == len(folders):
            self._recorder.complete(trial, folders, prepared)
            return
        folders[run].mkdir(parents=True, exist_ok=True)
        store_comparability(trial, prepared.opened.recipe, self.search, say=self.display.say)
        job = TrialRun(self._free_group(), request, prepared, **self._recorder.reporting)
        self._working.append(_Work(trial=trial, job=job, reported=reported, run=run))
        self.display.began(trial.number, values, resumed=request.resume or run > 0)

    def _request(
        self, number: int, values: dict[str, Any], folders: Sequence[Path], *, run: int, share: Fraction
    ) -> TrainRequest:
        return trial_request(
            self.opened,
            number,
            values,
            folders[run],
            run=run,
            share=share,
            resume=(folders[run] / RUN).exists(),
            data=self.options.data,
            allow_code=self.options.allow_code,
            cluster=self.options.cluster,
            device=self.options.device,
        )

    def _free_group(self) -> Group:
        working = [work.job.group for work in self._working]
        return next(group for group in self.groups if group not in working)

    def _folders(self, trial: optuna.Trial) -> list[Path]:
        """The folders of the trial's runs."""
        name = f"{TRIALS}/trial-{trial.number:04d}"
        if studies.FOLDER not in trial.user_attrs:
            trial.set_user_attr(studies.FOLDER, name)
        return run_folders(self.search, run_folder(trial, name, self.options.folder))

    def _attend(self, work: _Work) -> None:
        """Check a job: whether its trial is still ours, whether it ended, its reports, whether it hangs."""
        if not self._trials.holds(work.trial):
            self._drop(work)
            return
        ending = work.job.ended()  # before the reports: all that it wrote until then is read below
        for report in work.job.new_reports():
            self._take(work, report, goes_on=ending is None)
        if ending is not None:
            work.job.close()
            self._working.remove(work)
            self._look_again = 0.0
            self._recorder.ran(work.trial, work.job)
            if work.run == 0:
                self._recorder.costs(work.trial, work.job)
            self._end(work, ending)
        elif not work.hung and time.monotonic() - work.job.heard > self.options.hang_seconds:
            work.hung = True
            work.job.kill()

    def _take(self, work: _Work, report: Report, *, goes_on: bool) -> None:
        """Tell the study of a report; prune a trial that goes on."""
        if work.run > 0 or report.number in work.reported:
            return
        work.reported.add(report.number)
        self._recorder.report(work.trial, report)
        self.display.reported(work.trial.number, report)
        last = report.number >= self.search.reports
        comparable = goes_on and work.pruned_at is None and self.search.reported is not None
        if comparable and not last and work.trial.should_prune():
            work.pruned_at = report.number
            work.trial.set_user_attr(studies.PRUNED_AT, report.number)  # first: it holds even if this supervisor dies
            work.job.request_stop()

    def _drop(self, work: _Work) -> None:
        """Give up a trial that another host has taken, since this supervisor stood still for too long."""
        work.job.kill()
        work.job.close()
        self._working = [other for other in self._working if other is not work]
        self._trials.done(work.trial)
        self.display.say(f"trial {work.trial.number} was taken by another supervisor of the study")

    def _end(self, work: _Work, ending: RunEnd) -> None:
        """What the end of a run means for its trial."""
        trial = work.trial
        if work.hung:
            reason = f"no update for {self.options.hang_seconds:g} s, after update {work.job.update}"
            ending = RunEnd(how="died", reason=reason)
        if ending.how == "success":
            if work.run + 1 == self.search.seeds_per_trial:
                self._recorder.complete(trial, self._folders(trial), work.job.prepared)
            elif self.stopping:
                self._trials.release(trial)
            else:
                self._start(trial)
        elif work.pruned_at is not None and ending.how != "failed":
            self._recorder.pruned(trial, work.pruned_at)
        elif ending.how == "stopped" and self.stopping:
            self._trials.release(trial)
            self.display.say(f"trial {trial.number} stopped at update {work.job.update}, with a checkpoint")
        elif ending.how == "failed":
            self._recorder.failed(trial, ending)
        elif self.stopping:
            self._trials.release(trial)
        elif self._recorder.may_retry(trial, ending):
            self._start(trial)

    def _keep_up(self) -> None:
        """Periodic work: leases, signs of life, the table on the screen, the stop file."""
        now = time.monotonic()
        for group in self.groups:
            group.sign()
        if not self.stopping and self.options.stop_file.exists():
            self.request_stop(requester_text(stop_requester(self.options.stop_file), self.options.stop_file))
        self._trials.renew()
        if now - self._noted > RENEW_SECONDS:
            self._noted = now
            self._used.note()
        if now - self._shown > _SHOW_SECONDS:
            self._shown = now
            self.display.show([(work.trial.number, work.job) for work in self._working])


def _num_ended(folders: Sequence[Path]) -> int:
    """How many of a trial's runs, which follow one another, have ended with success."""
    ended = (last_line(folder) for folder in folders)
    return next(
        (run for run, line in enumerate(ended) if (line.get("key"), line.get("value")) != ("run_stop", "success")),
        len(folders),
    )
