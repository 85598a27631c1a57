"""The figure of a recipe: its formulas over its epochs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from recipes.reports.curves import recipe_curves
from recipes.reports.plots.figure import batch_axis, mark_boundary, rate_axis, round_epochs, stacked
from recipes.reports.style import MUTED, SERIES, SHADE
from recipes.schema import Dataset, Recipe


def curve_figure(recipe: Recipe, dataset: Dataset) -> Figure:
    """Learning rate, global batch size, momentum and, where it moves, image size of a recipe against epochs.

    The warmup is shaded, the steps of the batch are dotted.
    """
    curves = recipe_curves(recipe)
    rows = [("learning rate", curves.learning_rate), ("global batch size (samples)", curves.global_batch_size)]
    if curves.momentum is not None:
        rows.append(("momentum", curves.momentum))
    if curves.image_size is not None:
        rows.append(("image size (pixels)", curves.image_size))
    heights = [3.0, *(1.3 if np.ptp(values) else 0.6 for _, (_, values) in rows[1:])]
    with stacked(heights, width=8.0) as (figure, panels):
        for axes, (title, (epochs, values)), colour in zip(panels, rows, SERIES, strict=False):
            axes.plot(epochs, values, color=colour)
            axes.set_title(title)
            axes.set_xlim(0, recipe.epochs)
            round_epochs(axes)
        rate_axis(panels[0], [curves.learning_rate[1]])
        _label_plateaus(panels[0], *curves.learning_rate)
        batch_axis(panels[1], [curves.global_batch_size[1]])
        if curves.momentum is not None:
            _momentum_axis(panels[2], curves.momentum[1])
        if curves.image_size is not None:
            _size_axis(panels[-1], curves.image_size[1])
        _mark_warmup(panels, recipe)
        for boundary in recipe.batch.global_.boundaries[1:]:
            mark_boundary(panels, boundary)
        panels[-1].set_xlabel(f"epochs of {dataset.name} ({dataset.num_train:,} samples)")
        figure.suptitle(f"{recipe.name}: {recipe.title}", x=0.01, ha="left", fontsize=11, fontweight="bold", wrap=True)
    return figure


def _label_plateaus(axes: Axes, epochs: np.ndarray, values: np.ndarray) -> None:
    """Writes the value above each stretch that stays level for a twentieth of the curve, if there are few."""
    edges = np.flatnonzero(np.diff(values)) + 1
    starts, stops = np.append(0, edges), np.append(edges, len(values)) - 1
    level = (epochs[stops] - epochs[starts]) >= 0.05 * (epochs[-1] - epochs[0])
    if level.sum() > 8:
        return
    for start, stop in zip(starts[level], stops[level], strict=True):
        position, words = ((epochs[start] + epochs[stop]) / 2, values[start]), f"{values[start]:.4g}"
        axes.annotate(words, position, (0, 3), textcoords="offset points", ha="center", color=MUTED, fontsize=8)


def _momentum_axis(axes: Axes, values: np.ndarray) -> None:
    if np.ptp(values) == 0:
        axes.set_ylim(values[0] - 0.1, values[0] + 0.1)
        axes.yaxis.set_major_locator(FixedLocator([float(values[0])]))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter("{x:g}")


def _size_axis(axes: Axes, values: np.ndarray) -> None:
    sizes = np.unique(values)
    axes.set_ylim(0.9 * sizes[0], 1.05 * sizes[-1])
    axes.yaxis.set_major_locator(FixedLocator(sizes.tolist()) if len(sizes) <= 5 else MaxNLocator(4))
    axes.yaxis.set_major_formatter("{x:g}")


def _mark_warmup(panels: Sequence[Axes], recipe: Recipe) -> None:
    warmup = recipe.learning_rate.warmup
    epochs = getattr(warmup.shape, "epochs", None) if warmup is not None else None
    if epochs is None:
        return
    for axes in panels:
        axes.axvspan(0, epochs, color=SHADE, linewidth=0, zorder=0)
    position = panels[0].get_xaxis_transform()
    panels[0].text(epochs, 0.03, " warmup ends", transform=position, color=MUTED, fontsize=8)
