"""Optuna's study of a search: opening it, its trials one by one, which is the best, and what a sampler may see.

This is the only file that uses Optuna's private names. A trial's user attributes are listed below.
"""

from __future__ import annotations

import json
import math
import uuid
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from recipes.planning.random_bits import draws, word
from recipes.schema import Search
from recipes.search_space import ranges
from recipes.search_space.open_search import OpenedSearch
from trainers.runs.run_folder import FolderRefused, dataset_facts, differences, run_identity
from trainers.search.prior import Prior

# User attributes of a trial.
FOLDER, REASON, RANK, SECONDS = "folder", "reason", "rank", "seconds"
DEATHS = "deaths"  # [reason, newest checkpoint's update] of each death of its ranks
PRUNED_AT = "pruned_at"  # the number of a report
DIVERGED = "diverged"  # the update at which its loss or weights were no longer finite
# User attributes of the study.
_SEARCH, _OWNER, _SPENT = "search", "owner", "spent_seconds"
# Keys that may change between two sessions of one search: no trial depends on them.
_ATTEMPTS, _AT_RANDOM = 4, 30  # at a proposal that is not next to a trial that diverged
_MAY_CHANGE = ("title", "budget", "retries", "ranks_per_trial", "confirm")


def open_study(opened: OpenedSearch, storage: Any, *, name: str, owner: str, prior: Prior | None) -> optuna.Study:
    """The study of a search, created if there is none; its first trials are enqueued, each once.

    Args:
        opened: the search.
        storage: of `opened_storage`.
        name: of the study.
        owner: a word that the search's folder keeps: no other folder may go on with this study.
        prior: what is known before the search, from which its first trials are drawn.
    Raises:
        FolderRefused: the study is of another search, or of another folder.
    """
    study = new_study(opened.search, storage=storage, name=name, prior=prior)
    own = json.loads(json.dumps(search_identity(opened)))
    if _OWNER not in study.user_attrs:
        study.set_user_attr(_SEARCH, own)
        study.set_user_attr(_OWNER, owner)
    changed = searches_differ(study.user_attrs[_SEARCH], own)
    if changed or study.user_attrs[_OWNER] != owner:
        why = "; ".join(changed) or "it was begun in another folder, and one search owns it"
        raise FolderRefused(f"the study {name} in this storage is of another search; {why}; choose another --study")
    enqueue(study, opened)
    return study


def enqueue(study: optuna.Study, opened: OpenedSearch) -> None:
    """Enqueue the first trials, each once, also after a search was killed while it did so."""
    first = getattr(opened.search.sampler, "first", lambda space: [])(opened.search.space)
    for values in [*opened.enqueued, *first][: opened.search.budget.trials]:
        study.enqueue_trial(values, skip_if_exists=True)


def new_study(search: Search, *, storage: Any = None, name: str | None = None, prior: Prior | None = None) -> Any:
    """The study of a search, loaded if it exists; by default in memory, with the search's name."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.create_study(
            study_name=name or search.name,
            storage=storage,
            directions=[objective.direction for objective in search.objectives],
            sampler=_SeededSampler(search, prior),
            pruner=optuna.pruners.NopPruner() if search.pruner is None else search.pruner.build(),
            load_if_exists=True,
        )


def new_owner() -> str:
    """A word that no other folder has."""
    return uuid.uuid4().hex


def search_identity(opened: OpenedSearch) -> dict[str, Any]:
    """What all sessions of one search must agree on, as plain data."""
    tree = {key: value for key, value in opened.tree.items() if key not in _MAY_CHANGE}
    return {"search": tree, "recipe": opened.base.tree, "dataset": dataset_facts(opened.base.dataset)}


def searches_differ(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Where two searches differ, with both values; a recipe's texts are ignored, because no trial depends on them."""
    return differences(*({**tree, "recipe": run_identity(tree.get("recipe", {}))} for tree in (before, now)))


def next_trial(study: optuna.Study, search: Search) -> optuna.Trial:
    """A new trial with a value for each of its paths: an enqueued one, or what the sampler proposes."""
    trial = study.ask()
    suggested(trial, search)
    return trial


