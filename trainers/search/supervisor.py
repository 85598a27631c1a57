"""The supervisor: it gives trials to groups of ranks, prunes them by their reports, and loses none of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from recipes.search_space.open_search import OpenedSearch
from trainers.launch.request import prepare
from trainers.runs.stop_request import requester_text, stop_requester
from trainers.search import study as studies
from trainers.search.comparability import store_comparability
from trainers.search.display import Display
from trainers.search.rank_groups import Group
from trainers.search.report import LivePage
from trainers.search.search_folder import TRIALS
from trainers.search.study import check_constraints
from trainers.search.successive_halving import assigned_share, promote
from trainers.search.trial_leases import RENEW_SECONDS, TrialLeases
from trainers.search.trial_recorder import TrialRecorder, UsedBudget
from trainers.search.trial_run import Report, RunEnd, SearchOptions, TrialRun, last_line, run_folders, trial_request

_POLL_SECONDS = 0.02
_SHOW_SECONDS = 0.2
_LOOK_SECONDS = 1.0  # between two looks for a trial to begin, while there is none


@dataclass(kw_only=True)
class _Running:
    """A trial, and the run of it that a group trains; only a trial's first run is compared with other trials'."""

    trial: optuna.Trial
    run: TrialRun
    index: int  # of the run within its trial
    reported: set[int]  # numbers of the reports that the study has
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
        page: of the search, written while it runs.
    """

    def __init__(
        self,
        opened: OpenedSearch,
        study: optuna.Study,
        options: SearchOptions,
        display: Display,
        groups: Sequence[Group],
        page: LivePage,
    ) -> None:
        self.opened, self.search, self.study, self.options = opened, opened.search, study, options
        self.display, self.groups, self._page = display, groups, page
        self.stopped_by = ""
        self._running: list[_Running] = []
        self._leases, self._used_budget = TrialLeases(study, options.folder), UsedBudget(self.search, study)
        self._recorder = TrialRecorder(opened, study, options, display, before_tell=self._leases.drop)
        self._stored = self._shown = time.monotonic()
        self._next_look = 0.0

    def run(self) -> None:
        """Work until the budget is spent, or until it is asked to stop and the ranks have ended."""
        try:
            while True:
                for running in list(self._running):
                    try:
                        self._check(running)
                    except UpdateFinishedTrialError:  # another supervisor has finished it
                        self._drop(running)
                while self._has_free_group() and self._begin_next():
                    pass
                if not self._running and (self.stopping or not self._leases.undecided()):
                    break
                self._periodic_work()
                time.sleep(_POLL_SECONDS)
            for group in self.groups:
                group.dismiss()
            for group in self.groups:
                group.wait()
        finally:
            self.kill()
        self._used_budget.store()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self.stopped_by != ""

    def request_stop(self, by: str) -> None:
        """No trial begins; those that run write a checkpoint and stay in the study as running, for the next session."""
        self.stopped_by = by
        for running in self._running:
            running.run.request_stop()

    def kill(self) -> None:
        """End all ranks at once."""
        for group in self.groups:
            group.kill()

    def _has_free_group(self) -> bool:
        """Whether a trial may begin; False within a second after there was none to begin."""
        return not self.stopping and len(self._running) < len(self.groups) and time.monotonic() > self._next_look

    def _begin_next(self) -> bool:
        """Continue a trial that was left running, else begin one; False if there is none."""
        self._next_look = time.monotonic() + _LOOK_SECONDS
        trial = self._leases.take_stale()
        if trial is not None:
            self._resume(trial)
        else:
            if self._used_budget.is_spent(sum(running.run.seconds for running in self._running)):
                return False
            promote(self.study, self.search)
            trial = self._leases.begin(self.search.budget.trials)
            if trial is None:
                return False
            self._start(trial)
        self._next_look = 0.0
        return True

    def _resume(self, trial: optuna.Trial) -> None:
        """Continue a trial that an earlier session left: tell the study if its runs have ended, else resume it."""
        folders = self._folders(trial)
        index = _num_ended(folders)
        pruned_at = trial.user_attrs.get(studies.PRUNED_AT)
        if pruned_at is not None and index == 0:
            self._recorder.tell_pruned(trial, pruned_at)
            return
        begun = index < len(folders) and folders[index].exists()
        killed = begun and last_line(folders[index]).get("value") != "stopped"  # it ended together with its supervisor
        if not killed or self._recorder.may_retry(trial, "the search was ended"):
            self._start(trial)

    def _start(self, trial: optuna.Trial) -> None:
        """Start a trial's next run, from its last checkpoint if there is one; else tell the study the result."""
        values, folders = studies.suggested(trial, self.search), self._folders(trial)
        index = _num_ended(folders)
        share = assigned_share(trial, self.search)
        try:
            last = min(index, len(folders) - 1)
            request = trial_request(
                self.opened, trial.number, values, folders[last], self.options, index=last, share=share
            )
            prepared = prepare(request, workers=self.search.ranks_per_trial)
            constraints = check_constraints(self.search, prepared.opened.tree)
        except ValueError as error:  # InputRefused too
            self._recorder.tell_failed(trial, str(error))
            return
        if constraints.violated:
            self._recorder.tell_infeasible(trial, constraints)
            return
        reported = self._recorder.restore_reports(trial, folders[0], prepared)
        if index == len(folders):
            self._recorder.tell_complete(trial, folders, prepared)
            return
        folders[index].mkdir(parents=True, exist_ok=True)
        store_comparability(trial, prepared.opened.recipe, self.search, say=self.display.say)
        busy = [running.run.group for running in self._running]
        group = next(group for group in self.groups if group not in busy)
        run = TrialRun(group, request, prepared, **self._recorder.reporting)
        self._running.append(_Running(trial=trial, run=run, index=index, reported=reported))
        self.display.began(trial.number, values, resumed=request.resume or index > 0)

    def _folders(self, trial: optuna.Trial) -> list[Path]:
        name = f"{TRIALS}/trial-{trial.number:04d}"
        if studies.FOLDER not in trial.user_attrs:
            trial.set_user_attr(studies.FOLDER, name)
        return run_folders(self.search, trial, self.options.folder, name)

    def _check(self, running: _Running) -> None:
        """Whether a trial is still ours, its new reports, whether its run has ended or hangs."""
        if not self._leases.holds(running.trial):
            self._drop(running)
            return
        run = running.run
        end = run.ended()  # before the reports: all that it wrote until then is read below
        for report in run.new_reports():
            self._report(running, report, goes_on=end is None)
        if end is not None:
            run.close()
            self._running.remove(running)
            self._next_look = 0.0
            self._recorder.store_time(running.trial, run)
            if running.index == 0:
                self._recorder.store_costs(running.trial, run)
            self._finish(running, end)
        elif not running.hung and time.monotonic() - run.last_news > self.options.hang_seconds:
            running.hung = True
            run.kill()

    def _report(self, running: _Running, report: Report, *, goes_on: bool) -> None:
        """Report to the study; prune a trial that goes on."""
        if running.index > 0 or report.number in running.reported:
            return
        trial = running.trial
        running.reported.add(report.number)
        self._recorder.report(trial, report)
        self.display.reported(trial.number, report)
        comparable = goes_on and running.pruned_at is None and self.search.reported is not None
        if comparable and report.number < self.search.reports and trial.should_prune():
            running.pruned_at = report.number
            trial.set_user_attr(studies.PRUNED_AT, report.number)  # first: it holds even if this supervisor dies
            running.run.request_stop()

    def _drop(self, running: _Running) -> None:
        """Give up a trial that another host has taken, because this supervisor did not run for too long."""
        running.run.kill()
        running.run.close()
        self._running = [other for other in self._running if other is not running]
        self._leases.drop(running.trial)
        self.display.say(f"trial {running.trial.number} was taken by another supervisor of the study")

    def _finish(self, running: _Running, end: RunEnd) -> None:
        """Tell, continue or release a trial whose run has ended."""
        trial, run = running.trial, running.run
        if running.hung:
            end = RunEnd(how="died", reason=f"no update for {self.options.hang_seconds:g} s, after update {run.update}")
        if end.how == "success":
            if running.index + 1 == self.search.seeds_per_trial:
                self._recorder.tell_complete(trial, self._folders(trial), run.prepared)
            elif self.stopping:
                self._leases.release(trial)
            else:
                self._start(trial)
        elif running.pruned_at is not None and end.how != "failed":
            self._recorder.tell_pruned(trial, running.pruned_at)
        elif end.how == "failed":
            self._recorder.tell_failed(trial, end.reason, end.rank)
        elif self.stopping:
            self._leases.release(trial)
            if end.how == "stopped":
                self.display.say(f"trial {trial.number} stopped at update {run.update}, with a checkpoint")
        elif self._recorder.may_retry(trial, end.reason, end.rank):
            self._start(trial)

    def _periodic_work(self) -> None:
        """Heartbeats, the stop file, the leases, the hours, and the table on the screen."""
        now = time.monotonic()
        for group in self.groups:
            group.send_heartbeat()
        if not self.stopping and self.options.stop_file.exists():
            self.request_stop(requester_text(stop_requester(self.options.stop_file), self.options.stop_file))
        self._leases.renew()
        if now - self._stored > RENEW_SECONDS:
            self._stored = now
            self._used_budget.store()
        if now - self._shown > _SHOW_SECONDS:
            self._shown = now
            self.display.show({running.trial.number: running.run.seconds for running in self._running})
        self._page.write_if_due()


def _num_ended(folders: Sequence[Path]) -> int:
    """How many of a trial's runs, which follow one another, have ended with success."""
    ended = (last_line(folder) for folder in folders)
    return next(
        (run for run, line in enumerate(ended) if (line.get("key"), line.get("value")) != ("run_stop", "success")),
        len(folders),
    )
