"""Optuna's study of a search, and the user attributes that it and its trials carry."""

from __future__ import annotations

import json
import time
import warnings
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes import conditional
from recipes.open_search import OpenedSearch
from recipes.schema import Search
from trainers.run_folder import FolderRefused, dataset_facts, deciding, differences
from trainers.search.batched import flush
from trainers.search.front import front
from trainers.search.leases import own_lease
from trainers.search.ledger import is_first, place_in_line
from trainers.search.outcome import Outcome
from trainers.search.rungs import OneLength, climbs, is_whole
from trainers.study_view import is_feasible

# User attributes of a trial.
FOLDER, DEATHS, REASON, RANK, PRUNED_AT, SECONDS = "folder", "deaths", "reason", "rank", "pruned_at", "seconds"
WORKED = "worked"  # a list of [group, began, ended], times in seconds since 1970
# User attributes of the study.
_SEARCH, _ENQUEUED, _SPENT = "search", "enqueued", "spent_seconds"
_SEEDS = 100_000  # distance between the sampler's seeds of two sessions
# Keys that decide what a trial is: searches that share a study must agree on them.
_SHARED = ("objective", "space", "fixed", "reports", "seeds_per_trial", "constraints", "transfer")


def open_study(opened: OpenedSearch, storage: Any, *, name: str | None = None) -> optuna.Study:
    """The study of a search, made if there is none.

    The first trials are enqueued once each, however many supervisors begin together. Each session of each supervisor
    has its own sampler seed, so that none repeats the draws of another.

    Raises:
        FolderRefused: the study is of another search.
    """
    study = new_study(opened.search, storage=storage, name=name)
    session = place_in_line(study, "session", own_lease())
    wanted = len(_first_trials(opened))
    while study.user_attrs.get(_ENQUEUED, -1) < wanted:
        if is_first(study, f"enqueue {wanted}", own_lease()):
            if _SEARCH not in study.user_attrs:
                study.set_user_attr(_SEARCH, _shared(opened))
            _require_same(study, opened)
            enqueue(study, opened)
            study.set_user_attr(_ENQUEUED, wanted)
        time.sleep(0.05)
    _require_same(study, opened)
    study.sampler = _sampler(opened.search, seed=opened.search.seed + _SEEDS * session)
    return study


def new_study(search: Search, *, storage: Any = None, name: str | None = None) -> optuna.Study:
    """The study of a search, loaded if it exists; by default in memory, with the search's name."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=name or search.name,
            storage=storage,
            directions=[objective.direction for objective in search.objectives],
            sampler=_sampler(search, seed=search.seed),
            pruner=optuna.pruners.NopPruner() if search.pruner is None else search.pruner.build(),
            load_if_exists=True,
        )


def enqueue(study: optuna.Study, opened: OpenedSearch) -> None:
    """Enqueue the first trials, each once, also if a search was killed while it did so."""
    for values in _first_trials(opened):
        study.enqueue_trial(values, skip_if_exists=True)


def suggested(trial: optuna.Trial, search: Search) -> dict[str, Any]:
    """A trial's value for each of its paths, written to its storage; enqueued or known values stay as they are."""
    values = conditional.suggested(search.space, trial)
    flush(trial.study)
    return values


def spent_seconds(study: optuna.Study, *, besides: str = "") -> float:
    """How long the supervisors of a study have worked, over all sessions except `besides`."""
    mine = f"{_SPENT} {besides}"
    return sum(value for key, value in study.user_attrs.items() if key.startswith(_SPENT) and key != mine)


def note_spent(study: optuna.Study, seconds: float, *, session: str) -> None:
    """Store how long a session has worked so far."""
    study.set_user_attr(f"{_SPENT} {session}", round(seconds, 1))


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are complete, pruned or failed."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def best_trial(study: optuna.Study) -> FrozenTrial | None:
    """The first of `best_trials`, None while there is none."""
    return next(iter(best_trials(study)), None)


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best complete trial that trained all epochs and keeps all constraints.

    With several objectives: all such trials on the Pareto front, the best in the first objective first.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    directions = [direction.name.lower() for direction in study.directions]
    if len(directions) == 1:
        best: FrozenTrial | None = None
        sign = -1 if directions == ["maximize"] else 1
        for trial in complete:  # the cheap condition first: few trials are better
            if (best is None or sign * trial.value < sign * best.value) and is_feasible(trial) and is_whole(trial):
                best = trial
        return [] if best is None else [best]
    feasible = {trial.number: trial for trial in complete if is_feasible(trial) and is_whole(trial)}
    return [feasible[number] for number in front({number: t.values for number, t in feasible.items()}, directions)]


def tell_complete(study: optuna.Study, trial: optuna.Trial, found: Outcome) -> FrozenTrial:
    """Tell the study the outcome of a trial that has run to its end."""
    note_constraints(trial, found)
    return study.tell(trial, found.values)


def note_constraints(trial: optuna.Trial, found: Outcome) -> None:
    """Store by how much a trial violates each constraint; those a killed search has stored already are skipped."""
    known = trial.storage.get_trial(trial._trial_id).constraints if found.beyond else {}
    for said, beyond in found.beyond.items():
        if said not in known:
            trial.set_constraint(said, beyond)


def searches_differ(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Where two searches differ, with both values; a recipe's texts are ignored, because no trial depends on them.

    Args:
        before, now: plain data of `search`, `recipe` and `dataset`.
    """
    return differences(*({**tree, "recipe": deciding(tree.get("recipe", {}))} for tree in (before, now)))


def _first_trials(opened: OpenedSearch) -> list[dict[str, Any]]:
    first = getattr(opened.search.sampler, "first", lambda space: [])
    return [*opened.enqueued, *first(opened.search.space)][: opened.search.budget.trials]


def _shared(opened: OpenedSearch) -> dict[str, Any]:
    """What all searches that share a study must agree on, as plain data."""
    search = {key: opened.tree[key] for key in _SHARED if key in opened.tree}
    tree = {"search": search, "recipe": opened.base.tree, "dataset": dataset_facts(opened.base.dataset)}
    return json.loads(json.dumps(tree))


def _require_same(study: optuna.Study, opened: OpenedSearch) -> None:
    before = study.user_attrs.get(_SEARCH)
    changed = [] if before is None else searches_differ(before, _shared(opened))
    if changed:
        raise FolderRefused(
            f"the study {study.study_name} in this storage is of another search; {'; '.join(changed)}; choose another "
            "--study, or another --storage"
        )


def _sampler(search: Search, *, seed: int) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = search.sampler.build(seed=seed)
    return OneLength(sampler, search) if climbs(search) else sampler
