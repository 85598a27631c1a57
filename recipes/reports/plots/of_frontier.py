"""The picture of a frontier: updates to the goal by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from recipes.reports.plots.figure import decades, stacked
from recipes.reports.style import DASHES, MUTED, SERIES


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of a method that reached the goal.

    Args:
        batches, updates, runs: of each point: its updates are the median of its `runs`.
        grid, fitted, perfect: batches, and the fitted updates and those of perfect scaling there; empty without a fit.
    """

    method: str
    batches: Sequence[int]
    updates: Sequence[float]
    runs: Sequence[Sequence[float]]
    grid: Sequence[float]
    fitted: Sequence[float]
    perfect: Sequence[float]


def frontier_figure(curves: Sequence[Curve]) -> Figure:
    """Updates by batch, both logarithmic; dashed: perfect scaling."""
    with stacked([3.2]) as (figure, (axes,)):
        for at, curve in enumerate(curves):
            colour = SERIES[at % len(SERIES)]
            axes.plot(curve.batches, curve.updates, "osv^D"[at % 5], color=colour, markersize=5, label=curve.method)
            for batch, runs in zip(curve.batches, curve.runs, strict=True):
                axes.plot([batch] * len(runs), runs, ".", color=colour, markersize=3)
            if len(curve.fitted):
                axes.plot(curve.grid, curve.fitted, color=colour, linewidth=1.2)
                axes.plot(curve.grid, curve.perfect, color=MUTED, linestyle=DASHES[1], linewidth=1)
        batches = sorted({batch for curve in curves for batch in curve.batches})
        axes.set(xscale="log", yscale="log", title="updates to the goal by batch (logarithmic)", xlabel="batch")
        axes.xaxis.set_major_locator(FixedLocator(np.array(batches[:: math.ceil(len(batches) / 7)])))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:,.0f}")
        decades(axes)
        if len(curves) > 1:
            axes.legend(frameon=False)
    return figure
