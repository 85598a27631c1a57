"""A storage as one supervisor sees it: what it wrote itself it knows, and of others it asks seldom."""

from __future__ import annotations

import copy
import time
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.storages import GrpcStorageProxy, JournalStorage
from optuna.trial import FrozenTrial, TrialState

from trainers.search.batched import Batched

VIEW_SECONDS = 10.0


@dataclass
class _Seen:
    """Trials of a study by their ids, in the order of their numbers, as they were read at a time."""

    trials: dict[int, FrozenTrial] = field(default_factory=dict)
    at: float = -float("inf")


class View:
    """Mixed into a storage of Optuna, before it: trials are read at most once in `VIEW_SECONDS`.

    Every write goes to the storage, and at once into the view. Pruners
    and samplers ask for all trials at every report: from a database that is more than half of what a trial costs. What
    other supervisors write is seen within ten seconds, or after `read_again`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seen: dict[int, _Seen] = {}

    def forget(self) -> None:
        """The next question is answered by the storage itself."""
        for seen in self._seen.values():
            seen.at = -float("inf")

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """As of the storage; with `deepcopy=False` the trials are not to be changed."""
        seen = self._fresh(study_id)
        trials = [trial for trial in seen.trials.values() if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """As of the storage; a trial that is not finished may be changed, as Optuna does with its own."""
        for study_id, seen in self._seen.items():
            trial = self._fresh(study_id).trials.get(trial_id) if trial_id in seen.trials else None
            if trial is not None:
                return _own_copy(trial)
        return _own_copy(super().get_trial(trial_id))

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """As of the storage."""
        trial_id = super().create_new_trial(study_id, template_trial)
        if study_id in self._seen:
            self._seen[study_id].trials[trial_id] = self._made(study_id, trial_id)
        return trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """As of the storage."""
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
        value = distribution.to_external_repr(param_value_internal)
        self._note(trial_id, params={param_name: value}, distributions={param_name: distribution})

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Any = None) -> bool:
        """As of the storage."""
        changed = False
        try:
            changed = super().set_trial_state_values(trial_id, state, values)
        finally:
            known = [seen for seen in self._seen.values() if trial_id in seen.trials]
            if changed and state.is_finished() and known:
                for seen in known:
                    seen.trials[trial_id] = self._ended(seen.trials[trial_id], state, values)
            else:
                self.forget()
        return changed

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """As of the storage."""
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)
        self._note(trial_id, intermediate_values={step: intermediate_value})

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As of the storage."""
        super().set_trial_user_attr(trial_id, key, value)
        self._note(trial_id, user_attrs={key: value})

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """As of the storage."""
        super().set_trial_system_attr(trial_id, key, value)
        self._note(trial_id, system_attrs={key: value})

    def _made(self, study_id: int, trial_id: int) -> FrozenTrial:
        """A trial that is new."""
        return super().get_trial(trial_id)

    def _ended(self, trial: FrozenTrial, state: TrialState, values: Any) -> FrozenTrial:
        """A trial that has just been finished."""
        return super().get_trial(trial._trial_id)

    def _fresh(self, study_id: int) -> _Seen:
        seen = self._seen.setdefault(study_id, _Seen())
        if time.monotonic() - seen.at > VIEW_SECONDS:
            trials = super().get_all_trials(study_id, deepcopy=False)
            seen.trials, seen.at = {trial._trial_id: trial for trial in trials}, time.monotonic()
        return seen

    def _note(self, trial_id: int, **added: dict[Any, Any]) -> None:
        """Add to a trial's mappings; those who have its picture of before keep that."""
        for seen in self._seen.values():
            if trial_id in seen.trials:
                trial = copy.copy(seen.trials[trial_id])
                for name, entries in added.items():
                    setattr(trial, name, {**getattr(trial, name), **entries})
                seen.trials[trial_id] = trial


class DatabaseView(View, Batched):
    """Of SQLite, PostgreSQL or MySQL."""

    def _made(self, study_id: int, trial_id: int) -> FrozenTrial:
        """Optuna's cache has it: to read it again would take as long as to make it."""
        trials = self._studies[study_id].trials
        return next(trial for trial in reversed(trials.values()) if trial._trial_id == trial_id)

    def _ended(self, trial: FrozenTrial, state: TrialState, values: Any) -> FrozenTrial:
        """As it was known, for the same reason; but for the time, which the database has given."""
        ended = copy.copy(trial)
        ended.state, ended.values, ended.datetime_complete = state, values, self.ended_at(trial._trial_id)
        return ended


class JournalView(View, JournalStorage):
    """Of a journal file."""

    def close(self) -> None:
        """Nothing is open between two questions."""


class ProxyView(View, GrpcStorageProxy):
    """Of a server that asks the database for many supervisors."""


def read_again(study: optuna.Study) -> None:
    """What is asked of a study next is answered by its storage."""
    study._thread_local.cached_all_trials = None  # Optuna's own, of what a sampler was told
    forget = getattr(study._storage, "forget", None)
    if forget is not None:
        forget()


def _own_copy(trial: FrozenTrial) -> FrozenTrial:
    """A trial that may be changed; one that is finished is not."""
    if trial.state.is_finished():
        return trial
    copied = copy.copy(trial)
    for name in ("params", "distributions", "user_attrs", "system_attrs", "intermediate_values"):
        setattr(copied, name, dict(getattr(trial, name)))
    return copied
