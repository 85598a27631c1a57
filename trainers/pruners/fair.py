"""What stands between a search and Optuna's pruners: which trials are compared, and from when on."""

from __future__ import annotations

import copy

import optuna
from optuna.pruners import BasePruner
from optuna.trial import FrozenTrial

from trainers.study_view import COMPARED, StudyView


class Fair(BasePruner):
    """Asks one of Optuna's pruners, and shows it only what can be compared.

    Optuna's step is the number of a report: the same part of every trial's own run. A trial is not ended before its
    first report that counts, which comes after its warmup and slow start; the reports before that are not shown. Of
    the other trials those are shown whose rate has the same shape, and which at this report are past their own slow
    start. A trial that says nothing about itself is compared with none.

    Args:
        pruner: Optuna's.
        paired: it compares a trial with the best one report by report, so that the best one's slow start is left out
            too.
    """

    def __init__(self, pruner: BasePruner, *, paired: bool = False) -> None:
        self._pruner, self._paired = pruner, paired

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial ends at its last report."""
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
    """A trial with some of its reports."""
    part = copy.copy(trial)
    part.intermediate_values = {step: value for step, value in trial.intermediate_values.items() if step in steps}
    return part
