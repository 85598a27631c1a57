"""What a frontier says in the terminal: the table, a picture, and what follows for all batches."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from recipes.frontiers.fit import Fit, fit
from recipes.frontiers.open_frontier import RATE, OpenedFrontier
from recipes.planning.forecast import forecast
from recipes.reading.open import open_recipe
from recipes.reports.curves import points_text
from recipes.reports.json_text import finite
from recipes.reports.wording import duration, number, percent
from recipes.search_space.open_search import assignments
from recipes.search_space.ranges import short
from trainers.frontier.results import FEWEST, MOST_PARTS, Point, curve_of, difference, fit_of, trials_beyond_edge
from trainers.launch.model_costs import model_of
from trainers.launch.request import cluster_of, planned
from trainers.search.results import column_names

_ROWS, _COLUMNS = 18, 64  # of the picture in the terminal
_MARKS = "oxv+*#@%"


Cell = tuple[Any, Any]  # of the table: its value, and how it is shown, None for not at all


def points_by_method(opened: OpenedFrontier, points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each method, in their order."""
    return {method: [it for it in points if it.method == method] for method in opened.frontier.all_methods}


def rows_of(points: Sequence[Point], **how: Any) -> list[dict[str, Any]]:
    """The table as it is shown: a row for each point of a method; arguments as for `cells_of`."""
    return [{name: text for name, (_, text) in row.items() if text is not None} for row in cells_of(points, **how)]


def cells_of(
    points: Sequence[Point], *, baseline: Mapping[int, Point] | None = None, cluster: str | None = None
) -> list[dict[str, Cell]]:
    """The table: a row for each point of a method.

    Args:
        points: of one method, the smallest batch first.
        baseline: batch -> the point of the method that this one is compared with, where the figures are accuracies.
        cluster: on which time and cost are planned; None: neither.
    """
    first = next((point for point in points if point.rate is not None), None)
    paths = [path for path in points[0].space if path != RATE]
    frontier, rows = points[0].opened.frontier, []
    for point in points:
        grown = math.nan if first is None else point.batch / first.batch
        values = {} if point.optimum is None else point.optimum.values
        row: dict[str, Cell] = {"batch": (point.batch, point.batch)}
        row |= _figures(point, smallest=points[0], baseline=(baseline or {}).get(point.batch))
        row |= {"epochs": _short(point.epochs), "rate": _short(point.rate)}
        row |= {"linear": _short(first and first.rate * grown), "sqrt": _short(first and first.rate * math.sqrt(grown))}
        names = column_names([*row, *paths])  # `warmup.epochs` beside the row's own `epochs`
        row |= {names[path]: _short(values.get(path)) for path in paths}
        at = {f"at {epochs:g} epochs": {"epochs": epochs} for epochs in frontier.accuracy_at.epochs}
        at |= {f"at {updates} updates": {"updates": updates} for updates in frontier.accuracy_at.updates}
        row |= {name: _percent(point.accuracy_at(**budget)) for name, budget in at.items()}
        ended, budget = len(point.trials), sum(part.tree["budget"]["trials"] for part in point.parts)
        row |= {"trials": (ended, f"{ended}/{budget}"), "budget": (budget, None)}
        row |= {"reached": (point.reached, point.reached)} if point.has_target else {}
        note = _note(point)
        row |= {"diverged": (point.diverged, point.diverged), "state": (point.state, None), "note": (note, note)}
        if cluster:
            row |= dict.fromkeys(("devices", "time", "device-hours", "cost"), (None, "-"))
            if point.updates is not None and math.isfinite(point.updates):
                row |= planned_time(
                    point.opened, point.method, point.batch, cluster, values=values, updates=point.updates
                )
        rows.append(row)
    return rows


def _figures(point: Point, *, smallest: Point, baseline: Point | None) -> dict[str, Cell]:
    best = None if point.best_part is None else point.best_part.best.values[0]
    if point.has_target:
        return {"updates": _count(point.updates), "seeds": _spread(point), "best trial": _count(best)}
    row = {"accuracy": _percent(point.figure), "seeds": _spread(point), "best trial": _percent(best)}
    row |= {f"against batch {smallest.batch:,}": _against(point, smallest)}
    row |= {} if baseline is None else {f"against {baseline.method}": _against(point, baseline)}
    return row | {"updates": (point.updates, str(point.updates))}


def _count(updates: float | None) -> Cell:
    return updates, "-" if updates is None else "missed" if math.isinf(updates) else f"{updates:g}"


def _percent(share: float | None) -> Cell:
    return share, percent(share)


