"""Panels and axes that recipe figures and run pictures share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from recipes.reports.curves import reads_better_in_decades
from recipes.reports.record import Run
from recipes.reports.style import MATPLOTLIB, MUTED


@contextmanager
def stacked(heights: Sequence[float], *, width: float = 4.7) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of panels over one another that share their x axis, heights and width in inches, in the house style."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(width, sum(heights) + 0.3 * len(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        yield figure, list(grid[:, 0])


def epoch_axis(axes: Axes, runs: Sequence[Run], *, labelled: bool = True) -> None:
    """Epochs from 0 to where the longest run has come; the steps of a single run's ramp dotted."""
    axes.set_xlim(0, 1.015 * max(run.epochs_done for run in runs) or 1)  # a dot at the end is not cut in half
    round_epochs(axes)
    if labelled:
        axes.set_xlabel("epochs")
    if len(runs) == 1:
        for place in np.flatnonzero(np.diff(runs[0].updates.global_batch_size)):
            mark_boundary([axes], runs[0].updates.epoch[place + 1])


def round_epochs(axes: Axes) -> None:
    """Ticks at round epochs."""
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:g}")


def rate_axis(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    """A learning rate's axis: logarithmic where these curves read better so."""
    rates = np.concatenate(curves)
    rates = rates[np.isfinite(rates)]
    axes.yaxis.set_major_formatter("{x:g}")
    if reads_better_in_decades(rates):
        axes.set_yscale("log")
        axes.set_ylim(rates[rates > 0].min() / 1.5, rates.max() * 1.6)
        decades(axes)
        axes.set_title(f"{axes.get_title(loc='left')} (logarithmic)")
    else:
        axes.set_ylim(0, rates.max() * 1.08 if len(rates) and rates.max() > 0 else 1)


def decades(axes: Axes, *, of: str = "y") -> None:
    """Ticks of a logarithmic axis, `x` or `y`, few and written as plain numbers."""
    low, high = axes.get_ylim() if of == "y" else axes.get_xlim()
    axis = axes.yaxis if of == "y" else axes.xaxis
    powers = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1  # of ten: one tick alone says nothing
    subs = (1.0, 2.0, 5.0) if high <= 30 * low else (1.0, 3.0) if powers < 3 else (1.0,)
    axis.set_major_locator(LogLocator(base=10, subs=subs) if high > 5 * low else MaxNLocator(4))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_locator(NullLocator())


def batch_axis(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    """An axis of sizes from 0 on: where they are few, a tick at each."""
    sizes = np.unique(np.concatenate(curves))[::-1]
    if len(sizes) <= 5:
        ticks: list[float] = []
        for size in (*sizes, 0.0):
            if not ticks or ticks[-1] - size > 0.2 * sizes[0]:  # nearer ones would be written over each other
                ticks.append(float(size))
        axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.15 * sizes[0] if len(sizes) else 1)


def mark_boundary(panels: Sequence[Axes], epoch: float) -> None:
    """A dotted line at the epoch where a step of a ramp begins."""
    for axes in panels:
        axes.axvline(epoch, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))
