"""Optuna's study of a search: where it is stored, and what it holds of a trial."""

from __future__ import annotations

import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes import conditional
from recipes.open_search import OpenedSearch
from recipes.schema import Search
from trainers.search.front import front
from trainers.search.outcome import Outcome
from trainers.search.rungs import OneLength, climbs, is_whole
from trainers.study_view import is_feasible

DATABASE = "study.db"
# User attributes of a trial.
FOLDER, DEATHS, REASON, RANK, PRUNED_AT, SECONDS = "folder", "deaths", "reason", "rank", "pruned_at", "seconds"
WORKED = "worked"  # a list: group, and when it began and ended, in seconds since 1970
_SPENT = "spent_seconds"  # user attribute of the study


def open_study(folder: Path, opened: OpenedSearch) -> optuna.Study:
    """The study in a search's folder, made if there is none: SQLite with a write-ahead log.

    What is to be tried first is in its queue. The sampler's seed moves on with the number of trials: a search that goes
    on does not repeat its draws.
    """
    path = (folder / DATABASE).resolve()
    with closing(sqlite3.connect(path, timeout=60)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")  # a property of the file: readers do not wait for the writer
    url, arguments = f"sqlite:///{path}", {"connect_args": {"timeout": 60}}
    study = new_study(opened.search, storage=optuna.storages.RDBStorage(url, engine_kwargs=arguments))
    study.sampler = _sampler(opened.search, begun=len(study.get_trials(deepcopy=False)))
    enqueue(study, opened)
    return study


def new_study(search: Search, *, storage: Any = None) -> optuna.Study:
    """A study for a search, in memory by default."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=search.name,
            storage=storage,
            directions=[objective.direction for objective in search.objectives],
            sampler=_sampler(search, begun=0),
            pruner=optuna.pruners.NopPruner() if search.pruner is None else search.pruner.build(),
            load_if_exists=True,
        )


def enqueue(study: optuna.Study, opened: OpenedSearch) -> None:
    """Put what is to be tried first into the queue, each once, also where a search was killed while it did so."""
    first = getattr(opened.search.sampler, "first", lambda space: [])
    for values in [*opened.enqueued, *first(opened.search.space)][: opened.search.budget.trials]:
        study.enqueue_trial(values, skip_if_exists=True)


def suggested(trial: optuna.Trial, search: Search) -> dict[str, Any]:
    """A trial's value for each path that it has; those given already are kept."""
    return conditional.suggested(search.space, trial)


def spent_seconds(study: optuna.Study) -> float:
    """How long the search has worked, over all its sessions."""
    return study.user_attrs.get(_SPENT, 0.0)


def note_spent(study: optuna.Study, seconds: float) -> None:
    """Keep it."""
    study.set_user_attr(_SPENT, round(seconds, 1))


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are complete, pruned or failed."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """The first of `best_trials`, None while there is none."""
    return next(iter(best_trials(study)), None)


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best complete trial of all epochs that keeps all constraints.

    With several objectives: all that no other one beats in everything, the best in the first objective first.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    feasible = {trial.number: trial for trial in complete if is_feasible(trial) and is_whole(trial)}
    directions = [direction.name.lower() for direction in study.directions]
    numbers = front({number: trial.values for number, trial in feasible.items()}, directions)
    return [feasible[number] for number in numbers[: 1 if len(directions) == 1 else None]]


def tell_complete(study: optuna.Study, trial: optuna.Trial, found: Outcome) -> FrozenTrial:
    """A trial has run to its end."""
    note_constraints(trial, found)
    return study.tell(trial, found.values)


def note_constraints(trial: optuna.Trial, found: Outcome) -> None:
    """Keep how far a trial is beyond each constraint, once: a search that was killed in the middle goes on here."""
    known = trial.storage.get_trial(trial._trial_id).constraints if found.beyond else {}
    for said, beyond in found.beyond.items():
        if said not in known:
            trial.set_constraint(said, beyond)


def _sampler(search: Search, *, begun: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = search.sampler.build(seed=search.seed + begun)
    return OneLength(sampler, search) if climbs(search) else sampler
