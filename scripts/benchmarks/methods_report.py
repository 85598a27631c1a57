"""The table and the page of the benchmark of methods: means, deviations, Welch's intervals; one HTML file."""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from methods import METHODS, RECIPE, SETTINGS, TUNING_SEED, Setting, best_trial, overrides_of
from rich.console import Console
from rich.table import Table
from timing import head
from timing import row as line

from recipes.reports.markup import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document
from recipes.reports.plots import run_style, save_figure, svg_text
from recipes.reports.style import DASHES, INK, MATPLOTLIB, MUTED, SERIES

CONFIDENCE = 0.95
HEADS = ("setting", "method", "rate", "updates", "accuracy %", "minus plain, points", "verdict")
REFERENCE = "reference batch"
TITLE = "Large-batch methods compared"
COLOURS = {"better": SERIES[2], "worse": SERIES[1]}
CAPTIONS = (
    f"Mean accuracy minus that of plain scaling, points, with Welch's {CONFIDENCE:.0%} interval. Green and red: 0 is "
    "outside, so better and worse; grey: not told apart.",
    "Accuracy of each reported run and the mean; the dashed line is the mean at the reference batch.",
    "The trials: accuracy of one run at each rate, on a seed that is not reported. Rates as parts of the method's "
    "default; what failed is left out.",
)

Runs = Sequence[Mapping[str, Any]]  # of the JSON


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A difference of two means and its confidence interval, fractions of 1; the bounds are NaN where none is known."""

    difference: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method on one setting.

    Args:
        setting, title: of the setting and the method.
        method: its key, `reference` for plain scaling at the reference batch.
        rate: the best of the trials.
        tried: all rates that were tried.
        updates: of a run.
        accuracies: of the reported seeds in their order, a failed run counted as chance.
        failed: how many of them failed.
        against: the difference to plain scaling on the same setting; None for plain scaling itself, or without it.
    """

    setting: str
    method: str
    title: str
    rate: float
    tried: tuple[float, ...]
    updates: int
    accuracies: tuple[float, ...]
    failed: int
    against: Interval | None = None

    @property
    def mean(self) -> float:
        return statistics.mean(self.accuracies)

    @property
    def deviation(self) -> float:
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else math.nan

    @property
    def at_edge(self) -> bool:
        """Whether the best rate is the smallest or the largest of those tried: a better one may lie outside."""
        return self.rate in (min(self.tried), max(self.tried))

    @property
    def verdict(self) -> str:
        """`better` or `worse` than plain scaling only where the interval excludes 0.

        >>> verdict_of(Interval(difference=0.01, low=-0.001, high=0.021))
        'not told apart'
        """
        return "" if self.against is None else verdict_of(self.against)


def verdict_of(found: Interval) -> str:
    """The interval in words."""
    if found.low > 0:
        return "better"
    if found.high < 0:
        return "worse"
    return "no interval" if math.isnan(found.low) else "not told apart"


def welch(first: Sequence[float], second: Sequence[float], *, confidence: float = CONFIDENCE) -> Interval:
    """Mean of `first` minus mean of `second`, without assuming equal deviations.

        d +- t(confidence, df) sqrt(a + b)        a = var_1 / n_1, b = var_2 / n_2
        df = (a + b)^2 / (a^2 / (n_1 - 1) + b^2 / (n_2 - 1))

    Args:
        first, second: values of single runs.
        confidence: such as 0.95, two-sided.
    Returns:
        bounds NaN where a side has fewer than two values, or no side has any deviation.

    Source: Welch 1947, Biometrika 34 (not checked); the same numbers as SciPy's `ttest_ind(equal_var=False)`.
    """
    from scipy import stats  # late: it takes a while, and training needs none of it

    difference = statistics.mean(first) - statistics.mean(second)
    if min(len(first), len(second)) < 2:
        return Interval(difference=difference, low=math.nan, high=math.nan)
    a, b = (statistics.variance(values) / len(values) for values in (first, second))
    if a + b == 0:
        return Interval(difference=difference, low=math.nan, high=math.nan)
    freedom = (a + b) ** 2 / (a**2 / (len(first) - 1) + b**2 / (len(second) - 1))
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * math.sqrt(a + b)
    return Interval(difference=difference, low=difference - half, high=difference + half)


