"""Successive halving over whole runs of several lengths: which configuration is promoted to a longer run, and when.

All its state is in the study: a resumed session, or another supervisor of the same study, decides the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from recipes.schema import Search
from trainers.search.optuna_extensions import FilteredStudy, is_feasible
from trainers.search.storage_cache import refresh
from trainers.search.trial_leases import has_first_claim

# User attribute of a trial: {"at": its rung, "began": rung of its configuration's first trial, "of": number of the
# trial that was promoted to this one, or null, "whole": whether it trains all epochs}.
RUNG = "rung"
_ENDED = (TrialState.COMPLETE, TrialState.FAIL)  # not PRUNED: trials that violated a constraint before training


def promote(study: optuna.Study, search: Search) -> None:
    """Enqueue the next configuration that has earned a longer run, at the end of the study's queue.

    It does nothing if a promoted one is in the queue already, or if all trials of the budget have begun. If several
    supervisors try at once, one of them does it.
    """
    if not has_rungs(search):
        return
    trials = study.get_trials(deepcopy=False)
    waiting = [trial for trial in trials if trial.state == TrialState.WAITING]
    if len(trials) - len(waiting) >= search.budget.trials or any(RUNG in trial.user_attrs for trial in waiting):
        return
    maximize = study.direction == optuna.study.StudyDirection.MAXIMIZE
    below = next_promoted(trials, search, maximize=maximize)
    if below is None or not has_first_claim(study, f"promote {below.number}"):
        return
    refresh(study)
    if not any(_promoted_from(trial) == below.number for trial in study.get_trials(deepcopy=False)):
        own = below.user_attrs[RUNG]
        above = _rung(search, own["at"] + 1, began=own["began"], of=below.number)
        study.enqueue_trial(below.params, user_attrs={RUNG: above})


def next_promoted(trials: Sequence[FrozenTrial], search: Search, *, maximize: bool) -> FrozenTrial | None:
    """The trial whose configuration is promoted next, the highest rung first; None if none has earned it.

    It is complete, and among the best 1 / reduction of all trials that ended at its rung and began at the same one.
    """
    on_rungs = [trial for trial in trials if RUNG in trial.user_attrs]
    promoted = {_promoted_from(trial) for trial in on_rungs}
    sign = -1 if maximize else 1
    for at in range(len(search.pruner.shares) - 2, -1, -1):
        for began in range(at + 1):
            ended = [
                trial
                for trial in on_rungs
                if trial.state in _ENDED
                and (trial.user_attrs[RUNG]["at"], trial.user_attrs[RUNG]["began"]) == (at, began)
            ]
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
        trials = trial.study.get_trials(deepcopy=False)
        rungs = [other.user_attrs[RUNG] for other in trials if RUNG in other.user_attrs]
        begun = Counter(rung["began"] for rung in rungs if rung["of"] is None)
        brackets = {rung: weight for rung, weight in enumerate(search.pruner.brackets) if weight}
        began = min(brackets, key=lambda rung: (Fraction(begun[rung] + 1, brackets[rung]), rung))
        trial.set_user_attr(RUNG, _rung(search, began, began=began))
    return search.pruner.shares[trial.user_attrs[RUNG]["at"]]


def is_whole(trial: FrozenTrial) -> bool:
    """Whether a trial trains all epochs of its recipe: only such a trial can be the best."""
    return trial.user_attrs.get(RUNG, {}).get("whole", True)


def has_rungs(search: Search) -> bool:
    """Whether a search has runs of several lengths."""
    return hasattr(search.pruner, "shares")


def _promoted_from(trial: FrozenTrial) -> int | None:
    """The number of the trial that was promoted to this one, one rung below; None if there is none."""
    return trial.user_attrs.get(RUNG, {}).get("of")


def _rung(search: Search, at: int, *, began: int, of: int | None = None) -> dict[str, Any]:
    return {"at": at, "began": began, "of": of, "whole": search.pruner.shares[at] == 1}


class OneRungSampler(BaseSampler):
    """Shows a sampler only trials of one rung: scores of runs of different lengths are not comparable.

    The highest rung that has at least two more complete trials than the space has paths, else the lowest (the idea of
    BOHB, Falkner et al. 2018, arXiv 1807.01774, not checked).
    """

    def __init__(self, sampler: BaseSampler, search: Search) -> None:
        self._sampler, self._search = sampler, search

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        return self._sampler.infer_relative_search_space(self._view(study), trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        return self._sampler.sample_relative(self._view(study), trial, search_space)

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, *distribution: Any) -> Any:
        return self._sampler.sample_independent(self._view(study), trial, *distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._sampler.before_trial(self._view(study), trial)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, *result: Any) -> None:
        self._sampler.after_trial(self._view(study), trial, *result)

    def reseed_rng(self) -> None:
        self._sampler.reseed_rng()

    def _view(self, study: optuna.Study) -> FilteredStudy:
        complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        rungs = Counter(trial.user_attrs[RUNG]["at"] for trial in complete if RUNG in trial.user_attrs)
        enough = [at for at, count in rungs.items() if count >= len(self._search.space) + 2]
        at = max(enough, default=min(rungs, default=0))
        return FilteredStudy(
            study, lambda trials: [trial for trial in trials if trial.user_attrs.get(RUNG, {}).get("at") == at]
        )
