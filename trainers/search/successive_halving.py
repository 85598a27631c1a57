"""Successive halving over whole runs of several lengths: which configuration is promoted to a longer run, and when.

All its state is in the study, so a resumed session decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.schema import Search
from trainers.search.study import RUNG, is_feasible

_ENDED = (TrialState.COMPLETE, TrialState.FAIL)  # not PRUNED: trials that violated a constraint before training


def promote(study: optuna.Study, search: Search) -> None:
    """Enqueue the next configuration that has earned a longer run, at the end of the study's queue.

    It does nothing if a promoted one is in the queue already, or if all trials of the budget have begun.
    """
    if not has_rungs(search):
        return
    trials = study.get_trials(deepcopy=False)
    waiting = [trial for trial in trials if trial.state == TrialState.WAITING]
    if len(trials) - len(waiting) >= search.budget.trials or any(RUNG in trial.user_attrs for trial in waiting):
        return
    maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
    below = next_promoted(trials, search, maximize=maximize)
    if below is not None:
        above = _rung(search, below.user_attrs[RUNG]["at"] + 1, of=below.number)
        study.enqueue_trial(below.params, user_attrs={RUNG: above})


def next_promoted(trials: Sequence[FrozenTrial], search: Search, *, maximize: bool) -> FrozenTrial | None:
    """The trial whose configuration is promoted next, the highest rung first; None if none has earned it.

    It is complete, and among the best 1 / reduction of all trials that ended at its rung.
    """
    on_rungs = [trial for trial in trials if RUNG in trial.user_attrs]
    promoted = {_promoted_from(trial) for trial in on_rungs}
    sign = -1 if maximize else 1
    for at in range(len(search.pruner.shares) - 2, -1, -1):
        ended = [trial for trial in on_rungs if trial.state in _ENDED and trial.user_attrs[RUNG]["at"] == at]
        scored = [trial for trial in ended if trial.state == TrialState.COMPLETE and is_feasible(trial)]
        scored.sort(key=lambda trial: (sign * trial.value, trial.number))
        for trial in scored[: len(ended) // search.pruner.reduction]:
            if trial.number not in promoted:
                return trial
    return None


def assigned_share(trial: optuna.Trial, search: Search) -> Fraction:
    """The share of the recipe's epochs that a trial trains; a new configuration is assigned its first rung."""
    if not has_rungs(search):
        return Fraction(1)
    if RUNG not in trial.user_attrs:
        trial.set_user_attr(RUNG, _rung(search, 0))
    return search.pruner.shares[trial.user_attrs[RUNG]["at"]]


def has_rungs(search: Search) -> bool:
    """Whether a search has runs of several lengths."""
    return hasattr(search.pruner, "shares")


def _promoted_from(trial: FrozenTrial) -> int | None:
    """The number of the trial that was promoted to this one, one rung below; None if there is none."""
    return trial.user_attrs.get(RUNG, {}).get("of")


def _rung(search: Search, at: int, *, of: int | None = None) -> dict[str, Any]:
    return {"at": at, "of": of, "whole": search.pruner.shares[at] == 1}
