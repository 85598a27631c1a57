"""The outcome of a trial: the values of its objectives, and which constraints it violates."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from recipes.expressions import Expression
from recipes.schema import Constraint, Search
from recipes.search_checks import value_at

_EVALUATED = {"eval_accuracy": "accuracy", "eval_loss": "loss"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Objectives and constraint violations of a trial.

    Args:
        values: of the objectives, in their order; empty if the trial was not trained.
        beyond: constraint -> by how much it is violated, at most 0 if it is kept.
    """

    values: Sequence[float] = ()
    beyond: Mapping[str, float]

    @property
    def broken(self) -> str:
        """The violated constraints in a line; empty if there are none."""
        return ", ".join(f"not {said}" for said, far in self.beyond.items() if far > 0)

    @property
    def state(self) -> str:
        """`infeasible` or `complete`."""
        return "infeasible" if self.broken else "complete"


def outcome(
    search: Search,
    runs: Sequence[Iterable[Mapping[str, Any]]],
    recipe: Mapping[str, Any],
    *,
    device_hours: float,
) -> Outcome:
    """The outcome of a trial whose runs have ended: each score is the mean over the runs.

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
    beyond = dict(known_before(search, recipe).beyond)
    for constraint in search.constraints:
        if constraint.metric is not None:
            score = scores[constraint.metric]
            kept = constraint.violations(score)
            beyond |= kept if math.isfinite(score) else dict.fromkeys(kept, 1.0)  # Optuna takes no NaN
    return Outcome(values=[scores[objective.metric] for objective in search.objectives], beyond=beyond)


def known_before(search: Search, recipe: Mapping[str, Any]) -> Outcome:
    """The constraints on recipe values, which are known before the trial is trained.

    Raises:
        ValueError: a value in a constraint's expression is not a number.
    """
    beyond: dict[str, float] = {}
    for constraint in search.constraints:
        number = None if constraint.value is None else _number(constraint, recipe)
        if number is not None:
            beyond |= constraint.violations(number)
    return Outcome(beyond=beyond)


def run_scores(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The scores of a finished run by metric.

    accuracy, loss    of the last evaluation
    train_loss        mean over the updates since the evaluation before that
    """
    found: dict[str, float] = {}
    losses: list[float] = []
    for line in lines:
        key = line.get("key")
        if key == "train_loss":
            losses.append(line["value"])
        elif key in _EVALUATED:
            found[_EVALUATED[key]] = line["value"]
            found |= {"train_loss": fmean(losses)} if losses else {}
            losses = []
    return found


def _number(constraint: Constraint, recipe: Mapping[str, Any]) -> float | None:
    """The value of a constraint's expression; None if the recipe lacks one of its paths."""
    try:
        return Expression(constraint.value or "")(lambda path: value_at(recipe, path))
    except LookupError:
        return None
