"""Pictures of runs: measurements by update and by evaluation. `run_pictures` lists them in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from recipes.planning.phase_times import PHASES
from recipes.reports.curves import smoothed
from recipes.reports.noise import noise_windows
from recipes.reports.plots.figure import RunPicture, batch_axis, decades, epoch_axis, rate_axis, stacked
from recipes.reports.record import Run
from recipes.reports.style import DASHES, MUTED, SERIES

_MAX_STRETCHES = 60


def phases_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Seconds an update over the epochs, phases stacked; None for several runs, or if they were not measured."""
    if len(runs) != 1 or not len(runs[0].phases):
        return None
    (run,) = runs
    measured = run.phases
    stretches = np.array_split(np.arange(len(measured)), min(_MAX_STRETCHES, len(measured)))
    epochs = np.array([*(measured.epoch[indices[0]] for indices in stretches), run.epochs_done])
    means = np.array([1000 * measured.seconds[indices].mean(axis=0) for indices in stretches])
    whole = np.array([1000 * measured.update_seconds[indices].mean() for indices in stretches])
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


def run_pictures(runs: Sequence[Run]) -> list[RunPicture]:
    """The pictures of one run, or of several laid over each other in `run_style`'s colours, in that order."""
    makers = (accuracy_picture, loss_picture, rate_picture, throughput_picture, phases_picture, noise_picture)
    return [picture for maker in makers if (picture := maker(runs)) is not None]


def run_style(index: int) -> tuple[str, Any]:
    """Colour and dashes of the run with this index in a comparison."""
    return SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]


def accuracy_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Accuracy of every evaluation, the best marked; None without evaluations."""
    if all(run.best is None for run in runs):
        return None
    with stacked([2.6]) as (figure, (axes,)):
        for run, colour, dashes in _styled(runs):
            scored = np.isfinite(run.evaluations.accuracy)
            epochs, percent = run.evaluations.epoch[scored], 100 * run.evaluations.accuracy[scored]
            marker = "o" if len(percent) <= 40 else ""
            axes.plot(epochs, percent, color=colour, linestyle=dashes, marker=marker, markersize=3)
            if run.best is not None and len(runs) == 1:
                _mark_best(axes, run)
        axes.set_title("accuracy (%)")
        axes.set_ylim(top=min(100.0, axes.get_ylim()[1]))
        epoch_axis(axes, runs)
    return RunPicture(title="Accuracy", caption="Of each evaluation, over the whole evaluation set.", figure=figure)


def loss_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Training loss of each update and its running mean, and the loss of evaluations."""
    if not any(len(run.updates) for run in runs):
        return None
    means = []
    with stacked([2.6]) as (figure, (axes,)):
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
            decades(axes)
        axes.set_title("loss")
        epoch_axis(axes, runs)
    caption = "Of each update, faint, before it was applied; the line is its running mean."
    return RunPicture(title="Loss", caption=caption, figure=figure)


def rate_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Learning rate and global batch size as they were used."""
    if not any(len(run.updates) for run in runs):
        return None
    with stacked([1.7, 0.9]) as (figure, (rate, batch)):
        for index, (run, colour, dashes) in enumerate(_styled(runs)):
            epochs = np.append(run.updates.epoch, run.epochs_done)
            width = 1.8 + 1.4 * min(3, len(runs) - 1 - index)  # where runs coincide, those below stay visible
            for axes, values in ((rate, run.updates.learning_rate), (batch, run.updates.global_batch_size)):
                steps = np.append(values, values[-1:])
                axes.step(epochs, steps, where="post", color=colour, linestyle=dashes, linewidth=width)
        rate.set_title("learning rate")
        batch.set_title("global batch size (samples)")
        rate_axis(rate, [run.updates.learning_rate for run in runs])
        batch_axis(batch, [run.updates.global_batch_size for run in runs])
        epoch_axis(rate, runs, labelled=False)
        epoch_axis(batch, runs)
    return RunPicture(title="Learning rate and batch", caption="As each update used them.", figure=figure)


def throughput_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Samples per second of each update and their running mean."""
    if not any(len(run.updates) for run in runs):
        return None
    top = 0.0
    with stacked([2.6]) as (figure, (axes,)):
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
        epoch_axis(axes, runs)
    caption = "Of each update, faint, and over a running window; evaluations and checkpoints not counted."
    return RunPicture(title="Samples per second", caption=caption, figure=figure)


def noise_picture(runs: Sequence[Run]) -> RunPicture | None:
    """Noise scale over the epochs with two standard errors, and the batch; None if it is unknown everywhere."""
    windows = [[window for window in noise_windows(run) if window.scale is not None] for run in runs]
    if not any(windows):
        return None
    with stacked([2.6]) as (figure, (axes,)):
        for (run, colour, dashes), known in zip(_styled(runs), windows, strict=True):
            epochs = [(window.first_epoch + window.last_epoch) / 2 for window in known]
            values = np.array([window.scale.value for window in known])
            errors = 2 * np.array([window.scale.standard_error for window in known])
            below = np.maximum(values - errors, 0.1 * values)  # the axis is logarithmic
            axes.fill_between(epochs, below, values + errors, color=colour, alpha=0.2, linewidth=0)
            axes.plot(epochs, values, color=colour, linestyle=dashes, marker="o", markersize=3)
            if len(runs) == 1:
                batch = run.updates.global_batch_size
                axes.step(run.updates.epoch, batch, where="post", color=MUTED, linewidth=1, label="global batch")
                axes.legend(frameon=False, loc="upper left")
        axes.set_yscale("log")
        decades(axes)
        axes.set_title("noise scale (samples)")
        epoch_axis(axes, runs)
    caption = "Of the SGD gradient, by stretches of updates; the band is two standard errors, cut at a tenth."
    return RunPicture(title="Noise scale", caption=caption, figure=figure)


def _styled(runs: Sequence[Run]) -> Iterator[tuple[Run, str, Any]]:
    for index, run in enumerate(runs):
        yield run, *run_style(index)


def _span(run: Run) -> int:
    """Updates in a running mean: a fortieth of the run, five in a short one."""
    return max(5, len(run.updates) // 40)


def _mark_best(axes: Axes, run: Run) -> None:
    epoch, percent = run.evaluations.epoch[run.best], 100 * run.evaluations.accuracy[run.best]
    axes.plot([epoch], [percent], "o", color=SERIES[1], markersize=6, zorder=3)
    text = f"best {percent:.2f} % at epoch {epoch:.4g}"
    axes.annotate(text, (0.98, 0.06), xycoords="axes fraction", ha="right", color=SERIES[1])
