"""The supervisor: it gives trials to groups of ranks, tells the study what they report, and loses none of them."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FixedTrial, TrialState

from recipes.reports.metrics import is_score
from recipes.reports.wording import counted
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from recipes.search_space.ranges import suggested, values_text
from trainers.launch.request import Prepared, TrainRequest, prepare
from trainers.runs.identity import recipe_and_code_id
from trainers.runs.metrics_file import ending_of, session_starts
from trainers.runs.progress import Tail
from trainers.runs.progress_lines import RunState
from trainers.runs.run_folder import LOG, METRICS, newest_by_name
from trainers.runs.stop_request import STOP_FILE, request_stop, requester_text, stop_requester
from trainers.search import outcome
from trainers.search import study as studies
from trainers.search.folder import recipe_change, run_folders
from trainers.search.group import Group, RunEnd
from trainers.search.outcome import Result, SearchRequest
from trainers.search.results import FRESH_SEED, confirm_folder, running_row, to_confirm, write_best
from trainers.search.status import Display

_POLL_SECONDS = 0.02
_HEARTBEAT_SECONDS = 20.0  # between two signs of life, in the study and to each group
_JOIN_SECONDS = 180.0  # for started ranks to import and to join in MPI


class _Work:
    """A trial that has begun and not ended, in the folders of its runs; `group` trains it, or did so last.

    With a `seed` it trains one of the best trials again, to confirm it: `trial` is then Optuna's `FixedTrial`, which
    belongs to no study.
    """

    def __init__(self, trial: optuna.Trial | FixedTrial, folders: Sequence[Path], seed: int | None = None) -> None:
        self.trial, self.folders, self.seed = trial, folders, seed
        self.index, self.group = 0, None

    @property
    def name(self) -> str:
        return f"trial {self.trial.number}" + (f" with seed {self.seed}" if self.seed is not None else "")

    @property
    def folder(self) -> Path:
        return self.folders[self.index]

    def spent(self) -> tuple[float, float]:
        """Seconds, and ranks times seconds, of all its runs and sessions."""
        seconds = time.monotonic() - self._began
        return self._before[0] + seconds, self._before[1] + self._ranks * seconds

    def store_time(self, study: optuna.Study) -> None:
        """Store them in the study."""
        for name, value in zip((studies.SECONDS, studies.RANK_SECONDS), self.spent(), strict=True):
            self.trial.set_user_attr(name, round(value, 2))
        if self.seed is not None:
            confirming = study.user_attrs.get(studies.CONFIRM_RANK_SECONDS, {})
            study.set_user_attr(studies.CONFIRM_RANK_SECONDS, {**confirming, self.name: round(value, 2)})

    def begin_run(self, index: int, group: Group, request: TrainRequest, prepared: Prepared, search: Search) -> None:
        """Train the run of this index; `prepared` is its request, checked."""
        self._before = self.trial.user_attrs.get(studies.SECONDS, 0.0), studies.rank_seconds_of(self.trial, search)
        self._ranks = search.ranks_per_trial
        self.index, self.group, self.prepared = index, group, prepared
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / STOP_FILE).unlink(missing_ok=True)
        self._began = self.last_news = time.monotonic()
        self.hung = False  # it was ended for that
        self.state = RunState.of(prepared.plan.timeline)
        file = self.folder / METRICS
        self._tail = Tail(file, session_starts(file) if request.resume else None)
        group.train(request)

    def has_new_report(self, *, ended: bool) -> bool:
        """Whether the run has written an evaluation since the last call; `ended`: there will be none."""
        lines = self._tail.lines(ended=ended)
        for line in lines:
            self.last_news = time.monotonic()
            self.state.take(line)
        if ended:
            self._tail.close()
        return any(map(is_score, lines))


class Supervisor:
    """Runs the trials of a study on groups of ranks. One thread of one process: it changes the study in one order.

    Args:
        opened, options: the search, whose first trials are enqueued, and the command line of this session.
        display: what the user sees; it has the study and the search's folder.
        groups: of ranks, each for one trial at a time.
        code: SHA-256 of own code as it was when the search opened, see `folder.code_of_search`.
    """

    def __init__(
        self,
        opened: OpenedSearch,
        options: SearchRequest,
        display: Display,
        groups: Sequence[Group],
        *,
        code: Mapping[str, str],
    ) -> None:
        self.opened, self.options, self.display, self.groups, self.code = opened, options, display, groups, code
        self.search, self.study, self.folder = opened.search, display.study, display.folder
        self.stopped_by, self.changed = "", ""  # by whom; what was edited in the recipe meanwhile
        self._running: list[_Work] = []
        left = list(map(self._work_of, studies.left_running(self.study)))
        self._waiting = [work for work in left if not studies.is_paused(work.trial)]
        self._paused = {work.trial.number: work for work in left if studies.is_paused(work.trial)}
        self._stored = time.monotonic()

    def run(self) -> None:
        """Work until the budget is spent, no group is left, or it is asked to stop and the ranks have ended."""
        try:
            self._work()
            self._end_paused()
            self._waiting += self._confirmations()
            self._work()
            for group in self.groups:
                group.dismiss()
            for group in self.groups:
                group.wait()
        finally:
            self.kill()
        self.display.stopped_by, self.display.ended_by = self._ending()
        self._store_time()

    def stop_at_signal(self, number: int, frame: object) -> None:
        """The first stop signal asks all trials to stop after their update, the second ends them."""
        if self.stopped_by:
            self.kill()
            return
        self.request_stop("a signal")
        with suppress(OSError):  # a `| tee` was ended by the same Ctrl-C
            os.write(2, b"\nstopping after this update, with checkpoints; once more to end at once\n")

    def request_stop(self, by: str) -> None:
        """No trial begins; those that run write a checkpoint and stay in the study as running, for the next session."""
        self.stopped_by = by
        for work in self._running:
            request_stop(work.folder / STOP_FILE, "search")

    def recipe_changed(self) -> bool:
        """Whether what the recipe trains was changed since the search opened it, which stops it: see `changed`."""
        self.changed = self.changed or recipe_change(self.opened, self.code)
        if self.changed and not self.stopped_by:
            self.request_stop(f"a change of what {self.opened.base.path} trains")
        return bool(self.changed)

    def kill(self) -> None:
        """End all ranks at once."""
        for group in self.groups:
            group.kill()

    def _ending(self) -> tuple[str, str]:
        """Why the search ended before its budget, and which limit of the budget ended it; each may be empty."""
        if self.stopped_by:
            return self.stopped_by, ""
        (ended, runs), trials = self.display.confirmation, self.search.budget.trials
        left, seeds_left = trials - len(studies.finished(self.study)), ended < runs
        limit = self.spent_limit(with_patience=left > 0)
        if left > 0 and not limit:
            why = "; ".join(f"{group.name} is set aside: {group.set_aside}" for group in self.groups if group.set_aside)
            return f"{left} of {trials} trials are left: {why}", ""
        may_begin = seeds_left and not self.spent_limit(with_patience=False)
        unspent = f"{runs - ended} of {runs} runs with fresh seeds are left" if may_begin else ""
        return unspent, limit if left > 0 or seeds_left else ""

    def _work(self) -> None:
        while True:
            for work in list(self._running):
                self._check(work)
            while not self.stopped_by and self._free_groups() and self._begin_next():
                pass
            if not self._running:
                return
            stop_file = self.folder / STOP_FILE
            if not self.stopped_by and stop_file.exists():
                self.request_stop(requester_text(stop_requester(stop_file), stop_file))
            if time.monotonic() - self._stored > _HEARTBEAT_SECONDS:
                self._store_time()
                for group in self.groups:
                    group.send_heartbeat()
            for it in self._running:
                self.display.running[it.trial.number, it.seed] = running_row(*it.spent(), it.state)
            self.display.show()
            time.sleep(_POLL_SECONDS)

    def _store_time(self) -> None:
        self._stored = time.monotonic()
        self.study.set_user_attr(studies.SPENT, round(self.display.spent_seconds, 1))
        for work in self._running:  # a killed session's time counts
            work.store_time(self.study)

    def _free_groups(self) -> list[Group]:
        busy = [work.group for work in self._running]
        return [group for group in self.groups if group not in busy and not group.set_aside]

    def _begin_next(self) -> bool:
        """Continue a trial that waits for a group, or the best at a rung, else begin one; False if there is none."""
        work = next(filter(self._group_for, self._waiting), None)
        confirms = work is not None and work.seed is not None
        if (work is None or confirms) and self.spent_limit(with_patience=not confirms):
            return False
        if work is not None:
            self._waiting.remove(work)
        elif self._paused and (number := studies.promotable_trial(self.search, self.study)) is not None:
            work = self._paused.pop(number)
            work.trial.set_user_attr(studies.PROMOTIONS, work.trial.user_attrs[studies.RUNG] + 1)
        elif len(studies.begun(self.study)) >= self.search.budget.trials:
            return False
        else:
            work = self._work_of(studies.next_trial(self.study, self.search))
        self._start(work)
        return True

    def _group_for(self, work: _Work) -> Group | None:
        """A free group that a trial did not just die on, or that is the only one there is."""
        alone = sum(not group.set_aside for group in self.groups) == 1
        return next((group for group in self._free_groups() if alone or group != work.group), None)

    def spent_limit(self, *, with_patience: bool = True) -> str:
        """The limit of the budget that is spent, so that no trial may begin: 'hours 2', 'patience 3'; empty if none."""
        budget, left = self.search.budget, self.display.limits_left(self.display.rows())
        if with_patience and budget.patience is not None:
            last = max((trial.number for trial in studies.best_trials(self.study)), default=-1)
            trained = [trial.number for trial in studies.finished(self.study) if trial.values]  # the others were not
            left["patience"] = budget.patience - sum(number > last for number in trained)
        return next((f"{name} {getattr(budget, name):g}" for name, number in left.items() if number <= 0), "")

    def _end_paused(self) -> None:
        """End the trials that wait at a rung, when all trials of the budget have begun and no other one can go on."""
        if not self._paused or self.stopped_by or self.spent_limit() or not self._free_groups():
            return
        for _, work in sorted(self._paused.items()):
            work.trial.set_user_attr(studies.PRUNED_AT, self.search.rungs.at[work.trial.user_attrs[studies.RUNG]])
            self._tell(work, state=TrialState.PRUNED)

    def _work_of(self, trial: optuna.Trial) -> _Work:
        return _Work(trial, run_folders(self.folder, trial.number, seeds=self.search.seeds_per_trial))

    def _confirmations(self) -> list[_Work]:
        """The best trials, each with fresh seeds, without the runs that an earlier session has ended."""
        confirm, works = self.search.confirm, []
        if confirm is None or self.stopped_by:
            return []
        first, best = self.opened.base.recipe.seed + FRESH_SEED, to_confirm(self.search, self.study)
        spent = self.study.user_attrs.get(studies.CONFIRM_RANK_SECONDS, {})
        for seed in range(first, first + confirm.seeds):
            for trial in best:
                folder = confirm_folder(self.folder, trial.number) / f"seed-{seed}"
                if not outcome.has_ended(folder):
                    work = _Work(FixedTrial(trial.params, trial.number), [folder], seed)
                    work.trial.set_user_attr(studies.LIMIT, trial.value)  # which `spacing` alone asks for
                    work.trial.set_user_attr(studies.RANK_SECONDS, spent.get(work.name, 0.0))
                    works.append(work)
        return works

    def _start(self, work: _Work) -> None:
        """Start a trial's next run, from its last checkpoint if there is one; else tell the study the result."""
        trial, folders = work.trial, work.folders
        values = suggested(self.search.space, trial)
        index = [*(ending_of(folder) == "success" for folder in folders), False].index(False)
        try:
            last = min(index, len(folders) - 1)
            own, stop_after = self._pace(work)
            if last or work.seed is not None:
                own["seed"] = work.seed or values.get("seed", self.opened.base.recipe.seed) + last
            request = outcome.trial_request(
                self.opened, trial.number, values | own, folders[last], self.options, stop_after=stop_after
            )
            prepared = prepare(request, workers=self.search.ranks_per_trial)
            if self.recipe_changed():
                return  # it stays in the study as running, for the next session
            request = replace(request, checked_id=recipe_and_code_id(prepared.opened))  # ranks open the file later
            if self.search.objectives[0].spacing is not None:
                recipe = prepared.opened.recipe
                trial.set_user_attr(studies.EVERY, recipe.evaluation.every / recipe.epochs)
            violations = outcome.recipe_violations(self.search, prepared.opened.tree)
            studies.store_constraints(trial, violations)
            if violated := studies.violated_text(violations):
                raise ValueError(violated)
        except ValueError as error:  # InputRefused too
            if self.recipe_changed():
                return
            self._tell(work, state=TrialState.PRUNED, reason=f"not trained: {error}")
            return
        self._report(work, prepared)  # what a session wrote that was killed before it told the study
        # A run that missed the target makes its trial infeasible, whatever further seeds come to.
        lines = outcome.metrics_lines(folders[index - 1]) if index and self.search.has_goal else []
        if index == len(folders) or (lines and outcome.goal_of(lines, self.search)[1] > 0):
            work.index = index - 1
            self._tell_complete(work)
        elif studies.PRUNED_AT in trial.user_attrs and index == 0:
            self._tell(work, state=TrialState.PRUNED)
        else:
            work.begin_run(index, self._group_for(work), request, prepared, self.search)
            self._running.append(work)
            what = "goes on" if request.resume or index > 0 else "begins"
            self.display.say(f"{work.name} {what}: {values_text(values)}")

    def _check(self, work: _Work) -> None:
        """Its new reports, whether its run has ended or hangs."""
        allowed = self.options.hang_seconds if work.group.joined else _JOIN_SECONDS
        end = work.group.ended(work.folder / LOG)  # before the reports: all that it wrote until then is read below
        if work.has_new_report(ended=end is not None):
            self._report(work, work.prepared)
            if end is None:
                self._judge(work)
        if end is not None:
            self._running.remove(work)
            work.store_time(self.study)
            self.display.running.pop((work.trial.number, work.seed), None)
            self._finish(work, end)
        elif not work.hung and time.monotonic() - work.last_news > allowed:
            work.hung = True
            work.group.kill()

    def _report(self, work: _Work, prepared: Prepared) -> None:
        """Tell the study the reports of a trial's first run; with several objectives it takes none."""
        if len(self.search.objectives) > 1 or work.index > 0:
            return
        target = self.search.objectives[0].target
        reports = outcome.reports_in(outcome.metrics_lines(work.folders[0]), prepared, self.search)
        with warnings.catch_warnings(action="ignore"):  # Optuna keeps the first report of each number, and warns
            for number, value in reports:  # of a target: what is lacking, since less is better there
                work.trial.report(value if target is None else target - value, number)

    def _judge(self, work: _Work) -> None:
        """End a running trial that has taken so much that the mean over its runs is no less than the best trial's."""
        best = studies.best_trials(self.study) if self.search.has_goal else []
        is_first_run = work.seed is None and work.index == 0
        if not is_first_run or studies.PRUNED_AT in work.trial.user_attrs or not best:
            return
        lines = outcome.metrics_lines(work.folder)
        *_, (number, _) = outcome.reports_in(lines, work.prepared, self.search)
        taken, lacking = outcome.goal_of(lines, self.search)
        if number < self.search.reports and lacking > 0 and taken >= best[0].value * len(work.folders):
            work.trial.set_user_attr(studies.PRUNED_AT, number)  # first: it holds even if this supervisor dies
            request_stop(work.folder / STOP_FILE, "search")

    def _pace(self, work: _Work) -> tuple[dict[str, Any], str | None]:
        """When a run is evaluated, and where it ends since it cannot be the best, both as when its trial began."""
        objective, trial = self.search.objectives[0], work.trial
        if objective.spacing is None:
            rung = studies.next_rung(self.search, trial) if work.seed is None else None
            return {}, None if rung is None else f"{self.search.rungs.at[rung] / self.search.reports!r}run"
        if studies.LIMIT not in trial.user_attrs:
            best = studies.best_trials(self.study)
            trial.set_user_attr(studies.LIMIT, max(1, int(best[0].value) - 1) if best else objective.at_most or 0)
        limit = int(trial.user_attrs[studies.LIMIT])
        if not limit:
            return {"evaluation.every": f"{objective.spacing!r}run"}, None
        every = max(1, int(objective.spacing * limit))
        ends = work.seed is None and self.search.seeds_per_trial == 1
        return {"evaluation.every": f"{every}up"}, f"{limit // every * every}up" if ends else None

    def _finish(self, work: _Work, end: RunEnd) -> None:
        """Tell, continue or release a trial whose run has ended."""
        trial = work.trial
        if work.hung and end.how != "not_started":
            silent = f"no update for {self.options.hang_seconds:g} s, after update {work.state.updates}"
            end = RunEnd(how="died", reason=silent)
        if end.how in ("success", "stopped", "diverged") or work.state.updates:
            work.group.failures.clear()
        if end.how == "diverged":
            trial.set_user_attr(studies.DIVERGED, end.update)
            self._tell(work, outcome.diverged_result(self.search))
        elif end.how == "success":
            work.group = None  # any one may go on with it
            if work.seed is None and (rung := studies.next_rung(self.search, trial)) is not None:
                trial.set_user_attr(studies.RUNG, rung)
                self._paused[trial.number] = work
                self.display.say(f"{work.name} waits at report {self.search.rungs.at[rung]} of {self.search.reports}")
            elif work.index + 1 == len(work.folders):
                self._tell_complete(work)
            else:
                self._waiting.append(work)
        elif studies.PRUNED_AT in trial.user_attrs and end.how not in ("failed", "not_started"):
            self._tell(work, state=TrialState.PRUNED)
        elif end.how == "failed":
            if not self.recipe_changed():  # else that is why, before there was anything in its folder
                self._tell(work, state=TrialState.FAIL, reason=end.reason)
        elif self.stopped_by:
            if end.how == "stopped":
                self.display.say(f"{work.name} stopped at update {work.state.updates}, with a checkpoint")
        else:
            if end.how == "stopped":  # by a signal to its ranks, or they missed this process while it was suspended
                end = RunEnd(how="died", reason=f"stopped at update {work.state.updates}, not by this search")
            self._retry(work, end)

    def _retry(self, work: _Work, end: RunEnd) -> None:
        """Let a trial whose ranks have died wait for a group, before all new ones, or fail after too many deaths.

        Only deaths since its newest checkpoint moved count. A group on which two trials in turn made no progress is set
        aside. Ranks that were not started cost their group a failure, and the trial nothing.
        """
        trial, group = work.trial, work.group
        if end.how == "not_started":
            group.failures.add(f"start {group.num_starts}")
            self.display.say(f"{work.name}: its ranks were not started on {group.name}: {end.reason}")
        else:
            group.failures.add(work.name)
            newest = newest_by_name(work.folder)
            at = "none" if newest is None else newest.name
            deaths = [*trial.user_attrs.get(studies.DEATHS, []), [end.reason, at]]
            trial.set_user_attr(studies.DEATHS, deaths)
            idle = sum(place == at for _, place in deaths)
            if idle > self.search.retries:
                for other in self.groups:
                    other.failures.discard(work.name)  # the trial is to blame
                reason = f"{end.reason}; {counted(idle, 'death')} without a new checkpoint"
                self._tell(work, state=TrialState.FAIL, reason=reason)
                return
            self.display.say(f"{work.name}: {end.reason}; it goes on from its last checkpoint")
        if len(group.failures) > 1:
            group.set_aside = self.display.set_aside[group.name] = end.reason
            group.kill()
            self.display.say(f"{group.name} is set aside: {end.reason}")
        self._waiting.append(work)

    def _tell_complete(self, work: _Work) -> None:
        """Tell the study the result of a trial whose runs have all ended, and write its recipe if it is the best."""
        runs = [outcome.metrics_lines(folder) for folder in work.folders[: work.index + 1]]
        self._tell(work, outcome.trial_result(self.search, runs))
        is_best = work.seed is None and work.trial.number in [it.number for it in studies.best_trials(self.study)]
        if is_best and not self.recipe_changed():
            write_best(self.folder, self.opened, self.study)

    def _tell(
        self, work: _Work, result: Result = (None, {}), *, state: TrialState | None = None, reason: str = ""
    ) -> None:
        """End a trial: with a result, or with a state and a reason."""
        if work.seed is not None:  # its folder has the result
            self.display.say(f"{work.name}: {reason or 'ended'}")
            self.display.find_best()
            return
        values, violations = result
        studies.store_constraints(work.trial, violations)
        if reason:
            work.trial.set_user_attr(studies.REASON, reason)
        self.study.tell(work.trial, values, state=state)
        self.display.ended(work.trial.number)
