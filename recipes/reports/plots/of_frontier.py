"""The picture of a frontier: updates to the goal, or the accuracy, by batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from recipes.reports.plots.figure import decades, stacked
from recipes.reports.style import DASHES, MUTED, SERIES


@dataclass(frozen=True, kw_only=True)
class Curve:
    """The points of a method.

    Args:
        batches, figures, runs: of each point: its figure is what its `runs` come to.
        grid, fitted, perfect: batches, and the fitted updates and those of perfect scaling there; empty without a fit.
    """

    method: str
    batches: Sequence[int]
    figures: Sequence[float]
    runs: Sequence[Sequence[float]]
    grid: Sequence[float]
    fitted: Sequence[float]
    perfect: Sequence[float]


def updates_figure(curves: Sequence[Curve]) -> Figure:
    """Updates by batch, both logarithmic; dashed: perfect scaling."""
    with stacked([3.2]) as (figure, (axes,)):
        for at, curve in enumerate(curves):
            _draw(axes, at, curve, line="")
            if len(curve.fitted):
                axes.plot(curve.grid, curve.fitted, color=SERIES[at % len(SERIES)], linewidth=1.2)
                axes.plot(curve.grid, curve.perfect, color=MUTED, linestyle=DASHES[1], linewidth=1)
        axes.set(yscale="log", title="updates to the goal by batch (logarithmic)")
        _finish(axes, curves)
        decades(axes)
    return figure


def accuracy_figure(curves: Sequence[Curve]) -> Figure:
    """Mean accuracy by batch, in percent; dots: each seed."""
    with stacked([3.2]) as (figure, (axes,)):
        for at, curve in enumerate(curves):
            _draw(axes, at, curve, line="-", scale=100)
        axes.set(title="accuracy by batch (logarithmic), %")
        _finish(axes, curves)
    return figure


def _draw(axes: Axes, at: int, curve: Curve, *, line: str, scale: float = 1) -> None:
    colour, figures = SERIES[at % len(SERIES)], [scale * figure for figure in curve.figures]
    axes.plot(
        curve.batches,
        figures,
        color=colour,
        label=curve.method,
        marker="osv^D"[at % 5],
        linestyle=line,
        linewidth=1.2,
        markersize=5,
    )
    for batch, runs in zip(curve.batches, curve.runs, strict=True):
        axes.plot([batch] * len(runs), [scale * run for run in runs], ".", color=colour, markersize=3)


def _finish(axes: Axes, curves: Sequence[Curve]) -> None:
    batches = sorted({batch for curve in curves for batch in curve.batches})
    axes.set(xscale="log", xlabel="batch")
    axes.xaxis.set_major_locator(FixedLocator(np.array(batches[:: math.ceil(len(batches) / 7)])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter("{x:,.0f}")
    if len(curves) > 1:
        axes.legend(frameon=False)
