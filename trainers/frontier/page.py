"""A frontier's folder for people: the page, the picture, and the recipe of every optimum."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.frontiers.fit import Fit
from recipes.frontiers.open_frontier import OpenedFrontier
from recipes.reports import charts
from recipes.reports.charts import chart, curve
from recipes.reports.html import joined, table, tag
from recipes.reports.page import document
from recipes.reports.style import MUTED
from recipes.scale import scale_recipe
from trainers.frontier.report import baseline, conclusions, how_to_read, points_by_method, rows_of
from trainers.frontier.results import Point, curve_of, points_in
from trainers.runs.run_folder import REPORT, write_whole

RECIPES = "best"  # the folder of the optima's recipes
_STEPS = 80  # of a drawn curve
_DASHED, _DOTTED = [5, 3], [2, 3]


def write_report(folder: Path, opened: OpenedFrontier, points: Sequence[Point], *, cluster: str | None = None) -> None:
    """Write page, picture and recipes into a frontier's folder."""
    frontier, by_method = opened.frontier, points_by_method(opened, points)
    body = [tag("div", f"frontier over {frontier.recipe}: {frontier.goal}", class_="muted")]
    body += [tag("p", line) for line in conclusions(opened, points)]
    body.append(charts.drawn(_charts(by_method)))
    written = set()
    for method, own in by_method.items():
        rows = rows_of(own, baseline=baseline(by_method, method), cluster=cluster)
        body += [tag("h2", method), table([*rows[0]], [[*row.values()] for row in rows])]
        written |= _write_recipes(folder / RECIPES, own)
    _remove_recipes(folder, written)
    body.append(tag("p", how_to_read(opened), class_="muted"))
    write_whole(
        folder / REPORT,
        document(frontier.title or frontier.name, joined(body), style=charts.style(), script=charts.script()),
    )
    _write_picture(folder, by_method)


def _charts(by_method: Mapping[str, Sequence[Point]]) -> dict[str, Any]:
    """Figures, epochs and rate by batch, with the lines that they are compared with."""
    points: dict[str, dict[str, list[float]]] = {}
    figures, epochs, rates = [], [], []
    with_target = all(point.has_target for own in by_method.values() for point in own)
    for style, (method, own) in enumerate(by_method.items()):
        found = [point for point in own if point.has_figure]
        if not found:
            continue
        batches, made = [point.batch for point in found], curve_of(own)
        runs = [(point.batch, figure) for point in found for figure in point.runs if math.isfinite(figure)]
        points |= {method: {"batch": batches}, f"{method} seeds": {"batch": [batch for batch, _ in runs]}}
        points[f"{method} curve"] = {"batch": _grid(batches)}
        look = "points" if with_target else "dots"
        figures.append(curve(method, [point.figure for point in found], method, style=style, look=look))
        figures.append(curve(f"{method} seeds", [it for _, it in runs], f"{method}, seeds", style=style, look="hollow"))
        if made is not None:
            fitted, perfect = _lines(made, _grid(batches), least=min(point.figure for point in found))
            figures.append(curve(f"{method} curve", fitted, f"{method}, fitted", style=style))
            name = f"{method}, perfect scaling"
            figures.append(curve(f"{method} curve", perfect, name, colour=MUTED, dashes=_DASHED, scales=False))
        epochs.append(curve(method, [point.epochs for point in found], method, style=style, look="dots"))
        rates.append(curve(method, [point.rate for point in found], method, style=style, look="dots"))
        for name, power, dashes in (("linear", 1.0, _DASHED), ("square root", 0.5, _DOTTED)):
            rule = [found[0].rate * (batch / batches[0]) ** power for batch in batches]
            rates.append(curve(method, rule, f"{method}, {name} rule", colour=MUTED, dashes=dashes, scales=False))
    how = {"axes": ("batch",), "logarithmic": "xy"}
    made = [
        chart("Accuracy", "Mean of the seeds at every batch; hollow: each seed.", figures, **how | {"logarithmic": "x"})
    ]
    if with_target:
        made = [
            chart("Updates to the goal", "Median of the seeds at every batch; hollow: each seed.", figures, **how),
            chart("Epochs to the goal", "What a larger batch costs.", epochs, **how),
        ]
    made.append(chart("Tuned learning rate", "The full rate; grey: rules from the smallest batch.", rates, **how))
    return {"points": points, "charts": made if figures else []}


def _grid(batches: Sequence[int]) -> list[float]:
    return [batches[0] * (batches[-1] / batches[0]) ** (step / _STEPS) for step in range(_STEPS + 1)]


def _lines(fit: Fit, batches: Sequence[float], *, least: float) -> tuple[list[float], list[float]]:
    """The fitted updates, and perfect scaling as far down as there are points."""
    perfect = [fit.perfect(batch) if fit.perfect(batch) > least / 2 else math.nan for batch in batches]
    return [fit.updates(batch) for batch in batches], perfect


def _write_picture(folder: Path, by_method: Mapping[str, Sequence[Point]]) -> None:
    from recipes.reports.plots import svg_text
    from recipes.reports.plots.of_frontier import Curve, accuracy_figure, updates_figure

    curves, with_target = [], True
    for method, own in by_method.items():
        if found := [point for point in own if point.has_figure]:
            with_target = found[0].has_target
            made, grid = curve_of(own), _grid([point.batch for point in found])
            lines = _lines(made, grid, least=min(point.figure for point in found)) if made else ((), ())
            runs = [[figure for figure in point.runs if math.isfinite(figure)] for point in found]
            curves.append(
                Curve(
                    method=method,
                    runs=runs,
                    grid=grid,
                    fitted=lines[0],
                    perfect=lines[1],
                    batches=[point.batch for point in found],
                    figures=[point.figure for point in found],
                )
            )
    if curves:
        name, drawn = ("updates.svg", updates_figure) if with_target else ("accuracy.svg", accuracy_figure)
        write_whole(folder / name, svg_text(drawn(curves)))


def _write_recipes(folder: Path, points: Sequence[Point]) -> set[Path]:
    """The recipe of every optimum, and beside it what `recipes scale` makes of the smallest batch's; returns them."""
    found = [point for point in points if point.best_part is not None and point.best_part.best_recipe is not None]
    written = set()
    for point in found:
        folder.mkdir(exist_ok=True)
        text = point.best_part.best_recipe.read_text(encoding="utf-8")
        own, scaled = _recipe_files(folder, point.method, point.batch)
        write_whole(own, text)
        written.add(own)
        if point is not found[0]:
            scaled.unlink(missing_ok=True)
            first, _ = _recipe_files(folder, point.method, found[0].batch)
            with suppress(InputRefused):  # no rule leads there
                scale_recipe(first, batch=point.batch, beyond=True, out=scaled, **point.opened.options)
                written.add(scaled)
    return written


def _remove_recipes(folder: Path, written: Collection[Path]) -> None:
    """Remove those of points that are no longer in the frontier, and no file of the user's."""
    for method, batch in points_in(folder):
        for path in _recipe_files(folder / RECIPES, method, batch):
            if path not in written:
                path.unlink(missing_ok=True)


def _recipe_files(folder: Path, method: str, batch: int) -> tuple[Path, Path]:
    """The recipe of a point's optimum, and the scaled one."""
    return folder / f"{method}-{batch}.yaml", folder / f"{method}-{batch}-scaled.yaml"
