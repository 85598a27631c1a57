"""Optuna's storages with cached reads and, for a database, batched writes.

    CachedDatabase = CachedReads + BatchedWrites + Optuna's RDBStorage        SQLite, PostgreSQL, MySQL
    CachedJournal  = CachedReads + Optuna's JournalStorage
    CachedProxy    = CachedReads + Optuna's GrpcStorageProxy

A supervisor sees its own writes at once and those of other supervisors within ten seconds, or after `refresh`. Optuna's
own cache asks the database about every trial that is not finished at each read. With one transaction a write and all
those reads, most of what a trial costs beside its training would be the storage.
"""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import GrpcStorageProxy, JournalStorage, RDBStorage, _CachedStorage
from optuna.storages._rdb.models import (
    TrialIntermediateValueModel,
    TrialModel,
    TrialParamModel,
    TrialUserAttributeModel,
)
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import insert
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

CACHE_SECONDS = 10.0
FLUSH_SECONDS = 5.0
_UPSERTS = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}
_FINISHED = (TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL)


def refresh(study: optuna.Study) -> None:
    """Let the next call on a study read from its storage."""
    study._thread_local.cached_all_trials = None  # Optuna's own cache, for samplers
    if isinstance(study._storage, CachedReads):
        study._storage.invalidate()


def flush(study: optuna.Study, *, after: float = 0.0) -> None:
    """Flush a study's storage if it buffers and its oldest write is at least `after` seconds old."""
    if isinstance(study._storage, BatchedWrites):
        study._storage.flush(after=after)


@dataclass
class _Snapshot:
    """Trials of a study by id, in the order of their numbers, and when they were read."""

    trials: dict[int, FrozenTrial] = field(default_factory=dict)
    read_at: float = -float("inf")


class CachedReads:
    """A mixin for Optuna's storages, listed before the storage: trials are read at most once in `CACHE_SECONDS`.

    Every write goes to the storage and at once into the cache.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._snapshots: dict[int, _Snapshot] = {}

    def invalidate(self) -> None:
        """Let the next call read from the storage."""
        for snapshot in self._snapshots.values():
            snapshot.read_at = -float("inf")

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """See Optuna's storage; with `deepcopy=False` the caller must not change the trials."""
        snapshot = self._current(study_id)
        trials = [trial for trial in snapshot.trials.values() if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """See Optuna's storage; the caller may change a trial that is not finished, as Optuna itself does."""
        for study_id, snapshot in self._snapshots.items():
            trial = self._current(study_id).trials.get(trial_id) if trial_id in snapshot.trials else None
            if trial is not None:
                return _changeable(trial)
        return _changeable(super().get_trial(trial_id))

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        trial_id = super().create_new_trial(study_id, template_trial)
        if study_id in self._snapshots:
            self._snapshots[study_id].trials[trial_id] = self._read_created(study_id, trial_id)
        return trial_id

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
        value = distribution.to_external_repr(param_value_internal)
        self._update(trial_id, params={param_name: value}, distributions={param_name: distribution})

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Any = None) -> bool:
        changed = False
        try:
            changed = super().set_trial_state_values(trial_id, state, values)
        finally:
            snapshots = [snapshot for snapshot in self._snapshots.values() if trial_id in snapshot.trials]
            if changed and state.is_finished() and snapshots:
                for snapshot in snapshots:
                    snapshot.trials[trial_id] = self._read_finished(snapshot.trials[trial_id], state, values)
            else:
                self.invalidate()
        return changed

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        super().set_trial_intermediate_value(trial_id, step, intermediate_value)
        self._update(trial_id, intermediate_values={step: intermediate_value})

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_user_attr(trial_id, key, value)
        self._update(trial_id, user_attrs={key: value})

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        super().set_trial_system_attr(trial_id, key, value)
        self._update(trial_id, system_attrs={key: value})

    def _read_created(self, study_id: int, trial_id: int) -> FrozenTrial:
        """A trial that was just created."""
        return super().get_trial(trial_id)

    def _read_finished(self, trial: FrozenTrial, state: TrialState, values: Any) -> FrozenTrial:
        """A trial that was just finished."""
        return super().get_trial(trial._trial_id)

    def _current(self, study_id: int) -> _Snapshot:
        snapshot = self._snapshots.setdefault(study_id, _Snapshot())
        if time.monotonic() - snapshot.read_at > CACHE_SECONDS:
            trials = super().get_all_trials(study_id, deepcopy=False)
            snapshot.trials, snapshot.read_at = {trial._trial_id: trial for trial in trials}, time.monotonic()
        return snapshot

    def _update(self, trial_id: int, **entries: dict[Any, Any]) -> None:
        """Add entries to a trial's mappings, on a copy: callers that hold the trial keep it as it was."""
        for snapshot in self._snapshots.values():
            if trial_id in snapshot.trials:
                trial = copy.copy(snapshot.trials[trial_id])
                for name, added in entries.items():
                    setattr(trial, name, {**getattr(trial, name), **added})
                snapshot.trials[trial_id] = trial


