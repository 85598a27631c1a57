"""Figures of recipes and of runs.

No window is opened and no global state of matplotlib stays changed: figures have their own Agg canvas. This is the only
file of `recipes` that imports matplotlib; import it where a figure is needed, not at the top of a module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullLocator

from recipes.reports.curves import reads_better_in_decades, recipe_curves, smoothed
from recipes.reports.record import Run
from recipes.reports.style import DASHES, MATPLOTLIB, MUTED, SERIES, SHADE
from recipes.schema import Dataset, Recipe


@dataclass(frozen=True, kw_only=True)
class RunPicture:
    """One picture of one or several runs.

    Args:
        title: a few words.
        caption: what is drawn, in a sentence.
        figure: the picture.
    """

    title: str
    caption: str
    figure: Figure


def curve_figure(recipe: Recipe, dataset: Dataset) -> Figure:
    """Learning rate, global batch size and momentum of a recipe against epochs; warmup shaded, ramp steps dotted."""
    curves = recipe_curves(recipe)
    rows = [("learning rate", curves.learning_rate), ("global batch size (samples)", curves.global_batch_size)]
    if curves.momentum is not None:
        rows.append(("momentum", curves.momentum))
    heights = [3.0, *(1.3 if np.ptp(values) else 0.6 for _, (_, values) in rows[1:])]
    with _panels(heights, width=8.0) as (figure, panels):
        for axes, (title, (epochs, values)), colour in zip(panels, rows, SERIES, strict=False):
            axes.plot(epochs, values, color=colour)
            axes.set_title(title)
            axes.set_xlim(0, recipe.epochs)
            _round_epochs(axes)
        _rate_axis(panels[0], [curves.learning_rate[1]])
        _label_plateaus(panels[0], *curves.learning_rate)
        _batch_axis(panels[1], [curves.global_batch_size[1]])
        if curves.momentum is not None:
            _momentum_axis(panels[2], curves.momentum[1])
        _mark_warmup(panels, recipe)
        for boundary in recipe.batch.global_.boundaries[1:]:
            _mark_boundary(panels, boundary)
        panels[-1].set_xlabel(f"epochs of {dataset.name} ({dataset.num_train:,} samples)")
        figure.suptitle(f"{recipe.name}: {recipe.title}", x=0.01, ha="left", fontsize=11, fontweight="bold", wrap=True)
    return figure


def run_pictures(runs: Sequence[Run]) -> list[RunPicture]:
    """The pictures of one run, or of several laid over each other in `run_style`'s colours, in that order."""
    makers = (accuracy_picture, loss_picture, rate_picture, throughput_picture)
    return [picture for maker in makers if (picture := maker(runs)) is not None]