def rows_of(runs: Runs) -> list[Row]:
    """A row for every method with a reported run, by setting, the reference batch first.

    Args:
        runs: of the JSON; of a method's reported runs only those at its best rate count.
    """
    rows = []
    for setting in (setting for setting in SETTINGS.values() if setting.times > 1):
        reference = _row(runs, SETTINGS[setting.reference], "plain", shown=("reference", REFERENCE, setting.name))
        named = [_row(runs, setting, key, shown=(key, METHODS[key].title, setting.name)) for key in METHODS]
        plain = next((row for row in named if row and row.method == "plain"), None)
        rows += [_beside(row, plain) for row in (reference, *named) if row]
    return rows


def _beside(row: Row, plain: Row | None) -> Row:
    if plain is None or row is plain:
        return row
    return replace(row, against=welch(row.accuracies, plain.accuracies))


def _row(runs: Runs, setting: Setting, method: str, *, shown: tuple[str, str, str]) -> Row | None:
    own = [run for run in runs if (run["setting"], run["method"]) == (setting.name, method)]
    trials = [run for run in own if run["seed"] == TUNING_SEED]
    if not trials:
        return None
    rate = best_trial(trials)["rate"]
    reported = sorted(
        (run for run in own if run["seed"] != TUNING_SEED and run["rate"] == rate), key=lambda run: run["seed"]
    )
    if not reported:
        return None
    return Row(
        setting=shown[2],
        method=shown[0],
        title=shown[1],
        rate=rate,
        tried=tuple(sorted(run["rate"] for run in trials)),
        updates=reported[0]["updates"],
        accuracies=tuple(setting.chance if run["failed"] else run["accuracy"] for run in reported),
        failed=sum(bool(run["failed"]) for run in reported),
    )


def cells_of(row: Row) -> tuple[str, ...]:
    """The row in words, under `HEADS`."""
    edge = " (edge)" if row.at_edge else ""
    spread = "" if math.isnan(row.deviation) else f" ± {100 * row.deviation:.2f}"
    runs = f" ({len(row.accuracies)} runs)"
    failed = f", {row.failed} failed" if row.failed else ""
    interval = "" if row.against is None else points(row.against)
    accuracy = f"{100 * row.mean:.2f}{spread}{runs}{failed}"
    return (row.setting, row.title, f"{row.rate:.3g}{edge}", f"{row.updates:,}", accuracy, interval, row.verdict)


def points(found: Interval) -> str:
    """A difference and its interval in percentage points.

    >>> points(Interval(difference=0.012, low=-0.001, high=0.025))
    '+1.20 (-0.10 to +2.50)'
    """
    if math.isnan(found.low):
        return f"{100 * found.difference:+.2f}"
    return f"{100 * found.difference:+.2f} ({100 * found.low:+.2f} to {100 * found.high:+.2f})"


def markdown_of(rows: Sequence[Row]) -> str:
    """The table in Markdown; `better` and `worse` in bold."""
    lines = [head(HEADS)]
    for row in rows:
        *cells, verdict = cells_of(row)
        bold = f"**{verdict}**" if verdict in ("better", "worse") else verdict
        lines.append(line([*cells, bold]))
    return "\n".join(lines)


def show(rows: Sequence[Row], *, markdown: bool) -> None:
    """Print the table."""
    if markdown:
        print(markdown_of(rows))
        return
    shown = Table(*HEADS, title=f"Large-batch methods; intervals: Welch, {CONFIDENCE:.0%}")
    colours = {"better": "green", "worse": "red"}
    shown.columns[0].no_wrap = shown.columns[-1].no_wrap = True
    for index, row in enumerate(rows):
        last = index + 1 == len(rows) or rows[index + 1].setting != row.setting
        shown.add_row(*cells_of(row), style=colours.get(row.verdict), end_section=last)
    console = Console(width=None if sys.stdout.isatty() else 130)  # a log has no width of its own
    console.print(shown if rows else "no runs yet")


def write(rows: Sequence[Row], runs: Runs, *, html: Path | None, picture: Path | None) -> None:
    """Write the page, its first picture alone, or both.

    Args:
        rows: of the table.
        runs: of the JSON.
        html, picture: the files, or None.
    Raises:
        ValueError: there are no rows yet.
    """
    if html is None and picture is None:
        return
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
