"""Optuna's study of a search: its trials, what they try, which one is promoted to the next rung, which is the best.

This is the only file that uses Optuna's private names. A trial's user attributes are listed below.
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FixedTrial, FrozenTrial, TrialState

from recipes.planning.random_bits import draws, word
from recipes.schema import Search
from recipes.search_space.ranges import Categorical, Space, in_order, suggested

# User attributes of a trial.
REASON, SECONDS = "reason", "seconds"
RANK_SECONDS = "rank_seconds"  # ranks times seconds of its runs, of which their number may change between sessions
DEATHS = "deaths"  # [reason, newest checkpoint's update] of each death of its ranks
PRUNED_AT = "pruned_at"  # the number of a report
LIMIT = "limit"  # updates that it may make, as the best trial so far had it when it began; 0: all
EVERY = "every"  # the part of the whole run between two reports, with `spacing`
RUNG = "waits_at_rung"  # the index of the last rung that it came to
PROMOTIONS = "passed_rungs"  # how often it was promoted, from a rung to the next one
DIVERGED = "diverged"  # the update at which its loss or weights were no longer finite
SPENT = "spent_seconds"  # of the study: how long all sessions have searched
CONFIRM_RANK_SECONDS = "confirm_rank_seconds"  # of the study: run with a fresh seed -> ranks times its seconds
_ATTEMPTS, _AT_RANDOM = 4, 30  # at a proposal that is not next to a trial that diverged
optuna.logging.set_verbosity(optuna.logging.WARNING)


def new_study(search: Search, *, storage: Any = None, name: str | None = None) -> optuna.Study:
    """The study of a search, loaded if it exists; by default in memory, with the search's name."""
    return optuna.create_study(
        study_name=name or search.name,
        storage=storage,
        directions=[objective.direction for objective in search.objectives],
        sampler=_SeededSampler(search),
        load_if_exists=True,
    )


def enqueue(study: optuna.Study, first: Sequence[Mapping[str, Any]]) -> None:
    """Enqueue the first trials of a search, except those that an earlier session has enqueued."""
    for values in first[len(study.get_trials(deepcopy=False)) :]:
        study.enqueue_trial(dict(values))


def next_trial(study: optuna.Study, search: Search) -> optuna.Trial:
    """A new trial with a value for each of its paths: an enqueued one, or what the sampler proposes."""
    trial = study.ask()
    suggested(search.space, trial)
    return trial


def left_running(study: optuna.Study) -> list[optuna.Trial]:
    """The trials that an earlier session did not end."""
    trials = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return [optuna.Trial(study, trial._trial_id) for trial in trials]


def begun(study: optuna.Study) -> list[FrozenTrial]:
    """All trials but those that are only enqueued."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]


def finished(study: optuna.Study) -> list[FrozenTrial]:
    """Trials that are complete, pruned or failed."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]


def rank_seconds_of(trial: optuna.Trial | FrozenTrial, search: Search) -> float:
    """Ranks times seconds of a trial's runs; in a study of an older version by today's number of ranks."""
    return trial.user_attrs.get(RANK_SECONDS, trial.user_attrs.get(SECONDS, 0.0) * search.ranks_per_trial)


def is_paused(trial: optuna.Trial | FrozenTrial) -> bool:
    """Whether a trial that has not ended waits at a rung."""
    return trial.user_attrs.get(RUNG, -1) == trial.user_attrs.get(PROMOTIONS, 0)


def next_rung(search: Search, trial: optuna.Trial | FrozenTrial) -> int | None:
    """Index of the rung that a trial trains to; None: it trains to its end."""
    rung = trial.user_attrs.get(PROMOTIONS, 0)
    return rung if search.rungs is not None and rung < len(search.rungs.at) else None


