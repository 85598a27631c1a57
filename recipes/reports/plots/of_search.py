"""Pictures of a search: how it went, what its trials reported, and its objective against each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recipes.reports.plots.axes import stacked
from recipes.reports.style import MUTED, SERIES

_HEIGHT = 2.4  # inches, of a panel


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """A trial as the pictures need it.

    Args:
        number: of the trial.
        complete: whether it ran to its end; else it was pruned.
        value: its objective; of a pruned one the last report.
        values: by path of the space.
        reports: number of the report -> score.
    """

    number: int
    complete: bool
    value: float
    values: Mapping[str, Any]
    reports: Mapping[int, float]


def history_figure(trials: Sequence[TrialPoint], *, metric: str, maximize: bool) -> Figure:
    """The objective of every trial, and the best so far."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        _dots(axes, trials, [trial.number for trial in trials])
        complete = sorted((trial for trial in trials if trial.complete), key=lambda trial: trial.number)
        if complete:
            best = (np.maximum if maximize else np.minimum).accumulate([trial.value for trial in complete])
            axes.step([trial.number for trial in complete], best, where="post", color=SERIES[1], label="best so far")
        axes.set(xlabel="trial", title=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, fontsize=8)
    return figure


def reports_figure(trials: Sequence[TrialPoint], *, metric: str) -> Figure:
    """The scores of every trial at the points of its own run; pruned ones dashed."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        for trial in trials:
            steps = sorted(trial.reports)
            style = {"color": SERIES[0]} if trial.complete else {"color": MUTED, "linestyle": (0, (5, 2))}
            axes.plot(steps, [trial.reports[step] for step in steps], linewidth=1.0, alpha=0.7, **style)
        axes.set(xlabel="report, at the same part of every run", title=f"{metric} on the way")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def slice_figure(trials: Sequence[TrialPoint], path: str, *, metric: str, log: bool) -> Figure:
    """The objective against the values of one path; what is no number stands in the order of its text."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        values = [trial.values[path] for trial in trials]
        numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        names = [] if numbers else sorted({str(value) for value in values})
        _dots(axes, trials, values if numbers else [names.index(str(value)) for value in values])
        if not numbers:
            axes.set_xticks(range(len(names)), names)
        elif log:
            axes.set_xscale("log")
        axes.set(xlabel=path, title=f"{metric} against {path}")
    return figure


def _dots(axes: Axes, trials: Sequence[TrialPoint], places: Sequence[float]) -> None:
    for complete, label, face in ((True, "complete", SERIES[0]), (False, "pruned", "none")):
        chosen = [(x, trial.value) for x, trial in zip(places, trials, strict=True) if trial.complete == complete]
        if chosen:
            axes.scatter(*zip(*chosen, strict=True), s=18, facecolor=face, edgecolor=SERIES[0], label=label)