def suggested(trial: optuna.Trial, search: Search) -> dict[str, Any]:
    """A trial's value for each of its paths; values that are stored already stay as they are."""
    return ranges.suggested(search.space, trial)


def left_running(study: optuna.Study) -> list[optuna.Trial]:
    """The trials that an earlier session did not end."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [optuna.Trial(study, trial._trial_id) for trial in trials]


def num_begun(study: optuna.Study) -> int:
    """How many trials have begun."""
    return sum(trial.state != TrialState.WAITING for trial in study.get_trials(deepcopy=False))


def reported_numbers(trial: optuna.Trial) -> set[int]:
    """The numbers of a trial's reports in the study."""
    return set(trial.storage.get_trial(trial._trial_id).intermediate_values)


def store_constraints(trial: optuna.Trial, violations: Mapping[str, float]) -> None:
    """Store by how much a trial violates each constraint, except those that a killed search has stored already."""
    stored = trial.storage.get_trial(trial._trial_id).constraints if violations else {}
    for constraint, violation in violations.items():
        if constraint not in stored:
            trial.set_constraint(constraint, violation)


def spent_seconds(study: optuna.Study) -> float:
    """How long the search has worked, over all its sessions."""
    return study.user_attrs.get(_SPENT, 0.0)


def store_spent_seconds(study: optuna.Study, seconds: float) -> None:
    """Store how long the search has worked, over all its sessions."""
    study.set_user_attr(_SPENT, round(seconds, 1))


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are complete, pruned or failed."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def ranked_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that may be the best, the best first: complete, not diverged, within all constraints.

    With several objectives: those on the Pareto front, the best in the first objective first.
    """
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    directions = [direction.name.lower() for direction in study.directions]
    fit = {trial.number: trial for trial in complete if state_of(trial) == "complete"}
    if len(directions) == 1:
        sign = -1 if directions == ["maximize"] else 1
        return sorted(fit.values(), key=lambda trial: (sign * trial.value, trial.number))
    values = {number: trial.values for number, trial in fit.items()}
    return [fit[number] for number in pareto_front(values, directions)]


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial; with several objectives all on the Pareto front."""
    ranked = ranked_trials(study)
    return ranked if len(study.directions) > 1 else ranked[:1]


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


def gain_of_second_half(study: optuna.Study) -> float:
    """By how much half of the trials is beaten by all of them, in the mean over all orders; 0 with fewer than 4.

        v_1 - sum_i v_i C(n - i, k - 1) / C(n, k)       v sorted, the best first; k = n // 2

    A guide to what as many trials again would gain: usually no more than this.
    """
    finished = [trial for trial in ranked_trials(study) if math.isfinite(trial.value)]
    n, k = len(finished), len(finished) // 2
    if n < 4:
        return 0.0
    chances = [math.comb(n - i, k - 1) / math.comb(n, k) for i in range(1, n + 1)]
    return abs(finished[0].value - sum(trial.value * chance for trial, chance in zip(finished, chances, strict=True)))


def state_of(trial: FrozenTrial) -> str:
    """One of complete, diverged, infeasible, pruned, failed, running, waiting."""
    if DIVERGED in trial.user_attrs:
        return "diverged"
    if not is_feasible(trial):
        return "infeasible"
    if trial.state == TrialState.COMPLETE:
        return "complete"
    return "failed" if trial.state == TrialState.FAIL else trial.state.name.lower()


def is_feasible(trial: FrozenTrial) -> bool:
    """Whether a trial keeps all constraints."""
    return all(violation <= 0 for violation in trial.constraints.values())


def reason_of(trial: FrozenTrial) -> str:
    """Why a trial is not complete, or which constraints it violates; empty otherwise."""
    if DIVERGED in trial.user_attrs:
        return f"the loss or a weight is not finite at update {trial.user_attrs[DIVERGED]}"
    return trial.user_attrs.get(REASON, "") or violated_text(trial.constraints)


def violated_text(violations: Mapping[str, float]) -> str:
    """The violated constraints in a line; empty if there are none."""
    return ", ".join(f"not {constraint}" for constraint, violation in violations.items() if violation > 0)