def _against(point: Point, other: Point) -> Cell:
    """A difference of accuracies, and its 95 % interval."""
    found = None if point is other else difference(point, other)
    if found is None:
        return None, "-"
    middle, low, high = (f"{100 * it:+.2f}" for it in found)
    return list(found), f"{middle} ({low} to {high})"


def _short(value: Any) -> Cell:
    if value is None:
        return None, "-"
    return value, short(value) if not isinstance(value, float) else "missed" if value == math.inf else f"{value:.3g}"


def _spread(point: Point) -> Cell:
    """The runs with fresh seeds: '210 to 260', and how many missed the goal."""
    runs, shown = point.best_part.seeds if point.best_part else (), _count if point.has_target else _percent
    found = sorted(it for it in runs if math.isfinite(it))
    missed = len(runs) - len(found)
    words = f"{shown(found[0])[1]} to {shown(found[-1])[1]}" if found else "-"
    return list(runs), words + (f", {missed} missed" if missed else "")


def _note(point: Point) -> str:
    names = column_names(["epochs", "batch", *point.edges])
    notes = [f"{' and '.join(names[path] for path in point.edges)} at the edge"] if point.edges else []
    if len(point.parts) > 1:
        notes.append("range widened" + ("" if len(point.parts) == 2 else " twice"))
    if point.missed:
        notes.append(f"seeds of {point.missed} better {'trial' if point.missed == 1 else 'trials'} missed")
    if point.is_spent and point.cap is not None and not point.has_figure:
        notes.append(f"ended at {point.cap:,} updates, 1.5 times the next smaller batch's")
    if point.parts and not point.is_spent:
        notes.append("not finished")
    return ", ".join(notes)


def conclusions(opened: OpenedFrontier, points: Sequence[Point]) -> list[str]:
    """What the points say together, a sentence for each method."""
    says = _scaling if opened.frontier.goal.target is not None else _losses
    return [f"{method}: {says(own)}" for method, own in points_by_method(opened, points).items()]


def _scaling(points: Sequence[Point]) -> str:
    """Up to which batch the updates of a method fall."""
    made = fit_of(points)
    if made is None:
        first = next((point for point in points if point.has_figure), None)
        if first is not None and first.figure < FEWEST:
            return f"{first.figure:g} at batch {first.batch:,}, too few updates for a curve; set a higher goal"
        return "too few points reached the goal for a curve; it takes three"
    curve, (low, high) = made
    useful = curve.useful_to / curve.b_crit
    batches = [point.batch for point in points if point.has_figure]
    missed = [point for point in points if point.figure == math.inf or (point.figure is None and point.is_spent)]
    names = " and ".join(f"{point.batch:,}" for point in missed)
    without = f"; batch {names} missed the goal, which the curve does not know" if missed else ""
    off, sure = f"off by {percent(math.expm1(curve.error))}", _range(low, high)
    if curve.end:
        falls = {"high": "fall in proportion to it at all of them", "low": "hardly fall with it"}[curve.end]
        bound = "" if low in (0.0, math.inf) and high in (0.0, math.inf) else f"; B_crit is {sure} (95 %)"
        return f"no bend within the batches measured: updates {falls}, {off}{bound}{without}"
    return (
        f"S(B) = {_figure(curve.s_min)} (1 + {_figure(curve.b_crit)} / B), {off}; B_crit is {sure} (95 %). Updates "
        f"fall in proportion up to batch {_batch(curve.perfect_to, batches)}. The largest useful batch is "
        f"{_batch(curve.useful_to, batches)} ({_range(useful * low, useful * high)}){without}{_extrapolated(points)}"
    )


def _range(low: float, high: float) -> str:
    """An interval, which may have no bend, and so no end, on either side."""
    if low == 0 and high == math.inf:
        return "anything"
    if math.inf in (low, high):
        return f"at least {_figure(low)}" if low < math.inf else "beyond the batches measured"
    if 0 in (low, high):
        return f"at most {_figure(high)}" if high else "below the batches measured"
    return f"{_figure(low)} to {_figure(high)}"


def _extrapolated(points: Sequence[Point]) -> str:
    """What the smaller batches alone say of the largest, beside what was measured."""
    *smaller, largest = [point for point in points if point.has_figure]
    made = fit([(point.batch, point.figure) for point in smaller])
    if made is None:
        return ""
    useful = "no bend" if made.end else f"a largest useful batch of {_figure(made.useful_to)}"
    return (
        f". The smaller batches alone would have said {_figure(made.updates(largest.batch))} updates at batch "
        f"{largest.batch:,}, and {useful}"
    )


