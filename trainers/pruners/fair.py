"""A wrapper of Optuna's pruners that decides which trials are compared, and from which report on."""

from __future__ import annotations

import copy

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial

from trainers.study_view import COMPARED, StudyView


class Fair(BasePruner):
    """Asks one of Optuna's pruners, and shows it only comparable trials and reports.

    Optuna's step is the number of a report: the same fraction of every trial's own run. A trial's reports before the
    end of its warmup and slow start are not shown, and it is not pruned at them. Of the other trials, the pruner sees
    those whose rate has the same shape and whose own slow start has ended by this report. A trial without the user
    attribute `COMPARED` is not pruned, and not compared with others.

    Args:
        pruner: Optuna's.
        paired: the pruner compares a trial with the best one report by report, so reports from the best one's slow
            start are left out too.
    """

    def __init__(self, pruner: BasePruner, *, paired: bool = False) -> None:
        self._pruner, self._paired = pruner, paired

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether to prune a trial at its last report."""
        own, step = trial.user_attrs.get(COMPARED), trial.last_step
        if own is None or step is None or step < own["from"]:
            return False

        shape = own["shape"]

        def comparable(trials: list[FrozenTrial]) -> list[FrozenTrial]:
            return [
                other
                for other in trials
                if (theirs := other.user_attrs.get(COMPARED)) and theirs["from"] <= step and theirs["shape"] == shape
            ]

        view = StudyView(study, comparable)
        steps = {step for step in trial.intermediate_values if step >= own["from"]}
        if self._paired:
            try:
                best = view.best_trial
            except ValueError:
                return False
            steps &= {step for step in best.intermediate_values if step >= best.user_attrs[COMPARED]["from"]}
        return bool(steps) and self._pruner.prune(view, _with_reports(trial, steps))


def _with_reports(trial: FrozenTrial, steps: set[int]) -> FrozenTrial:
    """A copy of a trial with only the reports at `steps`."""
    part = copy.copy(trial)
    part.intermediate_values = {step: value for step, value in trial.intermediate_values.items() if step in steps}
    return part
