"""The picture of an update's time by phase."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recipes.phases import PHASES
from recipes.reports.plots.axes import epoch_axis, stacked
from recipes.reports.plots.picture import RunPicture
from recipes.reports.record import Run
from recipes.reports.style import MUTED, SERIES

_MOST_STRETCHES = 60


def phases_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Seconds an update over the epochs, phases stacked; None for several runs, or if they were not measured."""
    if len(runs) != 1 or not len(runs[0].phases):
        return None
    (run,) = runs
    measured = run.phases
    stretches = np.array_split(np.arange(len(measured)), min(_MOST_STRETCHES, len(measured)))
    epochs = np.array([*(measured.epoch[places[0]] for places in stretches), run.epochs_done])
    means = np.array([1000 * measured.seconds[places].mean(axis=0) for places in stretches])
    whole = np.array([1000 * measured.update_seconds[places].mean() for places in stretches])
    with stacked([2.6]) as (figure, (axes,)):
        below = np.zeros(len(stretches))
        for name, colour, values in zip(PHASES, SERIES, means.T, strict=False):
            low, high = (np.append(edge, edge[-1]) for edge in (below, below + values))
            axes.fill_between(epochs, low, high, step="post", color=colour, linewidth=0, label=name)
            below = below + values
        axes.step(epochs, np.append(whole, whole[-1]), where="post", color=MUTED, linewidth=1, label="whole update")
        top = max(float(np.percentile(whole, 95)), float(np.percentile(below, 95)))  # the first one may be far slower
        axes.set_ylim(0, 1.15 * top if top > 0 else 1)
        axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0), reverse=True)
        axes.set_title("milliseconds an update")
        epoch_axis(axes, runs)
    caption = "The mean over the workers, by stretches of updates: what an update's time was spent on."
    return RunPicture(title="Where the time goes", caption=caption, figure=figure)