def _losses(points: Sequence[Point]) -> str:
    """Which batches of a method are less accurate than its smallest."""
    smallest = points[0]
    against = [(point, difference(point, smallest)) for point in points[1:]]
    against = [(point, found) for point, found in against if found is not None]
    if not against:
        return "too few runs with fresh seeds for a comparison of batches"
    lower = [f"by {100 * -found[0]:.2f} points at batch {point.batch:,}" for point, found in against if found[2] < 0]
    what = f"lower (95 %) than at batch {smallest.batch:,}"
    return f"the accuracy is {what} {', '.join(lower)}" if lower else f"at no batch is the accuracy shown to be {what}"


def _figure(value: float) -> str:
    return number(value, digits=3)


def _batch(value: float, measured: Sequence[int]) -> str:
    inside = max(measured) >= value >= min(measured)
    return _figure(value) + ("" if inside else ", outside of those measured")


def frontier_text(
    opened: OpenedFrontier, points: Sequence[Point], *, cluster: str | None = None, as_json: bool = False
) -> str:
    """Tables, picture and conclusions for the terminal; or all of it as JSON."""
    frontier, by_method = opened.frontier, points_by_method(opened, points)
    how = {method: {"baseline": baseline(by_method, method), "cluster": cluster} for method in by_method}
    if as_json:
        tables = {method: cells_of(own, **how[method]) for method, own in by_method.items()}
        rows = {method: [{key: it for key, (it, _) in row.items()} for row in own] for method, own in tables.items()}
        found = {"frontier": frontier.name, "goal": str(frontier.goal), "points": rows}
        if frontier.goal.target is not None:
            found["fits"] = {method: _fit_tree(fit_of(own)) for method, own in by_method.items()}
        return json.dumps(finite(found | {"conclusions": conclusions(opened, points)}), indent=1)
    tables = {method: rows_of(own, **how[method]) for method, own in by_method.items()}
    parts = [f"frontier {frontier.name} over {frontier.recipe}: {frontier.goal}"]
    parts += [f"{method}\n{points_text(rows)}" for method, rows in tables.items()]
    parts += [_picture(opened, points), "\n".join(conclusions(opened, points)), how_to_read(opened)]
    return "\n\n".join(filter(None, parts))


def _fit_tree(made: tuple[Fit, tuple[float, float]] | None) -> dict[str, Any] | None:
    """A curve of `fit_of` in numbers, without those that take a bend where there is none; None without a curve."""
    if made is None:
        return None
    curve, (low, high) = made
    tree = {"bend": not curve.end, "error": math.expm1(curve.error), "interval": [low or None, high]}
    found = {"s_min": curve.s_min, "b_crit": curve.b_crit, "largest_useful_batch": curve.useful_to}
    return tree | (dict.fromkeys(found) if curve.end else found)


def baseline(by_method: Mapping[str, Sequence[Point]], method: str) -> dict[int, Point]:
    """Batch -> the point of the first method; empty for that method itself."""
    first = next(iter(by_method))
    return {} if method == first else {point.batch: point for point in by_method[first]}


def how_to_read(opened: OpenedFrontier) -> str:
    """What the columns are."""
    rules = "linear, sqrt: the rate of the first row by these rules"
    if opened.frontier.goal.target is None:
        return (
            "accuracy: mean over the seeds, of the last evaluation; best trial: partly luck; against: difference in "
            f"points and its 95 % interval by Welch's t; {rules}"
        )
    return (
        "updates: median over the seeds, counted at evaluations; best trial: the fewest of one trial, partly luck; "
        f"{rules}; largest useful batch: there the curve is 20 % above its end"
    )


def _picture(opened: OpenedFrontier, points: Sequence[Point]) -> str:
    """The figures against the batch; updates with the perfect scaling of each method's curve as dots."""
    found = [point for point in points if point.has_figure]
    if len({point.batch for point in found}) < 2:
        return ""
    methods, with_target = list(opened.frontier.all_methods), found[0].has_target
    y_of = math.log if with_target else float
    batches, ys = [point.batch for point in found], [y_of(point.figure) for point in found]
    margin = 0.2 if with_target else 0.05 * (max(ys) - min(ys)) or 0.01
    low, high = min(ys) - margin, max(ys) + margin
    left, right = math.log(min(batches)), math.log(max(batches))
    cells = [[" "] * (_COLUMNS + 1) for _ in range(_ROWS + 1)]

    def put(batch: float, value: float, mark: str) -> None:
        row = round((high - y_of(value)) / (high - low) * _ROWS)
        if 0 <= row <= _ROWS:
            cells[row][round((math.log(batch) - left) / (right - left) * _COLUMNS)] = mark

    curves = [curve for own in points_by_method(opened, points).values() if (curve := curve_of(own)) is not None]
    for column, curve in product(range(0, _COLUMNS + 1, 2), curves):
        batch = math.exp(left + (right - left) * column / _COLUMNS)
        put(batch, curve.perfect(batch), ".")
    for point in found:
        put(point.batch, point.figure, _MARKS[methods.index(point.method) % len(_MARKS)])
    labels = {row: f"{math.exp(y):.0f}" if with_target else percent(y) for row, y in ((0, high), (_ROWS, low))}
    lines = [f"{labels.get(row, ''):>8} |{''.join(cells[row]).rstrip()}" for row in range(_ROWS + 1)]
    ends = f"{min(batches):,}"
    lines += [" " * 9 + "+" + "-" * _COLUMNS, " " * 10 + ends + f"{max(batches):,}".rjust(_COLUMNS + 1 - len(ends))]
    legend = ", ".join(f"{_MARKS[at % len(_MARKS)]} {method}" for at, method in enumerate(methods))
    title, dots = "accuracy by batch (logarithmic)", ""
    if with_target:
        title = "updates to the goal by batch, both logarithmic"
        dots = ", . perfect scaling" * bool(curves)
    return "\n".join([title, *lines, legend + dots])