def promotable_trial(search: Search, study: optuna.Study) -> int | None:
    """The number of the trial to promote, the best at the last rung that has one: asynchronous successive halving.

    Trials that diverged on their way to a rung count as the worst at it.
    """
    for rung, report in reversed([*enumerate(search.rungs.at)]):
        at_rung = []
        for trial in begun(study):
            diverged = DIVERGED in trial.user_attrs and trial.user_attrs.get(PROMOTIONS, 0) >= rung
            if diverged or (trial.last_step or 0) >= report:
                at_rung.append((_score(trial, report, search), trial.number, trial))
        for *_, trial in sorted(at_rung)[: len(at_rung) // search.rungs.reduction_factor]:
            if state_of(trial) == "paused" and trial.user_attrs[RUNG] == rung:
                return trial.number
    return None


def _score(trial: FrozenTrial, report: int, search: Search) -> float:
    """A trial's score at a rung, the less the better; where a run has fewer updates than reports, at the next one."""
    reports = {number: value for number, value in trial.intermediate_values.items() if number >= report}
    value = reports[min(reports)] if reports else math.nan
    sign = -1 if search.objectives[0].direction == "maximize" else 1
    return math.inf if math.isnan(value) else sign * value


def store_constraints(trial: optuna.Trial, violations: Mapping[str, float]) -> None:
    """Store by how much a trial violates each constraint, except those that are stored already."""
    stored = trial.constraints
    for constraint, violation in violations.items():
        if constraint not in stored:
            trial.set_constraint(constraint, violation)


def ranked_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that may be the best, the best first: complete, not diverged, within all constraints.

    With several objectives: those on the Pareto front, the best in the first objective first.
    """
    several = len(study.directions) > 1
    complete = study.best_trials if several else study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    sign = -1 if study.directions[0].name == "MAXIMIZE" else 1
    fit = [trial for trial in complete if state_of(trial) == "complete"]
    return sorted(fit, key=lambda trial: (sign * trial.values[0], trial.number))


def distinct(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """The first trial of each set of equal values: a sampler may propose choices and steps again."""
    first: dict[Any, FrozenTrial] = {}
    for trial in trials:
        first.setdefault(frozenset(trial.params.items()), trial)
    return [*first.values()]


def best_trials(study: optuna.Study) -> list[FrozenTrial]:
    """The best trial; with several objectives all on the Pareto front."""
    ranked = ranked_trials(study)
    return ranked if len(study.directions) > 1 else ranked[:1]


def gain_of_second_half(study: optuna.Study) -> float:
    """By how much half of the trials is beaten by all of them, in the mean over all orders; 0 with fewer than 4.

        v_1 - sum_i v_i C(n - i, k - 1) / C(n, k)       v sorted, the best first; k = n // 2

    A guide to what as many trials again would gain: usually no more than this.
    """
    values = [trial.values[0] for trial in ranked_trials(study)]
    n, k = len(values), len(values) // 2
    if n < 4:
        return 0.0
    chances = [math.comb(n - i, k - 1) / math.comb(n, k) for i in range(1, n + 1)]
    return abs(values[0] - sum(map(operator.mul, values, chances)))


def state_of(trial: FrozenTrial) -> str:
    """One of complete, diverged (also: no finite score), infeasible, pruned, failed, running, paused, waiting."""
    if DIVERGED in trial.user_attrs or not all(map(math.isfinite, trial.values or ())):
        return "diverged"
    not_trained = trial.state == TrialState.PRUNED and PRUNED_AT not in trial.user_attrs
    if not_trained or any(violation > 0 for violation in trial.constraints.values()):
        return "infeasible"
    if trial.state == TrialState.RUNNING and is_paused(trial):
        return "paused"
    return "failed" if trial.state == TrialState.FAIL else trial.state.name.lower()


def reason_of(trial: FrozenTrial) -> str:
    """Why a trial is not complete, or which constraints it violates; empty otherwise."""
    if DIVERGED in trial.user_attrs:
        return f"the loss or a weight is not finite at update {trial.user_attrs[DIVERGED]}"
    if PRUNED_AT in trial.user_attrs and trial.state != TrialState.COMPLETE:  # or it came to its end while it stopped
        what = "not one of the best" if RUNG in trial.user_attrs else "not better than the best,"
        return f"{what} at report {trial.user_attrs[PRUNED_AT]}"
    return trial.user_attrs.get(REASON, "") or violated_text(trial.constraints)


def violated_text(violations: Mapping[str, float]) -> str:
    """The violated constraints in a line; empty if there are none."""
    return ", ".join(f"not {constraint}" for constraint, violation in violations.items() if violation > 0)


class _SeededSampler(BaseSampler):
    """The search's sampler, with draws that depend only on seed, trial number and the trials so far.

    Samplers of Optuna keep a random state that a stopped search loses. A proposal whose nearest trial diverged is drawn
    again, by the sampler and then at random: else TPE puts half of its trials into the gaps between such trials.
    """

    def __init__(self, search: Search) -> None:
        self._search = search
        exhaustive = type(search.sampler).__name__ == "BruteForceSampler"  # which proposes each only once
        self._attempts = 1 if exhaustive else _ATTEMPTS + _AT_RANDOM

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, Any]:
        return distributions(self._search, conditional=True)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, Any]) -> dict[str, Any]:
        if type(self._search.sampler).__name__ == "TPESampler":  # no other one looks at trials that were pruned
            study = _as_pruned(study)
        search_space = distributions(self._search)  # what every trial has; the rest only as a group of the sampler
        seen = [it for it in study.get_trials(deepcopy=False) if it.number != trial.number and it.values]
        proposed: list[tuple[float, dict[str, Any]]] = []
        for attempt in range(self._attempts):
            sampler = self._built(trial, f"attempt {attempt}", at_random=attempt >= _ATTEMPTS)
            values = dict(sampler.sample_relative(study, trial, sampler.infer_relative_search_space(study, trial)))
            own = copy.copy(trial)  # some samplers look at the values that it has already
            for path in [path for path in search_space if path not in values]:
                own.params = values
                values[path] = sampler.sample_independent(study, own, path, search_space[path])
            distances = [_distance(self._search.space, search_space, values, it.params) for it in seen]
            if not seen or DIVERGED not in seen[distances.index(min(distances))].user_attrs:
                return values
            proposed.append((min(distances), values))
        return max(proposed, key=lambda one: one[0])[1]

    def sample_independent(self, study: optuna.Study, trial: FrozenTrial, name: str, distribution: Any) -> Any:
        """A value with a condition: the others are known before."""
        return self._built(trial, name).sample_independent(study, trial, name, distribution)

    def _built(self, trial: FrozenTrial, what: str, *, at_random: bool = False) -> BaseSampler:
        seed = draws(self._search.seed, "proposal", trial.number, word(what)).integers(2**32)
        return RandomSampler(seed=seed) if at_random else self._search.sampler.build(seed=seed)


def _as_pruned(study: optuna.Study) -> optuna.Study:
    """The study, or a copy in memory where trials that wait at a rung count as pruned: TPE learns from those."""
    trials = study.get_trials(deepcopy=False)
    if not any(state_of(trial) == "paused" for trial in trials):
        return study
    view = optuna.create_study(directions=study.directions)
    for trial in trials:
        own = copy.copy(trial)
        if state_of(trial) == "paused":
            own.state, own.datetime_complete = TrialState.PRUNED, trial.datetime_start
        view.add_trial(own)
    return view


def distributions(search: Search, *, conditional: bool = False) -> dict[str, Any]:
    """Optuna's distribution of each path of the space that every trial has, or with `conditional` of all."""
    # In the order in which a trial gets them: the tree of BruteForceSampler needs that.
    common = {path: search.space[path] for path in in_order(search.space) if conditional or not search.space[path].when}
    any_trial = FixedTrial({path: next(iter(range_.ends.values())) for path, range_ in common.items()})
    for path, range_ in common.items():
        range_.suggest(any_trial, path)
    return any_trial.distributions


def _distance(space: Space, paths: Iterable[str], one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The squared distance of two trials' values, each as a part of its range; a choice differs by 1."""
    total = 0.0
    for path in paths:
        if path not in other or isinstance(space[path], Categorical):
            total += path not in other or one[path] != other[path]
        else:
            total += space[path].share_between(one[path], other[path]) ** 2
    return total