def state_counts(trials: Sequence[FrozenTrial]) -> str:
    """How many trials ended in which state: '14 trials: 3 complete, 7 infeasible, 4 pruned'."""
    states = [state_of(trial) for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return f"{len(trials)} trial{'s' if len(trials) > 1 else ''}: {counts}" if trials else "no trial has ended yet"


class FilteredStudy(optuna.Study):
    """A study for reading that shows a pruner, sampler or plot of Optuna only some trials.

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


class _SeededSampler(BaseSampler):
    """The search's sampler, with draws that depend only on seed, trial number and the trials so far.

    A sampler of Optuna keeps a random state, which a stopped search loses. Here each trial has a new one, and so the
    same proposals whether the search was stopped before it or not. Where there is a `prior`, the first trials are drawn
    from it.

    A proposal whose nearest trial diverged is drawn again, by the sampler and then at random: else TPE puts half of its
    trials into the gaps between those that diverged.
    """

    def __init__(self, search: Search, prior: Prior | None) -> None:
        self._search, self._prior = search, prior

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        return distributions(self._search)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        known = {} if self._prior is None else self._prior.values(trial.number)
        if search_space.keys() <= known.keys():
            return known
        seen = [it for it in study.get_trials(deepcopy=False) if it.number != trial.number and it.values]
        values: dict[str, Any] = {}
        for attempt in range(_ATTEMPTS + _AT_RANDOM):
            values = {**self._proposed(study, trial, search_space, attempt), **known}
            near = min(seen, key=lambda it: _distance(search_space, values, it.params), default=None)
            if near is None or DIVERGED not in near.user_attrs:
                break
        return values

    def _proposed(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any], attempt: int
    ) -> dict[str, Any]:
        what, at_random = f"attempt {attempt}", attempt >= _ATTEMPTS
        sampler = self._built(trial, what, at_random=at_random)
        values = sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial))
        values = {path: value for path, value in values.items() if path in search_space}
        for path in search_space.keys() - values.keys():
            own = self._built(trial, f"{what} {path}", at_random=at_random)
            values[path] = own.sample_independent(study, trial, path, search_space[path])
        return values

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: Any) -> Any:
        """A value with a condition: the others are known before."""
        known = {} if self._prior is None else self._prior.values(trial.number)
        if name in known:
            return known[name]
        return self._built(trial, name).sample_independent(study, trial, name, distribution)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        self._built(trial, "before").before_trial(study, trial)

    def after_trial(self, study: optuna.Study, trial: FrozenTrial, *result: Any) -> None:
        self._built(trial, "after").after_trial(study, trial, *result)

    def _built(self, trial: FrozenTrial, what: str, *, at_random: bool = False) -> BaseSampler:
        seed = draws(self._search.seed, "proposal", trial.number, word(what)).integers(2**32)
        if at_random:
            return RandomSampler(seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return self._search.sampler.build(seed=seed)


def distributions(search: Search) -> dict[str, Any]:
    """Optuna's distribution of each path of the space that every trial has."""
    asked = _Asked()
    for path, range_ in search.space.items():
        if not range_.when:
            range_.suggest(asked, path)
    return asked.by_path


class _Asked:
    """Takes the place of a trial of Optuna: keeps the distributions that ranges ask it for."""

    def __init__(self) -> None:
        self.by_path: dict[str, Any] = {}

    def suggest_float(self, name: str, low: float, high: float, *, log: bool, step: float | None) -> None:
        self.by_path[name] = FloatDistribution(low, high, log=log, step=step)

    def suggest_int(self, name: str, low: int, high: int, *, log: bool, step: int) -> None:
        self.by_path[name] = IntDistribution(low, high, log=log, step=step)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> None:
        self.by_path[name] = CategoricalDistribution(choices)


def _distance(search_space: Mapping[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The squared distance of two trials' values, each as a part of its range; a choice differs by 1."""
    total = 0.0
    for path, distribution in search_space.items():
        if path not in other or isinstance(distribution, CategoricalDistribution):
            total += path not in other or one[path] != other[path]
            continue
        low, high, a, b = distribution.low, distribution.high, one[path], other[path]
        if distribution.log:
            low, high, a, b = map(math.log, (low, high, a, b))
        total += ((a - b) / (high - low)) ** 2
    return total