def planned_time(
    opened: OpenedFrontier, method: str, batch: int, cluster: str, *, values: Mapping[str, Any], updates: float
) -> dict[str, Cell]:
    """Time in seconds, device-hours and cost in dollars of so many updates, on as many devices as the batch can use.

    Raises:
        NoForecast: the cluster's file lacks a figure.
    """
    fixed = {**opened.search_tree(method, batch)["fixed"], **values}
    recipe = open_recipe(opened.bases[method].path, overrides=assignments(fixed), **opened.options)
    where, _ = cluster_of(cluster, workers=None, vocabulary=opened.options["vocabulary"], overrides=())
    devices = min(where.num_workers, batch)
    made = planned(recipe, where, exact=None, workers=devices, model=model_of(recipe))
    seconds = forecast(made).seconds_of(0, round(updates))
    hours, dollars = devices * seconds / 3600, where.dollars(devices, seconds)
    paid = f" for {billed} devices" if (billed := where.billed_devices(devices)) != devices else ""
    return {
        "devices": (devices, str(devices)),
        "time": (seconds, duration(seconds)),
        "device-hours": (hours, f"{hours:.3g}"),
        "cost": (dollars, "-" if dollars is None else f"${dollars:.3g}{paid}"),
    }


def dry_run_text(opened: OpenedFrontier, *, workers: int | None, as_json: bool = False) -> str:
    """Points, trials and samples before anything starts."""
    frontier, rows, total, widened = opened.frontier, [], 0, 0
    spans = {method: set(base.recipe.batch.norm_span.sizes) for method, base in opened.bases.items()}
    other_spans = any({opened.norm_span(*it)} != spans[it[0]] for it in product(frontier.all_methods, frontier.sizes))
    for batch in frontier.sizes:
        for method in frontier.all_methods:
            longest = opened.longest(method, batch)[1]
            runs = frontier.budget.trials + frontier.seeds
            samples = longest * batch * runs
            more = (MOST_PARTS - 1) * (trials_beyond_edge(frontier.budget.trials) + frontier.seeds)
            total, widened = total + samples, widened + longest * batch * (runs + more)
            row = {"batch": batch, "method": method, "trials": frontier.budget.trials, "seeds": frontier.seeds}
            if as_json or other_spans:
                row["norm_span"] = opened.norm_span(method, batch)
            if as_json:
                rows.append(row | {"updates_at_most": longest, "samples": samples})
            else:
                rows.append(row | {"updates a run, at most": longest, "samples": f"{samples:,}"})
    if as_json:
        totals = {"samples": total, "samples_if_widened": widened}
        return json.dumps({"frontier": frontier.name, **totals, "points": rows}, indent=1)
    with_target = frontier.goal.target is not None
    side = (workers or 1) // frontier.ranks_per_trial or 1
    lines = [
        f"frontier {frontier.name} over {frontier.recipe}: {frontier.goal}",
        *([f"counted at evaluations {100 * frontier.spacing:g} % of the best trial's updates apart"] * with_target),
        "",
        points_text(rows),
        "",
        *(f"tuned, {name}: {', '.join(opened.search_tree(name, None)['space'])}" for name in frontier.all_methods),
        f"{number(total)} samples; {number(widened)} if each optimum lies on an edge of its ranges and they grow",
        *(["fewer where a trial ends at the goal, or cannot beat the best"] * with_target),
        f"{f'{side} trials side by side' if side > 1 else '1 trial at a time'}, one point after the other",
    ]
    return "\n".join(lines)
