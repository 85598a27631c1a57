"""What all figures share: panels, axes and files."""

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
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from recipes.reports.curves import reads_better_in_decades
from recipes.reports.style import MATPLOTLIB, MUTED


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


def decades(axes: Axes) -> None:
    """Ticks of a logarithmic axis, few and written as plain numbers."""
    (low, high), axis = axes.get_ylim(), axes.yaxis
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
