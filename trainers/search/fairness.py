"""What a trial says of itself, so that it is compared with its like; and what each report has cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optuna

from recipes.comparable import rate_shape, slow_until
from recipes.schema import Recipe, Search
from trainers.search.rungs import climbs
from trainers.study_view import COMPARED

COSTS = "costs"  # user attribute of a trial: number of a report -> [samples, device-hours] until then


def note_comparable(trial: optuna.Trial, recipe: Recipe, search: Search, *, say: Callable[[str], None]) -> None:
    """Keep from which report on a trial may be compared, and with whom; nothing where no trial is ended on its way.

    Args:
        trial: which begins or goes on.
        recipe: of it.
        search: whose.
        say: is told, once in a search, that there are trials which are not compared with each other.
    """
    if search.pruner is None or climbs(search):
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
    """The number of the first report that counts: not before the slow start has ended, so it may lie after the last.

    >>> [first_report(end, 20.0, reports=20) for end in (0.0, 5.0, 5.1)]
    [1, 5, 6]
    """
    return max(1, math.ceil(reports * slow_until / epochs - 1e-9))


def note_costs(trial: optuna.Trial, lines: Iterable[Mapping[str, Any]], recipe: Recipe, search: Search) -> None:
    """Keep what each report has cost; once, when the ranks have ended, since every write takes milliseconds."""
    costs = report_costs(lines, ranks=search.ranks_per_trial, reports=search.reports, epochs=recipe.epochs)
    trial.set_user_attr(COSTS, costs)


def report_costs(lines: Iterable[Mapping[str, Any]], *, ranks: int, reports: int, epochs: float) -> dict[str, list]:
    """Samples and device-hours of a trial until each of its reports.

    Args:
        lines: of its `metrics.jsonl`, of all its sessions.
        ranks: that trained it.
        reports: of the whole run.
        epochs: of the whole run.
    """
    found: dict[str, list] = {}
    hours, last_ms = 0.0, None
    for line in lines:
        now = line.get("time_ms")
        if line.get("key") == "run_start":
            last_ms = now  # what lies between two sessions costs nothing
        if now is None or last_ms is None:
            continue
        hours, last_ms = hours + ranks * (now - last_ms) / 3.6e6, now
        if line["key"] == "eval_accuracy":
            number = min(reports, math.floor(line["epoch"] / epochs * reports + 1e-9))
            found[str(number)] = [line["samples"], float(f"{hours:.4g}")]
    return found
