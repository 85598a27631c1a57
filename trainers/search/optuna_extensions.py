"""A wrapper of Optuna's pruners that decides which trials are compared, and from which report on.

Optuna's TPESampler with a cache of the numbers that it computes from finished trials.

Some of a study's trials, as a study: what Optuna's pruners and samplers look at.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# User attribute of a trial that can be compared with others: {"from": number of its first report that counts, the first
# after its warmup and slow start, "shape": of its rate, as `recipes.search_space.comparable` has it}.
COMPARED = "compared"


class FilteredStudy(optuna.Study):
    """A study that shows only some of its trials; it is for reading.

    Optuna does the same for the brackets of its HyperbandPruner.

    Args:
        study: all of it.
        shown: of a list of trials those that are seen.
    """

    def __init__(self, study: optuna.Study, shown: Callable[[list[FrozenTrial]], list[FrozenTrial]]) -> None:
        vars(self).update(vars(study))
        self._shown = shown

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return self._shown(super()._get_trials(deepcopy, states, use_cache))

    @property
    def best_trial(self) -> FrozenTrial:
        """The best complete trial that is seen and keeps all constraints, the earliest of equals.

        Raises:
            ValueError: there is none, as Optuna has it.
        """
        complete = self._get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        sign = -1 if self.direction == StudyDirection.MAXIMIZE else 1
        feasible = [trial for trial in complete if is_feasible(trial)]
        if not feasible:
            raise ValueError("no trial is completed yet")
        return min(feasible, key=lambda trial: (sign * trial.value, trial.number))


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial keeps all constraints."""
    return all(beyond <= 0 for beyond in trial.constraints.values())


class FairPruner(BasePruner):
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

        view = FilteredStudy(study, comparable)
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


class CachedTpe(TPESampler):
    """Proposes what Optuna's sampler does, faster: the values of a finished trial are converted to numbers only once.

    With a later Optuna that does not call the overridden method nothing is cached, and only the speed is lost.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._known: dict[Any, dict[int, tuple[float, ...]]] = {}

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: dict[str, BaseDistribution], study: optuna.Study
    ) -> dict[str, np.ndarray]:
        known = self._known.setdefault(tuple(search_space.items()), {})
        rows = []
        for trial in trials:
            row = known.get(trial._trial_id)
            if row is None:
                found = super()._get_internal_repr([trial], search_space, study)
                row = tuple(value for column in found.values() for value in column)  # empty if of another space
                if trial.state.is_finished():
                    known[trial._trial_id] = row
            if row:
                rows.append(row)
        columns = zip(*rows, strict=True) if rows else ([] for _ in search_space)
        return {path: np.asarray(column) for path, column in zip(search_space, columns, strict=True)}
