"""User attributes of a trial: which trials a pruner may compare it with, and what each of its reports has cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna

from recipes.schema import Recipe, Search
from recipes.search_space.comparable import rate_shape, slow_until
from trainers.search.optuna_extensions import COMPARED
from trainers.search.successive_halving import has_rungs

COSTS = "costs"  # user attribute of a trial: number of a report -> [samples, device-hours] until then


def store_comparability(trial: optuna.Trial, recipe: Recipe, search: Search, *, say: Callable[[str], None]) -> None:
    """Store from which report on a trial may be compared, and with which trials; nothing if runs are not pruned.

    Args:
        trial: which begins or goes on.
        recipe: of the trial.
        search: of the trial.
        say: called once in a search, when a second shape of rate appears, whose trials are not compared with the first.
    """
    if search.pruner is None or has_rungs(search):
        return
    first = first_report(slow_until(recipe), recipe.epochs, reports=search.reports)
    own = {"from": first, "shape": rate_shape(recipe)}
    shapes: dict[str, int] = {}
    for other in reversed(trial.study.get_trials(deepcopy=False)):
        if COMPARED in other.user_attrs:
            shapes.setdefault(other.user_attrs[COMPARED]["shape"], other.number)
        if len(shapes) > 1 or own["shape"] in shapes:
            break
    if COMPARED not in trial.user_attrs:
        trial.set_user_attr(COMPARED, own)
    if len(shapes) == 1 and own["shape"] not in shapes:
        (number,) = shapes.values()
        say(f"trial {trial.number} moves its rate in another shape than trial {number}: they are not compared")


def first_report(slow_until: float, epochs: float, *, reports: int) -> int:
    """The number of the first report at or after the end of the slow start, at least 1.

    >>> [first_report(end, 20.0, reports=20) for end in (0.0, 5.0, 5.1)]
    [1, 5, 6]
    """
    return max(1, math.ceil(reports * slow_until / epochs - 1e-9))


def note_costs(trial: optuna.Trial, lines: Iterable[Mapping[str, Any]], recipe: Recipe, search: Search) -> None:
    """Store what each report has cost: once, after the ranks have ended, because every write takes milliseconds."""
    costs = report_costs(lines, ranks=search.ranks_per_trial, reports=search.reports, epochs=recipe.epochs)
    trial.set_user_attr(COSTS, costs)


def report_costs(lines: Iterable[Mapping[str, Any]], *, ranks: int, reports: int, epochs: float) -> dict[str, list]:
    """Number of each report -> [samples, device-hours] that the trial had used until then.

    Args:
        lines: of the trial's `metrics.jsonl`, of all its sessions.
        ranks: how many trained it.
        reports: of the whole run.
        epochs: of the whole run.
    """
    found: dict[str, list] = {}
    hours, last_ms = 0.0, None
    for line in lines:
        now = line.get("time_ms")
        if line.get("key") == "run_start":
            last_ms = now  # the time between two sessions is not counted
        if now is None or last_ms is None:
            continue
        hours, last_ms = hours + ranks * (now - last_ms) / 3.6e6, now
        if line["key"] == "eval_accuracy":
            number = min(reports, math.floor(line["epoch"] / epochs * reports + 1e-9))
            found[str(number)] = [line["samples"], float(f"{hours:.4g}")]
    return found
