"""Pictures of a search: how it went, what its trials reported, and its objectives against each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recipes.reports.plots.figure import decades, restyled, stacked
from recipes.reports.style import DASHES, MUTED, SERIES

_HEIGHT = 2.4  # inches, of a panel


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """A trial as the pictures need it.

    Args:
        state: `complete`, `pruned`, `infeasible` (beyond a constraint) or `short` (of a lower rung).
        scores: its objectives; of a pruned one the last report.
        values: path of the space -> value, of the paths that the trial has.
    """

    number: int
    state: str
    scores: tuple[float, ...]
    values: Mapping[str, Any]

    @property
    def complete(self) -> bool:
        return self.state == "complete"


# State -> face, edge and marker of its dots.
_LOOKS = {
    "complete": (SERIES[0], SERIES[0], "o"),
    "pruned": ("none", SERIES[0], "o"),
    "infeasible": (MUTED, MUTED, "x"),
    "short": ("none", MUTED, "o"),  # a whole run of fewer epochs
}


def history_figure(axes: Axes, others: Sequence[TrialPoint], *, metric: str) -> Figure:
    """Optuna's history: the objective of every complete trial, the best so far, and `others` as dots."""
    complete, *infeasible = axes.collections
    complete.set(color=SERIES[0], sizes=[18], label="complete")
    for dots in infeasible:
        dots.set(color=MUTED, sizes=[18], label="infeasible" if len(dots.get_offsets()) else None)
    for best in axes.lines:
        best.set(color=SERIES[1], alpha=1, linewidth=1.8, drawstyle="steps-post", label="best so far")
    _dots(axes, others, [trial.number for trial in others])
    axes.set(xlabel="trial", ylabel="")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure = restyled(axes, title=metric, height=_HEIGHT, lines=True)
    _legend(axes)
    return figure


def reports_figure(axes: Axes, states: Mapping[int, str], *, metric: str) -> Figure:
    """Optuna's intermediate values, styled by the states of the trials: pruned ones dashed, infeasible ones grey."""
    for line in axes.lines:
        state = states[int(line.get_label().removeprefix("Trial"))]
        marker = "o" if len(line.get_xdata()) == 1 else ""
        line.set(color=SERIES[0] if state == "complete" else MUTED, linewidth=1.0, marker=marker, markersize=3)
        line.set_linestyle(DASHES[1] if state == "pruned" else "-")
    axes.set(xlabel="report, at the same part of every run", ylabel="")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return restyled(axes, title=f"{metric} on the way", height=_HEIGHT, lines=True)


def importance_figure(axes: Axes, *, metric: str) -> Figure:
    """Optuna's importances: the share of each path in what distinguishes good trials, the largest on top."""
    for bar, share in zip(axes.patches, axes.texts, strict=True):
        bar.set(color=SERIES[0])
        share.set(color=MUTED, fontsize=8, text=f" {share.get_text()}")
    axes.set(xlabel="", ylabel="", xlim=(0, 1.15 * max(bar.get_width() for bar in axes.patches)))
    height = 0.35 * len(axes.patches) + 0.5
    figure = restyled(axes, title=f"importance for {metric}", height=height, lines=True)
    axes.grid(visible=False, axis="y")
    return figure


def slice_figure(
    trials: Sequence[TrialPoint], path: str, *, metrics: Sequence[str], log: bool = False, choices: Sequence[Any] = ()
) -> Figure:
    """The objectives against the values of one path; `choices` are those it can have, empty for a range of numbers."""
    trials = [trial for trial in trials if path in trial.values]
    values = [trial.values[path] for trial in trials]
    names = [str(choice) for choice in choices]
    positions = [names.index(str(value)) for value in values] if choices else values
    with stacked([_HEIGHT if len(metrics) == 1 else 0.7 * _HEIGHT] * len(metrics)) as (figure, panels):
        for score, (axes, metric) in enumerate(zip(panels, metrics, strict=True)):
            _dots(axes, trials, positions, score)
            axes.set_title(metric)
        _legend(panels[0])
        if choices:
            panels[-1].set_xticks(range(len(names)), names)
            panels[-1].set_xlim(-0.5, len(names) - 0.5)
        elif log:
            panels[-1].set_xscale("log")
            decades(panels[-1], of="x")
        elif all(isinstance(value, int) for value in values):
            panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
        panels[-1].set_xlabel(path)
    return figure


