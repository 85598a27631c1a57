"""What all figures share: panels, axes, files, and the style for figures that another package draws."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import IO, Any

import matplotlib
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from recipes.reports.curves import reads_better_in_decades
from recipes.reports.style import GRID, INK, MATPLOTLIB, MUTED


@contextmanager
def stacked(heights: Sequence[float], *, width: float = 4.7) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of panels over one another that share their x axis, heights and width in inches, in the house style."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(width, sum(heights) + 0.3 * len(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        yield figure, list(grid[:, 0])


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


def save_figure(figure: Figure, path: str | Path) -> list[Path]:
    """Writes a figure as PNG or SVG, by the path's suffix; returns the files written.

    A letter that DejaVu Sans has not is a box in a PNG; an SVG has its text as text.

    Raises:
        ValueError: another ending.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"{path}: a picture is written as .png or .svg")
    _save(figure, path, format=kind[1:], dpi=160, metadata={"Date": None} if kind == ".svg" else None)
    return [Path(path)]


def svg_text(figure: Figure) -> str:
    """A figure as SVG, on a transparent ground, its text as text."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    _save(figure, file, format="svg", transparent=True, metadata=nothing)
    return file.getvalue()


def _save(figure: Figure, file: str | Path | IO[str], **options: Any) -> None:
    with matplotlib.rc_context(MATPLOTLIB), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # one a character of a Japanese title
        figure.savefig(file, **options)


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
        height: of the axes, in inches.
        lines: draw a grid, and axes on two sides only; else a frame.
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
