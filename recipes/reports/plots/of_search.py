"""Pictures of a search: how it went, each trial's curve, and its objectives against each value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.category import StrCategoryLocator
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator

from recipes.reports.plots.figure import decades, restyled, stacked
from recipes.reports.style import DASHES, INK, MUTED, SERIES

_HEIGHT = 2.4  # inches, of a panel
CURVE = "trial-"  # before a trial's number: the name of its line in the SVG
# State -> marker, colour, whether filled; a diverged trial is a cross at the edge.
_LOOKS = {"complete": ("o", SERIES[0], True), "pruned": ("o", SERIES[0], False), "infeasible": ("x", MUTED, True)}


@dataclass(frozen=True)
class Goal:
    """An objective as the pictures need it."""

    metric: str
    maximize: bool


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """A trial as the pictures need it.

    Args:
        state: `complete`, `pruned`, `infeasible` (beyond a constraint), `diverged`, ...
        scores: its objectives; of a pruned one the last report; empty where there is none.
        values: path of the space -> value, of the paths that the trial has.
        reports: number of a report -> score.
    """

    number: int
    state: str
    scores: tuple[float, ...]
    values: Mapping[str, Any]
    reports: Mapping[int, float]


def history_figure(trials: Sequence[TrialPoint], goal: Goal) -> Figure:
    """The objective of every trial in their order, and the best so far."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        _dots(axes, trials, [trial.number for trial in trials], goal)
        complete = [trial for trial in trials if trial.state == "complete"]
        if complete:
            best = (np.maximum if goal.maximize else np.minimum).accumulate([trial.scores[0] for trial in complete])
            ends = [*(trial.number for trial in complete), trials[-1].number], [*best, best[-1]]
            axes.step(*ends, where="post", color=SERIES[1], label="best so far")
        axes.set(title=goal.metric, xlabel="trial")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes)
    return figure


def curves_figure(trials: Sequence[TrialPoint], goal: Goal) -> Figure:
    """What each trial reported on its way: pruned ones dashed, others that are not complete grey.

    The curve of a diverged trial does not scale the axis; where it ends is a cross at the edge.
    """
    with stacked([_HEIGHT]) as (figure, (axes,)):
        axes.set(title=f"{goal.metric} on the way", xlabel="report, at the same part of every run")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        order = {"complete": 1, "diverged": 2}  # the last are on top
        for trial in sorted(trials, key=lambda trial: order.get(trial.state, 0)):
            if trial.state == "diverged":
                axes.set_ylim(axes.get_ylim())  # fixes it
            how = {"linestyle": DASHES[1] if trial.state == "pruned" else "-", "linewidth": 1.0, "markersize": 3}
            how["color"] = {"complete": SERIES[0], "running": SERIES[2]}.get(trial.state, MUTED)
            how["marker"] = "o" if len(trial.reports) == 1 else ""
            axes.plot(list(trial.reports), list(trial.reports.values()), gid=f"{CURVE}{trial.number}", **how)
        _crosses(axes, [max(trial.reports) for trial in trials if trial.state == "diverged" and trial.reports], goal)
    return figure


def slice_figure(
    axes: Axes, others: Sequence[TrialPoint], positions: Sequence[Any], goal: Goal, *, at: int = 0
) -> Figure:
    """Optuna's slice of complete trials, and `others` at these positions, by their score of index `at`."""
    axes.figure.axes[-1].remove()  # the colour bar: trials by number
    dots, infeasible = axes.collections
    infeasible.remove()
    dots.set(array=None, facecolor=SERIES[0], edgecolor=SERIES[0], sizes=[18], label="complete")
    _dots(axes, others, positions, goal, at)
    names = [label.get_text().strip("'") for label in axes.get_xticklabels()]
    if isinstance(axes.xaxis.get_major_locator(), StrCategoryLocator):
        axes.set_xticks(range(len(names)), names)
        axes.margins(x=0.2)
    axes.set_ylabel("")
    axes.autoscale(axis="x")
    figure = restyled(axes, title=goal.metric, height=_HEIGHT, lines=True)
    _legend(axes)
    return figure


def parallel_figure(axes: Axes, trials: Sequence[TrialPoint], goal: Goal, *, at: int = 0) -> Figure:
    """Optuna's parallel coordinates, a line for each of its trials, the best fifth of them in colour."""
    (lines,) = axes.collections
    lines.colorbar.remove()
    lines.remove()
    pairs = zip(trials, lines.get_segments(), strict=True)
    pairs = sorted(pairs, key=lambda pair: pair[0].scores[at], reverse=not goal.maximize)
    for rank, (trial, segment) in enumerate(pairs):  # the best last, on top
        good = rank >= 0.8 * len(pairs)
        style = {"color": SERIES[1], "linewidth": 1.4} if good else {"color": SERIES[0], "linewidth": 0.8}
        axes.plot(*segment.T, gid=f"{CURVE}{trial.number}", **style)
    for name in axes.get_xticklabels():
        name.set_ha("left")
    figure = restyled(axes, title=f"{goal.metric} and values", height=_HEIGHT)
    for one in figure.axes:
        if isinstance(one.yaxis.get_major_locator(), FixedLocator):  # choices: no longer than to the next axis
            one.set_yticks(one.get_yticks(), [label.get_text()[:8] for label in one.get_yticklabels()])
        one.spines[["top", "bottom"]].set_visible(False)
        one.spines[["left", "right"]].set_edgecolor(MUTED)
    return figure


