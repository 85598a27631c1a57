"""Optuna's study of a search: how it is opened, which trial is the best, and the result and state of each trial.

The study and its trials carry user attributes, listed below; `trial_leases`, `comparability` and `successive_halving`
have further ones.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from statistics import fmean
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.reading.read import value_at
from recipes.schema import Search
from recipes.schema.constraints import Expression
from recipes.search_space import ranges
from recipes.search_space.open_search import OpenedSearch
from trainers.runs.run_folder import FolderRefused, dataset_facts, differences, run_identity
from trainers.search.optuna_extensions import is_feasible
from trainers.search.storage_cache import flush
from trainers.search.successive_halving import OneRungSampler, has_rungs, is_whole
from trainers.search.trial_leases import add_claim, has_first_claim, new_lease

# User attributes of a trial.
FOLDER, DEATHS, REASON, RANK, PRUNED_AT, SECONDS = "folder", "deaths", "reason", "rank", "pruned_at", "seconds"
DIVERGED = "diverged"  # the update at which the loss stopped being finite
WORKED = "worked"  # a list of [group, began, ended], times in seconds since 1970
COSTS = "costs"  # number of a report -> [samples, device-hours] until then
# User attributes of the study.
_SEARCH, _ENQUEUED, _SPENT = "search", "enqueued", "spent_seconds"
_SEEDS = 100_000  # distance between the sampler's seeds of two sessions
# Keys that decide what a trial is: searches that share a study must agree on them.
_SHARED = ("objective", "space", "fixed", "reports", "seeds_per_trial", "constraints", "transfer")


def open_study(opened: OpenedSearch, storage: Any, *, name: str | None = None) -> optuna.Study:
    """The study of a search, created if there is none.

    The first trials are enqueued once each, however many supervisors begin together. Each session of each supervisor
    has its own sampler seed, so that none repeats the draws of another.

    Raises:
        FolderRefused: the study is of another search.
    """
    study = new_study(opened.search, storage=storage, name=name)
    session = add_claim(study, "session", new_lease())
    num_first = len(_first_trials(opened))
    while study.user_attrs.get(_ENQUEUED, -1) < num_first:
        if has_first_claim(study, f"enqueue {num_first}"):
            if _SEARCH not in study.user_attrs:
                study.set_user_attr(_SEARCH, _shared(opened))
            _require_same(study, opened)
            enqueue(study, opened)
            study.set_user_attr(_ENQUEUED, num_first)
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
    """Enqueue the first trials, each once, also after a search was killed while it did so."""
    for values in _first_trials(opened):
        study.enqueue_trial(values, skip_if_exists=True)


def suggested(trial: optuna.Trial, search: Search) -> dict[str, Any]:
    """Suggest a trial's value for each of its paths and store it; enqueued or stored values stay as they are."""
    values = ranges.suggested(search.space, trial)
    flush(trial.study)
    return values


def spent_seconds(study: optuna.Study, *, besides: str = "") -> float:
    """How long the supervisors of a study have worked, over all sessions except `besides`."""
    excluded = f"{_SPENT} {besides}"
    return sum(value for key, value in study.user_attrs.items() if key.startswith(_SPENT) and key != excluded)


def store_spent_seconds(study: optuna.Study, seconds: float, *, session: str) -> None:
    """Store how long a session has worked so far."""
    study.set_user_attr(f"{_SPENT} {session}", round(seconds, 1))


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are complete, pruned or failed."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best complete trial that trained all epochs and keeps all constraints.

    With several objectives: all such trials on the Pareto front, the best in the first objective first.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    complete = [trial for trial in complete if DIVERGED not in trial.user_attrs]
    directions = [direction.name.lower() for direction in study.directions]
    if len(directions) == 1:
        best: FrozenTrial | None = None
        sign = -1 if directions == ["maximize"] else 1
        for trial in complete:  # the cheap condition first: few trials are better
            if (best is None or sign * trial.value < sign * best.value) and is_feasible(trial) and is_whole(trial):
                best = trial
        return [] if best is None else [best]
    feasible = {trial.number: trial for trial in complete if is_feasible(trial) and is_whole(trial)}
    values = {number: trial.values for number, trial in feasible.items()}
    return [feasible[number] for number in pareto_front(values, directions)]


def tell_complete(study: optuna.Study, trial: optuna.Trial, result: TrialResult) -> FrozenTrial:
    """Tell the study the result of a trial that has run to its end."""
    store_constraints(trial, result)
    return study.tell(trial, result.values)


def store_constraints(trial: optuna.Trial, result: TrialResult) -> None:
    """Store by how much a trial violates each constraint, except those that a killed search has stored already."""
    stored = trial.storage.get_trial(trial._trial_id).constraints if result.violations else {}
    for constraint, violation in result.violations.items():
        if constraint not in stored:
            trial.set_constraint(constraint, violation)


