"""The table and the picture of the benchmark of methods: means, deviations, Welch's intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from methods import METHODS, SETTINGS, TUNING_SEED, Setting, best_trial
from timing import head
from timing import row as line

from recipes.reports.style import MATPLOTLIB, MUTED, SERIES

CONFIDENCE = 0.95
HEADS = ("setting", "method", "rate", "updates", "accuracy %", "minus plain, points", "verdict")
REFERENCE = "reference batch"
COLOURS = {"better": SERIES[2], "worse": SERIES[1]}
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


def picture_of(rows: Sequence[Row]) -> Figure:
    """Differences to plain scaling with Welch's intervals, a panel for each setting.

    Green and red: the interval excludes 0, better and worse; grey: not told apart.
    """
    settings = list(dict.fromkeys(row.setting for row in rows))
    titles = [method.title for key, method in METHODS.items() if any(row.method == key for row in rows)]
    titles = [REFERENCE, *titles]
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(10.0, 0.26 * len(titles) + 0.8), layout="constrained")
        FigureCanvasAgg(figure)
        panels = list(figure.subplots(1, len(settings), sharey=True, squeeze=False)[0])
        for axes, setting in zip(panels, settings, strict=True):
            axes.axvline(0, color=MUTED, linewidth=1.0)
            for row in (row for row in rows if row.setting == setting and row.against is not None):
                at, colour = titles.index(row.title), COLOURS.get(row.verdict, MUTED)
                low, high = (100 * bound for bound in (row.against.low, row.against.high))
                if not math.isnan(low):
                    axes.plot([low, high], [at, at], color=colour)
                marker = "D" if row.method == "reference" else "o"
                axes.plot([100 * row.against.difference], [at], marker, color=colour, markersize=5)
            batch, times = SETTINGS[setting].batch, SETTINGS[setting].times
            axes.set_title(f"{setting.rpartition('-')[0]}, batch {batch:,} ({times}x)")
            axes.set_xlabel("points over plain scaling")
        panels[0].set_yticks(range(len(titles)), titles)
        panels[0].set_ylim(len(titles) - 0.5, -0.5)
    return figure