def importance_figure(axes: Axes, goal: Goal) -> Figure:
    """Optuna's importances: the share of each path in what distinguishes good trials, the largest on top."""
    for bar, share in zip(axes.patches, axes.texts, strict=True):
        bar.set(color=SERIES[0])
        share.set(color=MUTED, fontsize=8, text=f" {share.get_text()}")
    axes.set(xlabel="", ylabel="", xlim=(0, 1.15 * max(bar.get_width() for bar in axes.patches)))
    height = 0.35 * len(axes.patches) + 0.5
    return restyled(axes, title=f"importance for {goal.metric}", height=height, lines=True)


def front_figure(trials: Sequence[TrialPoint], front: Sequence[int], goals: tuple[Goal, Goal], *, at: int) -> Figure:
    """The first objective against the one of index `at`; `front` are the numbers of the trials on the Pareto front."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        trials = [trial for trial in trials if len(trial.scores) > at]
        _dots(axes, trials, [trial.scores[at] for trial in trials], goals[0])
        best = sorted((trial.scores[at], trial.scores[0], trial.number) for trial in trials if trial.number in front)
        axes.plot([x for x, _, _ in best], [y for _, y, _ in best], "o-", color=SERIES[1], label="not beaten")
        for x, y, number in best:
            axes.annotate(str(number), (x, y), color=MUTED, xytext=(4, -9), textcoords="offset points", fontsize=7)
        axes.set(xlabel=goals[1].metric, title=f"{goals[0].metric} against {goals[1].metric}")
        _legend(axes)
    return figure


def rate_figure(trials: Sequence[tuple[float, float, TrialPoint]], goal: Goal) -> Figure:
    """The rate of every (batch, rate, trial), the best at each batch, and the linear and square root rules."""
    with stacked([1.2 * _HEIGHT]) as (figure, (axes,)):
        axes.set(xscale="log", yscale="log", xlabel="global batch size (samples)", title="full learning rate")
        for state, look in {**_LOOKS, "diverged": ("x", SERIES[3], True)}.items():
            _scatter(axes, [(batch, rate) for batch, rate, trial in trials if trial.state == state], look, state)
        complete = sorted((trial.scores[0], batch, rate) for batch, rate, trial in trials if trial.state == "complete")
        best = {batch: rate for _, batch, rate in complete[:: 1 if goal.maximize else -1]}  # the last of each
        if best:
            batches = np.array(sorted(best))
            axes.plot(batches, [best[each] for each in batches], "o-", color=SERIES[1], label="best")
            growth = batches / batches[0]
            for factor, dashes, rule in ((growth, DASHES[1], "linear"), (np.sqrt(growth), DASHES[2], "square root")):
                axes.plot(batches, best[batches[0]] * factor, color=MUTED, linewidth=1.0, linestyle=dashes, label=rule)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xticks(sorted({batch for batch, _, _ in trials}), minor=False)
        axes.minorticks_off()
        decades(axes)
        _legend(axes)
    return figure


def _dots(axes: Axes, trials: Sequence[TrialPoint], positions: Sequence[Any], goal: Goal, at: int = 0) -> None:
    """A dot for each trial, by its score of index `at`; a cross at the bad edge for each that diverged."""
    pairs = list(zip(positions, trials, strict=True))
    for state, look in _LOOKS.items():
        chosen = [(x, trial.scores[at]) for x, trial in pairs if trial.state == state and len(trial.scores) > at]
        _scatter(axes, chosen, look, state)
    _crosses(axes, [x for x, trial in pairs if trial.state == "diverged"], goal)


def _scatter(axes: Axes, points: Sequence[tuple[Any, float]], look: tuple[str, str, bool], label: str) -> None:
    marker, color, filled = look
    if points:
        style = {"color": color} if filled else {"facecolor": "none", "edgecolor": color}
        axes.scatter(*zip(*points, strict=True), s=18, marker=marker, label=label, **style)


def _crosses(axes: Axes, positions: Sequence[Any], goal: Goal) -> None:
    """Crosses at the bottom, or at the top where less is better: they do not scale the axis."""
    positions = [x for x in positions if isinstance(x, str) or math.isfinite(x)]
    if positions:
        how = {"transform": axes.get_xaxis_transform(), "clip_on": False, "label": "diverged", "color": SERIES[3]}
        axes.plot(positions, [0.0 if goal.maximize else 1.0] * len(positions), "x", markersize=5, **how)


def _legend(axes: Axes) -> None:
    """Beside the dots, not over them, and only where there is more than one kind."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0), "borderaxespad": 0.0}
        axes.legend(frameon=False, fontsize=8, labelcolor=INK, **beside)
