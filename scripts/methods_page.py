"""The page of `bench_methods.py`: one self-contained HTML file, pictures first."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import matplotlib
from compared_methods import METHODS, RECIPE, SETTINGS, TUNING_SEED, overrides_of
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from methods_table import CONFIDENCE, HEADS, REFERENCE, Row, Runs, cells_of

from recipes.reports.html import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document
from recipes.reports.plots import run_style, save_figure, svg_text
from recipes.reports.style import DASHES, INK, MATPLOTLIB, MUTED, SERIES

TITLE = "Large-batch methods compared"
COLOURS = {"better": SERIES[2], "worse": SERIES[1]}
CAPTIONS = (
    f"Mean accuracy minus that of plain scaling, points, with Welch's {CONFIDENCE:.0%} interval. Green and red: 0 is "
    "outside, so better and worse; grey: not told apart.",
    "Accuracy of each reported run and the mean; the dashed line is the mean at the reference batch.",
    "The trials: accuracy of one run at each rate, on a seed that is not reported. Rates as parts of the method's "
    "default; what failed is left out.",
)


def write(rows: Sequence[Row], runs: Runs, *, html: Path | None, picture: Path | None) -> None:
    """Write the page, its first picture alone, or both.

    Args:
        rows: of the table.
        runs: of the JSON.
        html, picture: the files, or None.
    Raises:
        ValueError: there are no rows yet.
    """
    if not rows:
        raise ValueError("no method has a reported run yet: there is nothing to draw")
    if picture is not None:
        save_figure(differences_figure(rows), picture)
    if html is not None:
        partial = html.with_name(html.name + ".partial")
        partial.write_text(page_text(rows, runs), encoding="utf-8")
        os.replace(partial, html)


def page_text(rows: Sequence[Row], runs: Runs) -> str:
    """The page as text."""
    figures = (differences_figure(rows), accuracies_figure(rows), trials_figure(runs))
    drawn = []
    for place, (figure, caption) in enumerate(zip(figures, CAPTIONS, strict=True)):
        drawing = inline_svg(svg_text(figure), prefix=f"p{place}", label=caption)
        drawn.append(tag("figure", drawing, tag("figcaption", caption)))
    body = joined(
        [
            tag("p", summary(rows), class_="verdict"),
            tag("div", *drawn),
            tag("h2", "Table"),
            table(HEADS, [cells_of(row) for row in rows], class_="numbers"),
            tag("h2", "Methods"),
            table(("method", "what it does"), [(method.title, method.what) for method in METHODS.values()]),
            tag("h2", "How to reproduce"),
            _commands(rows),
        ]
    )
    return document(TITLE, body)


def summary(rows: Sequence[Row]) -> str:
    """The number of comparisons with each verdict, in a sentence or two."""
    compared = [
        row for row in rows if row.against is not None and row.method in METHODS and not METHODS[row.method].added
    ]
    words = []
    for verdict in ("better", "worse"):
        named = [f"{row.title} on {row.setting}" for row in compared if row.verdict == verdict]
        words.append(f"{verdict.capitalize()} than plain scaling: {', '.join(named) if named else 'none'}.")
    apart = sum(row.verdict in ("better", "worse") for row in compared)
    words.append(f"{len(compared) - apart} of {len(compared)} comparisons are not told apart.")
    return " ".join(words)


def _commands(rows: Sequence[Row]) -> Markup:
    lines = []
    for row in rows:
        setting = SETTINGS[row.setting]
        key, setting = ("plain", SETTINGS[setting.reference]) if row.method == "reference" else (row.method, setting)
        words = " ".join(f"--set '{o}'" for o in overrides_of(setting, key, rate=row.rate, seed=0))
        lines.append(f"# {row.setting}, {row.title}\nkilobatch train {RECIPE} {words}")
    return tag("pre", tag("code", "\n".join(lines)))


def differences_figure(rows: Sequence[Row]) -> Figure:
    """Differences to plain scaling with their intervals, a panel for each setting."""
    settings, titles = _settings(rows), [REFERENCE, *_titles(rows)]
    with _panels(len(settings), height=0.26 * len(titles) + 0.8, sharey=True) as (figure, panels):
        for axes, setting in zip(panels, settings, strict=True):
            axes.axvline(0, color=MUTED, linewidth=1.0)
            for row in (row for row in rows if row.setting == setting and row.against is not None):
                at, colour = titles.index(row.title), COLOURS.get(row.verdict, MUTED)
                low, high = (100 * bound for bound in (row.against.low, row.against.high))
                if not math.isnan(low):
                    axes.plot([low, high], [at, at], color=colour)
                marker = "D" if row.method == "reference" else "o"
                axes.plot([100 * row.against.difference], [at], marker, color=colour, markersize=5)
            axes.set_title(_named(setting))
            axes.set_xlabel("points over plain scaling")
        _list(panels[0], titles)
    return figure


def accuracies_figure(rows: Sequence[Row]) -> Figure:
    """Accuracy of every reported run, a panel for each setting."""
    settings, titles = _settings(rows), _titles(rows)
    with _panels(len(settings), height=0.26 * len(titles) + 0.8, sharey=True) as (figure, panels):
        for axes, setting in zip(panels, settings, strict=True):
            for row in (row for row in rows if row.setting == setting):
                if row.method == "reference":
                    axes.axvline(100 * row.mean, color=INK, linewidth=1.0, linestyle=DASHES[1])
                    continue
                at = titles.index(row.title)
                percent = [100 * accuracy for accuracy in row.accuracies]
                axes.plot(percent, [at] * len(percent), "o", color=SERIES[0], markersize=4, alpha=0.5)
                axes.plot([100 * row.mean], [at], "|", color=INK, markersize=11)
            axes.set_title(_named(setting))
            axes.set_xlabel("accuracy (%)")
        _list(panels[0], titles)
    return figure


def trials_figure(runs: Runs) -> Figure:
    """Accuracy of every trial against its rate, a panel for each setting."""
    tried = [run for run in runs if run["seed"] == TUNING_SEED and not run["failed"]]
    tried.sort(key=lambda run: run["rate"])
    settings = [name for name in SETTINGS if SETTINGS[name].times > 1 and any(run["setting"] == name for run in tried)]
    look = {"marker": "o", "markersize": 3, "linewidth": 1.2}
    with _panels(len(settings), height=2.9, sharey=False) as (figure, panels):
        for axes, setting in zip(panels, settings, strict=True):
            for place, (key, method) in enumerate(METHODS.items()):
                colour, dashes = run_style(place)
                if all(run["method"] != key for run in tried):
                    continue
                own = sorted(
                    (r for r in tried if (r["setting"], r["method"]) == (setting, key)), key=lambda r: r["rate"]
                )
                rates = [run["rate"] / method.default(SETTINGS[setting]) for run in own]
                percent = [100 * run["accuracy"] for run in own]
                axes.plot(rates, percent, color=colour, linestyle=dashes, label=method.title, **look)
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter("{x:g}")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set_title(_named(setting))
            axes.set_xlabel("rate over the method's default")
        panels[0].set_ylabel("accuracy (%)")
        figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def _settings(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.setting for row in rows))


def _titles(rows: Sequence[Row]) -> list[str]:
    return [method.title for key, method in METHODS.items() if any(row.method == key for row in rows)]


def _named(setting: str) -> str:
    found = SETTINGS[setting]
    return f"{setting.rpartition('-')[0]}, batch {found.batch:,} ({found.times}x)"


def _list(axes: Axes, titles: Sequence[str]) -> None:
    axes.set_yticks(range(len(titles)), titles)
    axes.set_ylim(len(titles) - 0.5, -0.5)


@contextmanager
def _panels(count: int, *, height: float, sharey: bool) -> Iterator[tuple[Figure, list[Axes]]]:
    """Panels beside each other in the house style."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(10.0, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, list(figure.subplots(1, count, sharey=sharey, squeeze=False)[0])