def _changeable(trial: FrozenTrial) -> FrozenTrial:
    """A copy of a trial that the caller may change; a finished trial itself, because nothing changes it."""
    if trial.state.is_finished():
        return trial
    copied = copy.copy(trial)
    for name in ("params", "distributions", "user_attrs", "system_attrs", "intermediate_values"):
        setattr(copied, name, dict(getattr(trial, name)))
    return copied


class BatchedWrites(_CachedStorage):
    """Optuna's cached database storage, with the writes of running trials buffered.

    The buffer is flushed before any trial begins, ends or is read, and five seconds after its first write at the
    latest. A supervisor killed before that loses reports; the trial's folder still has them.

    Args:
        backend: the database.
        at_once: user attributes that are written at once, together with the whole buffer.
    """

    def __init__(self, backend: RDBStorage, *, at_once: Container[str] = ()) -> None:
        super().__init__(backend)
        self._at_once = at_once
        self._rows: list[tuple[Any, dict[str, Any]]] = []
        self._first_write = 0.0
        self._distributions: dict[str, BaseDistribution] = {}

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        """Written at once for a path's first value: the database checks the distribution against earlier trials."""
        if self._distributions.get(param_name) != distribution:
            self.flush()
            super().set_trial_param(trial_id, param_name, param_value_internal, distribution)
            self._distributions[param_name] = distribution
            return
        row = {"param_value": param_value_internal, "distribution_json": distribution_to_json(distribution)}
        self._buffer(TrialParamModel, {"trial_id": trial_id, "param_name": param_name, **row})

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """See Optuna's storage; buffered."""
        value, kind = TrialIntermediateValueModel.intermediate_value_to_stored_repr(intermediate_value)
        row = {"intermediate_value": value, "intermediate_value_type": kind}
        self._buffer(TrialIntermediateValueModel, {"trial_id": trial_id, "step": step, **row})

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """See Optuna's storage; buffered unless the key is one of `at_once`."""
        json.dumps(value)  # raises here, not at the flush, if the value cannot be written
        self._buffer(TrialUserAttributeModel, {"trial_id": trial_id, "key": key, "value": value})
        if key in self._at_once:
            self.flush()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Any = None) -> bool:
        self.flush()
        return super().set_trial_state_values(trial_id, state, values)

    def get_trial(self, trial_id: int) -> FrozenTrial:
        self.flush()
        return super().get_trial(trial_id)

    def get_all_trials(self, study_id: int, deepcopy: bool = True, states: Any = None) -> list[FrozenTrial]:
        self.flush()
        return super().get_all_trials(study_id, deepcopy=deepcopy, states=states)

    def flush(self, *, after: float = 0.0) -> None:
        """Write the buffer, if its oldest write is at least `after` seconds old.

        Raises:
            UpdateFinishedTrialError: one of the trials is finished already.
        """
        if not self._rows or time.monotonic() - self._first_write < after:
            return
        rows, self._rows = self._rows, []
        try:
            with _create_scoped_session(self._backend.scoped_session) as session:
                trial_ids = {row["trial_id"] for _, row in rows}
                ended = TrialModel.trial_id.in_(trial_ids), TrialModel.state.in_(_FINISHED)
                number = session.query(TrialModel.number).filter(*ended).first()
                if number is not None:
                    raise UpdateFinishedTrialError(f"trial {number[0]} is finished already")
                for model in (TrialParamModel, TrialIntermediateValueModel):
                    batch = [row for kind, row in rows if kind is model]
                    if batch:
                        session.execute(insert(model), batch)
                self._write_attributes(session, [row for kind, row in rows if kind is TrialUserAttributeModel])
        except IntegrityError:  # a report is there already, from another supervisor that worked on the trial
            self._write_one_by_one(rows)

    def close(self) -> None:
        """Flush, and close the connections."""
        self.flush()
        self._backend.remove_session()
        self._backend.engine.dispose()

    def _buffer(self, model: Any, row: dict[str, Any]) -> None:
        if not self._rows:
            self._first_write = time.monotonic()
        self._rows.append((model, row))
        self.flush(after=FLUSH_SECONDS)

    def _write_attributes(self, session: Any, rows: list[dict[str, Any]]) -> None:
        """Write the last value of each key; where the dialect has no upsert, one by one as Optuna does."""
        last = {(row["trial_id"], row["key"]): row for row in rows}.values()
        upsert = _UPSERTS.get(self._backend.engine.name)
        if upsert is None:
            for row in last:
                self._backend._set_trial_attr_without_commit(session, TrialUserAttributeModel, **row)
        elif last:
            statement = upsert(TrialUserAttributeModel)
            keys, change = ["trial_id", "key"], {"value_json": statement.excluded.value_json}
            stored = [
                {"trial_id": row["trial_id"], "key": row["key"], "value_json": json.dumps(row["value"])} for row in last
            ]
            session.connection().execute(statement.on_conflict_do_update(index_elements=keys, set_=change), stored)

    def _write_one_by_one(self, rows: list[tuple[Any, dict[str, Any]]]) -> None:
        """Write by Optuna's own methods, which replace a report or an attribute; parameters never change."""
        for model, row in rows:
            if model is TrialIntermediateValueModel:
                score = model.stored_repr_to_intermediate_value(
                    row["intermediate_value"], row["intermediate_value_type"]
                )
                super().set_trial_intermediate_value(row["trial_id"], row["step"], score)
            elif model is TrialUserAttributeModel:
                super().set_trial_user_attr(**row)
            elif row["param_name"] not in self._backend.get_trial(row["trial_id"]).params:
                distribution = json_to_distribution(row["distribution_json"])
                super().set_trial_param(row["trial_id"], row["param_name"], row["param_value"], distribution)


class CachedDatabase(CachedReads, BatchedWrites):
    """SQLite, PostgreSQL or MySQL, cached and batched."""

    def _read_created(self, study_id: int, trial_id: int) -> FrozenTrial:
        """From Optuna's cache: reading it again would take as long as creating it."""
        trials = self._studies[study_id].trials
        return next(trial for trial in reversed(trials.values()) if trial._trial_id == trial_id)

    def _read_finished(self, trial: FrozenTrial, state: TrialState, values: Any) -> FrozenTrial:
        """From the cache, for the same reason; only the time is read, because the database sets it."""
        finished = copy.copy(trial)
        finished.state, finished.values = state, values
        with _create_scoped_session(self._backend.scoped_session) as session:
            finished.datetime_complete = TrialModel.find_or_raise_by_id(trial._trial_id, session).datetime_complete
        return finished


class CachedJournal(CachedReads, JournalStorage):
    """A journal file, cached."""

    def close(self) -> None:
        """Do nothing: the file is not open between two calls."""


class CachedProxy(CachedReads, GrpcStorageProxy):
    """A gRPC proxy, cached."""
