"""What a frontier says in the terminal: the table, a picture, and what follows for all batches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from recipes.frontiers.open_frontier import RATE, OpenedFrontier
from recipes.planning.forecast import forecast
from recipes.reading.open import open_recipe
from recipes.reports.curves import points_text
from recipes.reports.wording import counted, duration, number, percent
from recipes.search_space.open_search import assignments
from trainers.frontier.results import Point, fit_of
from trainers.launch.model_costs import model_of
from trainers.launch.request import cluster_of, planned
from trainers.search.results import column_names, short

_ROWS, _COLUMNS = 18, 64  # of the picture in the terminal
_MARKS = "oxv+*#@%"


def rows_of(points: Sequence[Point], *, cluster: str | None = None) -> list[dict[str, Any]]:
    """The table: a row for each point of a method."""
    first = next((point for point in points if point.rate is not None), None)
    paths = [path for path in points[0].space if path != RATE]
    frontier, rows = points[0].opened.frontier, []
    for point in points:
        grown = math.nan if first is None else point.batch / first.batch
        values = {} if point.optimum is None else point.optimum.values
        row = {"batch": point.batch, "updates": _count(point.updates), "seeds": _spread(point)}
        row |= {"best trial": _count(None if point.best_part is None else point.best_part.best.values[0])}
        row |= {"epochs": _short(point.epochs), "rate": _short(point.rate)}
        row |= {"linear": _short(first and first.rate * grown), "sqrt": _short(first and first.rate * math.sqrt(grown))}
        row |= {name: _short(values.get(path)) for path, name in zip(paths, column_names(paths), strict=True)}
        at = {f"at {epochs:g} epochs": {"epochs": epochs} for epochs in frontier.accuracy_at.epochs}
        at |= {f"at {updates} updates": {"updates": updates} for updates in frontier.accuracy_at.updates}
        row |= {name: percent(point.accuracy_at(**budget)) for name, budget in at.items()}
        row |= {"trials": f"{len(point.trials)}/{sum(part.tree['budget']['trials'] for part in point.parts)}"}
        row |= {"reached": point.reached, "diverged": point.diverged, "note": _note(point)}
        if cluster:
            row |= dict.fromkeys(("devices", "time", "device-hours", "cost"), "-")
            if point.updates is not None and math.isfinite(point.updates):
                how = {"values": values, "updates": point.updates}
                row |= planned_time(point.opened, point.method, point.batch, cluster, **how)
        rows.append(row)
    return rows


def _count(updates: float | None) -> str:
    return "-" if updates is None else "missed" if math.isinf(updates) else f"{updates:g}"


def _short(value: Any) -> str:
    if value is None:
        return "-"
    return short(value) if not isinstance(value, float) else "missed" if value == math.inf else f"{value:.3g}"


def _spread(point: Point) -> str:
    """The runs with fresh seeds: '210 to 260', and how many missed the goal."""
    part = point.best_part
    found = sorted(it for it in (part.seeds if part else ()) if math.isfinite(it))
    missed = len(part.seeds) - len(found) if part else 0
    words = f"{found[0]:g} to {found[-1]:g}" if found else "-"
    return words + (f", {missed} missed" if missed else "")


def _note(point: Point) -> str:
    notes = [f"{' and '.join(column_names(point.edges))} at the edge"] if point.edges else []
    if len(point.parts) > 1:
        notes.append("range widened" + ("" if len(point.parts) == 2 else " twice"))
    if not all(part.is_spent for part in point.parts):
        notes.append("not finished")
    return ", ".join(notes)


def conclusions(opened: OpenedFrontier, points: Sequence[Point]) -> list[str]:
    """What the points say together, a sentence for each method."""
    lines = []
    for method in opened.frontier.branches:
        own = [point for point in points if point.method == method]
        made = fit_of(own)
        if made is None:
            lines.append(f"{method}: too few points reached the goal for a curve; it takes three")
            continue
        curve, (low, high) = made
        useful = curve.useful_to / curve.b_crit
        batches = [point.batch for point in own if point.updates is not None]
        lines.append(
            f"{method}: S(B) = {_figure(curve.s_min)} (1 + {_figure(curve.b_crit)} / B), off by "
            f"{percent(math.expm1(curve.error))}; B_crit is {_figure(low)} to {_figure(high)} (95 %). Updates fall in "
            f"proportion up to batch {_batch(curve.perfect_to, batches)}. The largest useful batch is "
            f"{_batch(curve.useful_to, batches)} ({_figure(useful * low)} to {_figure(useful * high)})"
        )
    return lines


def _figure(value: float) -> str:
    return number(value, digits=3)


def _batch(value: float, measured: Sequence[int]) -> str:
    inside = max(measured) >= value >= min(measured)
    return _figure(value) + ("" if inside else ", outside of those measured")


def frontier_text(
    opened: OpenedFrontier, points: Sequence[Point], *, cluster: str | None = None, as_json: bool = False
) -> str:
    """Tables, picture and conclusions for the terminal; or all of it as JSON."""
    frontier = opened.frontier
    tables = {
        method: rows_of([point for point in points if point.method == method], cluster=cluster)
        for method in frontier.branches
    }
    if as_json:
        found = {"frontier": frontier.name, "goal": str(frontier.goal), "points": tables}
        return json.dumps(found | {"conclusions": conclusions(opened, points)}, indent=1)
    parts = [f"frontier {frontier.name} over {frontier.recipe}: updates to {frontier.goal}"]
    parts += [f"{method}\n{points_text(rows)}" for method, rows in tables.items()]
    parts += [_picture(opened, points), "\n".join(conclusions(opened, points)), READ]
    return "\n\n".join(filter(None, parts))


READ = (
    "updates: median over the seeds, counted at evaluations; best trial: the fewest of one trial, partly luck; linear, "
    "sqrt: the rate of the first row by these rules; largest useful batch: there the curve is 20 % above its end"
)


def _picture(opened: OpenedFrontier, points: Sequence[Point]) -> str:
    """Updates against batch, both logarithmic, with the perfect scaling of the smallest batch as dots."""
    found = [point for point in points if point.updates is not None and math.isfinite(point.updates)]
    if len({point.batch for point in found}) < 2:
        return ""
    methods = list(opened.frontier.branches)
    batches, updates = [point.batch for point in found], [point.updates for point in found]
    low, high = math.log(min(updates)) - 0.2, math.log(max(updates)) + 0.2
    left, right = math.log(min(batches)), math.log(max(batches))
    cells = [[" "] * (_COLUMNS + 1) for _ in range(_ROWS + 1)]

    def put(batch: float, value: float, mark: str) -> None:
        row = round((high - math.log(value)) / (high - low) * _ROWS)
        if 0 <= row <= _ROWS:
            cells[row][round((math.log(batch) - left) / (right - left) * _COLUMNS)] = mark

    start = min(found, key=lambda point: (point.batch, point.updates))
    for column in range(0, _COLUMNS + 1, 2):
        batch = math.exp(left + (right - left) * column / _COLUMNS)
        put(batch, start.updates * start.batch / batch, ".")
    for point in found:
        put(point.batch, point.updates, _MARKS[methods.index(point.method) % len(_MARKS)])
    labels = {0: f"{math.exp(high):.0f}", _ROWS: f"{math.exp(low):.0f}"}
    lines = [f"{labels.get(row, ''):>8} |{''.join(cells[row]).rstrip()}" for row in range(_ROWS + 1)]
    ends = f"{min(batches):,}"
    lines += [" " * 9 + "+" + "-" * _COLUMNS, " " * 10 + ends + f"{max(batches):,}".rjust(_COLUMNS + 1 - len(ends))]
    legend = ", ".join(f"{_MARKS[at % len(_MARKS)]} {method}" for at, method in enumerate(methods))
    return "\n".join(["updates to the goal by batch, both logarithmic", *lines, f"{legend}, . perfect scaling"])


def planned_time(
    opened: OpenedFrontier, method: str, batch: int, cluster: str, *, values: Mapping[str, Any], updates: float
) -> dict[str, str]:
    """Time, device-hours and cost of so many updates on as many devices of a cluster as the batch can use.

    Raises:
        NoForecast: the cluster's file lacks a figure.
    """
    fixed = {**opened.search_tree(method, batch)["fixed"], **values}
    recipe = open_recipe(opened.bases[method].path, overrides=assignments(fixed), **opened.options)
    where, _ = cluster_of(cluster, workers=None, vocabulary=opened.options["vocabulary"], overrides=())
    devices = min(where.num_workers, batch)
    made = planned(recipe, where, exact=None, workers=devices, model=model_of(recipe))
    seconds = forecast(made).seconds_of(0, round(updates))
    hours, price = devices * seconds / 3600, where.hardware.price
    cost = "-" if price is None else f"${hours * price.dollars_per_device_hour:.3g}"
    return {"devices": str(devices), "time": duration(seconds), "device-hours": f"{hours:.3g}", "cost": cost}


def dry_run_text(opened: OpenedFrontier, *, workers: int | None) -> str:
    """Points, trials and samples before anything starts."""
    frontier, rows, total = opened.frontier, [], 0
    for batch in frontier.sizes:
        for method in frontier.branches:
            longest = opened.longest(method, batch)[1]
            runs = frontier.budget.trials + frontier.seeds
            samples = longest * batch * runs
            total += samples
            row = {"batch": batch, "method": method, "trials": frontier.budget.trials, "seeds": frontier.seeds}
            rows.append(row | {"updates a run, at most": longest, "samples, at most": f"{samples:,}"})
    side = (workers or 1) // frontier.ranks_per_trial or 1
    lines = [
        f"frontier {frontier.name} over {frontier.recipe}: updates to {frontier.goal}",
        f"counted at evaluations {100 * frontier.spacing:g} % of the best trial's updates apart",
        "",
        points_text(rows),
        "",
        *(f"tuned, {method}: {', '.join(opened.search_tree(method, None)['space'])}" for method in frontier.branches),
        f"at most {number(total)} samples; a trial ends at the goal, or where it cannot beat the best of its point",
        f"{counted(side, 'trial')} side by side, one point after the other: at 1,000 samples a second each, "
        f"{duration(total / 1000 / side)} at most",
    ]
    return "\n".join(lines)