def run_style(place: int) -> tuple[str, Any]:
    """Colour and dashes of the run at this place of a comparison."""
    return SERIES[place % len(SERIES)], DASHES[place // len(SERIES) % len(DASHES)]


def accuracy_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Accuracy of every evaluation, the best marked; None where nothing was evaluated."""
    if all(run.best is None for run in runs):
        return None
    with _panels([2.6]) as (figure, (axes,)):
        for run, colour, dashes in _styled(runs):
            scored = np.isfinite(run.evaluations.accuracy)
            epochs, percent = run.evaluations.epoch[scored], 100 * run.evaluations.accuracy[scored]
            marker = "o" if len(percent) <= 40 else ""
            axes.plot(epochs, percent, color=colour, linestyle=dashes, marker=marker, markersize=3)
            if run.best is not None and len(runs) == 1:
                _mark_best(axes, run)
        axes.set_title("accuracy (%)")
        axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
        _epoch_axis(axes, runs)
    return RunPicture(title="Accuracy", caption="Of each evaluation, over the whole evaluation set.", figure=figure)


def loss_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Training loss of each update and its running mean, and the loss of evaluations."""
    if not any(len(run.updates) for run in runs):
        return None
    means = []
    with _panels([2.6]) as (figure, (axes,)):
        for run, colour, dashes in _styled(runs):
            mean = smoothed(run.updates.loss, _span(run))
            means.append(mean)
            axes.plot(run.updates.epoch, run.updates.loss, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(run.updates.epoch, mean, color=colour, linestyle=dashes, label="training")
            if len(runs) == 1 and np.isfinite(run.evaluations.loss).any():
                means.append(run.evaluations.loss)
                axes.plot(
                    run.evaluations.epoch, run.evaluations.loss, "o-", color=SERIES[1], markersize=3, label="evaluation"
                )
                axes.legend(frameon=False, loc="upper right")
        known = np.concatenate(means)
        known = known[np.isfinite(known) & (known > 0)]
        if len(known) and known.max() > 20 * known.min():
            axes.set_yscale("log")
            _decades(axes)
        axes.set_title("loss")
        _epoch_axis(axes, runs)
    caption = "Of each update, faint, before it was applied; the line is its running mean."
    return RunPicture(title="Loss", caption=caption, figure=figure)


def rate_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Learning rate and global batch size as they were used."""
    if not any(len(run.updates) for run in runs):
        return None
    with _panels([1.7, 0.9]) as (figure, (rate, batch)):
        for place, (run, colour, dashes) in enumerate(_styled(runs)):
            epochs = np.append(run.updates.epoch, run.epochs_done)
            width = 1.8 + 1.4 * min(3, len(runs) - 1 - place)  # where runs coincide, those below stay visible
            for axes, values in ((rate, run.updates.learning_rate), (batch, run.updates.global_batch_size)):
                steps = np.append(values, values[-1:])
                axes.step(epochs, steps, where="post", color=colour, linestyle=dashes, linewidth=width)
        rate.set_title("learning rate")
        batch.set_title("global batch size (samples)")
        _rate_axis(rate, [run.updates.learning_rate for run in runs])
        _batch_axis(batch, [run.updates.global_batch_size for run in runs])
        _epoch_axis(rate, runs, labelled=False)
        _epoch_axis(batch, runs)
    return RunPicture(title="Learning rate and batch", caption="As each update used them.", figure=figure)


def throughput_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Samples per second of each update and their running mean."""
    if not any(len(run.updates) for run in runs):
        return None
    top = 0.0
    with _panels([2.6]) as (figure, (axes,)):
        for run, colour, dashes in _styled(runs):
            seconds = np.where(run.updates.update_seconds > 0, run.updates.update_seconds, np.nan)
            per_second = run.updates.global_batch_size / seconds
            span = _span(run)
            mean = smoothed(run.updates.global_batch_size, span) / smoothed(seconds, span)
            axes.plot(run.updates.epoch, per_second, color=colour, alpha=0.25, linewidth=0.8)
            axes.plot(run.updates.epoch, mean, color=colour, linestyle=dashes)
            if np.isfinite(per_second).any():
                top = max(top, float(np.nanpercentile(per_second, 99)))
        axes.set_ylim(0, 1.15 * top if top else None)
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_title("samples per second")
        _epoch_axis(axes, runs)
    caption = "Of each update, faint, and over a running window; evaluations and checkpoints not counted."
    return RunPicture(title="Samples per second", caption=caption, figure=figure)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Writes a figure as PNG or SVG, by the ending of the file's name.

    Raises:
        ValueError: another ending.
    """
    kind = Path(path).suffix.lower()
    if kind not in (".png", ".svg"):
        raise ValueError(f"{path}: a picture is written as .png or .svg")
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(path, format=kind[1:], dpi=160, metadata={"Date": None} if kind == ".svg" else None)


def svg_text(figure: Figure) -> str:
    """A figure as SVG, on a transparent ground, its text as text."""
    file = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    with matplotlib.rc_context(MATPLOTLIB):
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    return file.getvalue()


@contextmanager
def _panels(heights: Sequence[float], *, width: float = 4.7) -> Iterator[tuple[Figure, list[Axes]]]:
    """A figure of panels over one another that share their x axis, heights and width in inches, in the house style."""
    with matplotlib.rc_context(MATPLOTLIB):
        figure = Figure(figsize=(width, sum(heights) + 0.3 * len(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        grid = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
        yield figure, list(grid[:, 0])


def _styled(runs: Sequence[Run]) -> Iterator[tuple[Run, str, Any]]:
    for place, run in enumerate(runs):
        yield run, *run_style(place)


def _span(run: Run) -> int:
    """Updates in a running mean: a fortieth of the run, five in a short one."""
    return max(5, len(run.updates) // 40)


def _epoch_axis(axes: Axes, runs: Sequence[Run], *, labelled: bool = True) -> None:
    axes.set_xlim(0, 1.015 * max(run.epochs_done for run in runs) or 1)  # a dot at the end is not cut in half
    _round_epochs(axes)
    if labelled:
        axes.set_xlabel("epochs")
    if len(runs) == 1:
        for place in np.flatnonzero(np.diff(runs[0].updates.global_batch_size)):
            _mark_boundary([axes], runs[0].updates.epoch[place + 1])


def _round_epochs(axes: Axes) -> None:
    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter("{x:g}")


def _rate_axis(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    rates = np.concatenate(curves)
    rates = rates[np.isfinite(rates)]
    axes.yaxis.set_major_formatter("{x:g}")
    if reads_better_in_decades(rates):
        axes.set_yscale("log")
        axes.set_ylim(rates[rates > 0].min() / 1.5, rates.max() * 1.6)
        _decades(axes)
        axes.set_title(f"{axes.get_title(loc='left')} (logarithmic)")
    else:
        axes.set_ylim(0, rates.max() * 1.08 if len(rates) and rates.max() > 0 else 1)


def _decades(axes: Axes) -> None:
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0,) if high > 30 * low else (1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(NullLocator())


def _batch_axis(axes: Axes, curves: Sequence[np.ndarray]) -> None:
    sizes = np.unique(np.concatenate(curves))[::-1]
    if len(sizes) <= 5:
        ticks: list[float] = []
        for size in (*sizes, 0.0):
            if not ticks or ticks[-1] - size > 0.2 * sizes[0]:  # nearer ones would be written over each other
                ticks.append(float(size))
        axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_ylim(0, 1.15 * sizes[0] if len(sizes) else 1)


def _momentum_axis(axes: Axes, values: np.ndarray) -> None:
    if np.ptp(values) == 0:
        axes.set_ylim(values[0] - 0.1, values[0] + 0.1)
        axes.yaxis.set_major_locator(FixedLocator([float(values[0])]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter("{x:g}")


def _label_plateaus(axes: Axes, epochs: np.ndarray, values: np.ndarray) -> None:
    """Writes the value above each stretch that stays level for a twentieth of the curve, if there are few."""
    edges = np.flatnonzero(np.diff(values)) + 1
    starts, stops = np.append(0, edges), np.append(edges, len(values)) - 1
    level = (epochs[stops] - epochs[starts]) >= 0.05 * (epochs[-1] - epochs[0])
    if level.sum() > 8:
        return
    for start, stop in zip(starts[level], stops[level], strict=True):
        place, words = ((epochs[start] + epochs[stop]) / 2, values[start]), f"{values[start]:.4g}"
        axes.annotate(words, place, (0, 3), textcoords="offset points", ha="center", color=MUTED, fontsize=8)


def _mark_boundary(panels: Sequence[Axes], epoch: float) -> None:
    for axes in panels:
        axes.axvline(epoch, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)))


def _mark_warmup(panels: Sequence[Axes], recipe: Recipe) -> None:
    warmup = recipe.learning_rate.warmup
    epochs = getattr(warmup.shape, "epochs", None) if warmup is not None else None
    if epochs is None:
        return
    for axes in panels:
        axes.axvspan(0, epochs, color=SHADE, linewidth=0, zorder=0)
    place = panels[0].get_xaxis_transform()
    panels[0].text(epochs, 0.03, " warmup ends", transform=place, color=MUTED, fontsize=8)


def _mark_best(axes: Axes, run: Run) -> None:
    epoch, percent = run.evaluations.epoch[run.best], 100 * run.evaluations.accuracy[run.best]
    axes.plot([epoch], [percent], "o", color=SERIES[1], markersize=6, zorder=3)
    text = f"best {percent:.2f} % at epoch {epoch:.4g}"
    axes.annotate(text, (0.98, 0.06), xycoords="axes fraction", ha="right", color=SERIES[1])
