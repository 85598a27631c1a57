"""Pictures of a frontier: updates, epochs and rate at the optimum of every batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from recipes.reports.plots.figure import decades, stacked
from recipes.reports.style import DASHES, MUTED, SERIES


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of a method that reached the goal, by batch.

    Args:
        updates, epochs, rates: at the optimum of each batch; updates are the median of `runs`.
        runs: updates of each run with a fresh seed.
        fit: has `updates(batch)` and `perfect(batch)`; None where there is none.
    """

    method: str
    batches: Sequence[int]
    updates: Sequence[float]
    runs: Sequence[Sequence[float]]
    epochs: Sequence[float]
    rates: Sequence[float]
    fit: Any


def frontier_figures(curves: Sequence[Curve]) -> Iterator[tuple[str, Figure, str]]:
    """Name, figure and caption of each picture."""
    with stacked([3.2]) as (figure, (axes,)):
        _updates(axes, curves)
    yield "updates", figure, (
        "Updates to the goal by batch: the median of the seeds, and each seed small. Solid: S_min (1 + B_crit / B); "
        "dashed: perfect scaling."
    )
    with stacked([2.4]) as (figure, (axes,)):
        for curve, look in zip(curves, _looks(), strict=False):
            axes.plot(curve.batches, curve.epochs, label=curve.method, **look)
        _batch_axis(axes, curves, "epochs to the goal")
    yield "epochs", figure, "Epochs to the goal by batch: what a larger batch costs."
    with stacked([2.4]) as (figure, (axes,)):
        for curve, look in zip(curves, _looks(), strict=False):
            axes.plot(curve.batches, curve.rates, label=curve.method, **look)
            first, grown = curve.rates[0], np.array(curve.batches) / curve.batches[0]
            axes.plot(curve.batches, first * grown, color=MUTED, linestyle=DASHES[1], linewidth=1)
            axes.plot(curve.batches, first * np.sqrt(grown), color=MUTED, linestyle=DASHES[2], linewidth=1)
        _batch_axis(axes, curves, "tuned learning rate")
    yield "rates", figure, (
        "The tuned full rate by batch; grey: the linear rule (the steeper) and the square root rule from the smallest."
    )


def _updates(axes: Axes, curves: Sequence[Curve]) -> None:
    for curve, look in zip(curves, _looks(), strict=False):
        axes.plot(curve.batches, curve.updates, label=curve.method, **{**look, "linestyle": "none"})
        for batch, runs in zip(curve.batches, curve.runs, strict=True):
            axes.plot([batch] * len(runs), runs, ".", color=look["color"], markersize=3)
        if curve.fit is not None:
            batches = np.geomspace(curve.batches[0], curve.batches[-1], 100)
            axes.plot(batches, [curve.fit.updates(batch) for batch in batches], color=look["color"], linewidth=1.2)
            perfect = np.array([curve.fit.perfect(batch) for batch in batches])
            seen = perfect >= 0.5 * min(curve.updates)
            axes.plot(batches[seen], perfect[seen], color=MUTED, linestyle=DASHES[1], linewidth=1)
    _batch_axis(axes, curves, "updates to the goal")


def _looks() -> Iterator[dict[str, Any]]:
    for at in range(len(SERIES)):
        yield {"color": SERIES[at], "marker": "osv^D"[at % 5], "markersize": 5, "linewidth": 1.2}


def _batch_axis(axes: Axes, curves: Sequence[Curve], title: str) -> None:
    batches = sorted({batch for curve in curves for batch in curve.batches})
    axes.set(xscale="log", yscale="log", title=f"{title} (logarithmic)", xlabel="batch")
    step = math.ceil(len(batches) / 7)
    axes.xaxis.set_major_locator(FixedLocator(batches[::-1][::step][::-1]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    decades(axes)
    if len(curves) > 1:
        axes.legend(frameon=False)
