"""Some of a study's trials, as a study: what Optuna's pruners and samplers look at."""

from __future__ import annotations

from collections.abc import Callable, Container

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

# User attribute of a trial that can be compared with others: {"from": number of its first report that counts, the first
# after its warmup and slow start, "shape": of its rate, as `recipes.comparable` has it}.
COMPARED = "compared"


class StudyView(optuna.Study):
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
