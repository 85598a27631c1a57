"""Optuna's study and TPE sampler, extended: a study that shows only some of its trials, and a sampler with a cache."""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState


class FilteredStudy(optuna.Study):
    """A study for reading that shows a pruner, sampler or plot of Optuna only some trials.

    Optuna has a private class of the same name for the brackets of its HyperbandPruner.

    Args:
        study: all of it.
        select: returns those of a list of trials that are shown.
    """

    def __init__(self, study: optuna.Study, select: Callable[[list[FrozenTrial]], list[FrozenTrial]]) -> None:
        vars(self).update(vars(study))
        self._select = select

    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        return self._select(super()._get_trials(deepcopy, states, use_cache))

    @property
    def best_trial(self) -> FrozenTrial:
        """The best complete trial that is shown and keeps all constraints, the earliest of equals.

        Raises:
            ValueError: there is none, as in Optuna.
        """
        complete = self._get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        sign = -1 if self.direction == StudyDirection.MAXIMIZE else 1
        feasible = [trial for trial in complete if is_feasible(trial)]
        if not feasible:
            raise ValueError("no trial is completed yet")
        return min(feasible, key=lambda trial: (sign * trial.value, trial.number))


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial keeps all constraints."""
    return all(violation <= 0 for violation in trial.constraints.values())


class CachedTpe(TPESampler):
    """Proposes what Optuna's sampler proposes, faster: it converts the values of a finished trial to numbers only once.

    A later Optuna that does not call the overridden method loses only the speed.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._converted: dict[Any, dict[int, tuple[float, ...]]] = {}

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: dict[str, BaseDistribution], study: optuna.Study
    ) -> dict[str, np.ndarray]:
        converted = self._converted.setdefault(tuple(search_space.items()), {})
        rows = []
        for trial in trials:
            row = converted.get(trial._trial_id)
            if row is None:
                columns = super()._get_internal_repr([trial], search_space, study)
                row = tuple(value for column in columns.values() for value in column)  # empty if of another space
                if trial.state.is_finished():
                    converted[trial._trial_id] = row
            if row:
                rows.append(row)
        columns = zip(*rows, strict=True) if rows else ([] for _ in search_space)
        return {path: np.asarray(column) for path, column in zip(search_space, columns, strict=True)}