def front_figure(trials: Sequence[TrialPoint], front: Sequence[int], *, metrics: tuple[str, str], at: int) -> Figure:
    """The first objective against the one of index `at`; `front` are the numbers of the trials on the Pareto front."""
    trials = [trial for trial in trials if len(trial.scores) > at]
    with stacked([_HEIGHT]) as (figure, (axes,)):
        _dots(axes, trials, [trial.scores[at] for trial in trials])
        best = sorted((trial.scores[at], trial.scores[0], trial.number) for trial in trials if trial.number in front)
        if best:
            x, y, numbers = zip(*best, strict=True)
            axes.plot(x, y, color=SERIES[1], marker="o", markersize=5, linewidth=1.0, label="not beaten")
            for *point, number in zip(x, y, numbers, strict=True):
                offset = {"xytext": (4, -9), "textcoords": "offset points"}
                axes.annotate(str(number), point, color=MUTED, fontsize=7, **offset)
        axes.set(xlabel=metrics[1], title=f"{metrics[0]} against {metrics[1]}")
        _legend(axes)
    return figure


def rate_figure(trials: Sequence[tuple[float, float, TrialPoint]], *, metric: str, maximize: bool) -> Figure:
    """The rate of every (batch, rate, trial), the best at each batch, and the linear and square root rules."""
    with stacked([1.2 * _HEIGHT]) as (figure, (axes,)):
        for state, (face, edge, marker) in _LOOKS.items():
            chosen = [(batch, rate) for batch, rate, trial in trials if trial.state == state]
            if chosen:
                style = {"color": edge} if marker == "x" else {"facecolor": face, "edgecolor": edge, "alpha": 0.6}
                axes.scatter(*zip(*chosen, strict=True), s=16, marker=marker, label=state, **style)
        best: dict[float, tuple[float, float]] = {}
        for batch, rate, trial in trials:
            score = trial.scores[0] if maximize else -trial.scores[0]
            if trial.complete and (batch not in best or score > best[batch][0]):
                best[batch] = (score, rate)
        if best:
            batches = sorted(best)
            rates = [best[batch][1] for batch in batches]
            axes.plot(batches, rates, color=SERIES[1], marker="o", markersize=5, linewidth=1.0, label="best")
            growth = np.array(batches) / batches[0]
            axes.plot(batches, rates[0] * growth, color=MUTED, linewidth=1.0, linestyle=(0, (5, 2)), label="linear")
            roots = rates[0] * np.sqrt(growth)
            axes.plot(batches, roots, color=MUTED, linewidth=1.0, linestyle=(0, (1, 1.4)), label="square root")
        axes.set(xscale="log", yscale="log", xlabel="global batch size (samples)", title="full learning rate")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(sorted({batch for batch, _, _ in trials}), minor=False)
        axes.minorticks_off()
        decades(axes)
        _legend(axes)
    return figure


def _dots(axes: Axes, trials: Sequence[TrialPoint], positions: Sequence[float], score: int = 0) -> None:
    for state, (face, edge, marker) in _LOOKS.items():
        pairs = zip(positions, trials, strict=True)
        chosen = [(x, trial.scores[score]) for x, trial in pairs if trial.state == state and len(trial.scores) > score]
        if chosen:
            style = {"color": edge} if marker == "x" else {"facecolor": face, "edgecolor": edge}
            axes.scatter(*zip(*chosen, strict=True), s=18, marker=marker, label=state, **style)


def _legend(axes: Axes) -> None:
    """Beside the dots, not over them, and only where there is more than one kind."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