def searches_differ(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Where two searches differ, with both values; a recipe's texts are ignored, because no trial depends on them.

    Args:
        before, now: plain data of `search`, `recipe` and `dataset`.
    """
    return differences(*({**tree, "recipe": run_identity(tree.get("recipe", {}))} for tree in (before, now)))


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
    return OneRungSampler(sampler, search) if has_rungs(search) else sampler


def pareto_front(values: Mapping[int, Sequence[float]], directions: Sequence[str]) -> list[int]:
    """The numbers of the trials that no other trial dominates, the best in the first objective first.

    With one objective: the best trial and those of the same value, the earliest first.

    Args:
        values: number of the trial -> its objectives.
        directions: of each objective: `maximize` or `minimize`.

    >>> pareto_front({0: (0.9, 3.0), 1: (0.8, 1.0), 2: (0.8, 2.0)}, ("maximize", "minimize"))
    [0, 1]
    """
    signs = [-1 if direction == "maximize" else 1 for direction in directions]
    lower = {
        number: tuple(sign * value for sign, value in zip(signs, own, strict=True)) for number, own in values.items()
    }
    front: list[int] = []
    for number in sorted(lower, key=lambda number: (lower[number], number)):  # no trial is dominated by a later one
        if not any(_dominates(lower[other], lower[number]) for other in front):
            front.append(number)
    return front


def _dominates(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether `one` is as good in every objective and better in one; lower is better."""
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """Objectives and constraint violations of a trial.

    Args:
        values: of the objectives, in their order; empty if the trial was not trained.
        violations: constraint -> by how much it is violated, at most 0 if it is kept.
    """

    values: Sequence[float] = ()
    violations: Mapping[str, float]

    @property
    def violated(self) -> str:
        """The violated constraints in a line; empty if there are none."""
        return _violated(self.violations)

    @property
    def state(self) -> str:
        """`infeasible` or `complete`."""
        return "infeasible" if self.violated else "complete"


def trial_result(
    search: Search,
    runs: Sequence[Iterable[Mapping[str, Any]]],
    recipe: Mapping[str, Any],
    *,
    device_hours: float,
) -> TrialResult:
    """The result of a trial whose runs have ended: each score is the mean over the runs.

    Args:
        search: with the objectives and constraints.
        runs: the lines of each run's `metrics.jsonl`.
        recipe: of the trial, resolved.
        device_hours: of all runs together.
    Raises:
        ValueError: an objective is not finite.
    """
    each = [run_scores(lines) for lines in runs]
    scores = {metric: fmean([run[metric] for run in each]) for metric in each[0]} | {"device_hours": device_hours}
    for objective in search.objectives:
        if not math.isfinite(scores[objective.metric]):
            raise ValueError(f"the {objective.metric} is {scores[objective.metric]}")
    violations = dict(check_constraints(search, recipe).violations)
    for constraint in search.constraints:
        if constraint.metric is not None:
            score = scores[constraint.metric]
            own = constraint.violations(score)
            violations |= own if math.isfinite(score) else dict.fromkeys(own, 1.0)  # Optuna takes no NaN
    return TrialResult(values=[scores[objective.metric] for objective in search.objectives], violations=violations)


def check_constraints(search: Search, recipe: Mapping[str, Any]) -> TrialResult:
    """The constraints on recipe values, which are known before the trial is trained.

    Raises:
        ValueError: a value in a constraint's expression is not a number.
    """
    violations: dict[str, float] = {}
    for constraint in search.constraints:
        if constraint.value is not None:
            with suppress(LookupError):  # the recipe lacks one of the paths
                violations |= constraint.violations(Expression(constraint.value)(partial(value_at, recipe)))
    return TrialResult(violations=violations)


def run_scores(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The scores of a finished run by metric.

    accuracy, loss    of the last evaluation
    train_loss        mean over the updates since the evaluation before that
    """
    scores: dict[str, float] = {}
    losses: list[float] = []
    for line in lines:
        key = line.get("key")
        if key == "train_loss":
            losses.append(line["value"])
        elif key in ("eval_accuracy", "eval_loss"):
            scores[key.removeprefix("eval_")] = line["value"]
            scores |= {"train_loss": fmean(losses)} if losses else {}
            losses = []
    return scores


def state_of(trial: FrozenTrial) -> str:
    """One of complete, short (of a lower rung), diverged, infeasible, pruned, failed, running, waiting."""
    if DIVERGED in trial.user_attrs:
        return "diverged"
    if not is_feasible(trial):
        return "infeasible"
    if trial.state == TrialState.COMPLETE:
        return "complete" if is_whole(trial) else "short"
    return "failed" if trial.state == TrialState.FAIL else trial.state.name.lower()


def reason_of(trial: FrozenTrial) -> str:
    """Why a trial is not complete, or which constraints it violates; empty otherwise."""
    if DIVERGED in trial.user_attrs:
        return f"the loss is not finite at update {trial.user_attrs[DIVERGED]}"
    return trial.user_attrs.get(REASON, "") or _violated(trial.constraints)


def state_counts(trials: Sequence[FrozenTrial]) -> str:
    """How many trials ended in which state: '14 trials: 3 complete, 7 infeasible, 4 pruned'."""
    states = [state_of(trial) for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(trials)} trial{'s' if len(trials) > 1 else ''}: {counts}" if trials else "no trial has ended yet"


def _violated(violations: Mapping[str, float]) -> str:
    return ", ".join(f"not {constraint}" for constraint, violation in violations.items() if violation > 0)
