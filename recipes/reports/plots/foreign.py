"""Figures that another package draws through pyplot, in our style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from recipes.reports.plots.axes import decades
from recipes.reports.style import GRID, INK, MUTED


@contextmanager
def drawn_elsewhere() -> Iterator[None]:
    """Draw inside this context without opening a window, and without leaving settings or figures behind."""
    before = set(pyplot.get_fignums())
    with matplotlib.rc_context({"text.parse_math": False}):  # a name from a file is no mathematics
        pyplot.switch_backend("agg")
        try:
            yield
        finally:
            for number in set(pyplot.get_fignums()) - before:
                pyplot.close(number)


def restyled(axes: Axes, *, title: str, height: float = 2.9, lines: bool = False) -> Figure:
    """The figure of some axes, all of its axes in the house style and without their legends.

    Args:
        axes: as they were drawn.
        title: replaces theirs.
        height: of the axes, in inches.
        lines: of a grid, and axes on two sides only; else a frame.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    FigureCanvasAgg(figure)
    figure.set_size_inches(4.7, height + 0.3)
    figure.set_layout_engine("tight")  # a colour bar that is there already has no place in "constrained"
    axes.set_title("")
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="bold", color=INK)
    for one in figure.axes:
        for of in "xy":
            if getattr(one, f"get_{of}scale")() == "log":
                decades(one, of=of)
        if (legend := one.get_legend()) is not None:
            legend.remove()
        one.set_facecolor("none")
        one.set_axisbelow(True)
        one.grid(visible=lines, **({"color": GRID, "linewidth": 0.7} if lines else {}))
        one.tick_params(which="both", colors=MUTED, labelcolor=INK, labelsize=8)
        for label in (one.xaxis.label, one.yaxis.label):
            label.set(color=INK, fontsize=9)
        for side, spine in one.spines.items():
            shown = side in ("left", "bottom") or not lines
            spine.set(edgecolor=MUTED if lines else GRID, linewidth=0.8, visible=shown)
    return figure
