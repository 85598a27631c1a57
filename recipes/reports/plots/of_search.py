"""Pictures of a search: how it went, what its trials reported, and its objectives against each value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from recipes.reports.plots.axes import decades, stacked
from recipes.reports.style import DASHES, MUTED, SERIES

_HEIGHT = 2.4  # inches, of a panel


@dataclass(frozen=True, kw_only=True)
class TrialPoint:
    """A trial as the pictures need it.

    Args:
        number: of the trial.
        state: `complete`, `pruned`, `infeasible` (beyond a constraint) or `short` (of a lower rung).
        scores: its objectives; of a pruned one the last report.
        values: by path of the space, where it has one.
        reports: number of the report -> score.
    """

    number: int
    state: str
    scores: tuple[float, ...]
    values: Mapping[str, Any]
    reports: Mapping[int, float] = field(default_factory=dict)

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


def history_figure(trials: Sequence[TrialPoint], *, metric: str, maximize: bool) -> Figure:
    """The objective of every trial, and the best so far."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        _dots(axes, trials, [trial.number for trial in trials])
        complete = sorted((trial for trial in trials if trial.complete), key=lambda trial: trial.number)
        if complete:
            best = (np.maximum if maximize else np.minimum).accumulate([trial.scores[0] for trial in complete])
            last = max(trial.number for trial in trials)
            places = [*(trial.number for trial in complete), last]
            axes.step(places, [*best, best[-1]], where="post", color=SERIES[1], label="best so far")
        axes.set(xlabel="trial", title=metric)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _legend(axes)
    return figure


def reports_figure(trials: Sequence[TrialPoint], *, metric: str) -> Figure:
    """The scores of every trial at the points of its own run: pruned ones dashed, infeasible ones grey."""
    with stacked([_HEIGHT]) as (figure, (axes,)):
        for trial in trials:
            steps = sorted(trial.reports)
            style = {"color": SERIES[0] if trial.complete else MUTED}
            style["linestyle"] = DASHES[1] if trial.state == "pruned" else "-"
            marker = "o" if len(steps) == 1 else ""
            scores = [trial.reports[step] for step in steps]
            axes.plot(steps, scores, linewidth=1.0, alpha=0.7, marker=marker, markersize=3, **style)
        axes.set(xlabel="report, at the same part of every run", title=f"{metric} on the way")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


def slice_figure(
    trials: Sequence[TrialPoint], path: str, *, metrics: Sequence[str], log: bool = False, choices: Sequence[Any] = ()
) -> Figure:
    """The objectives against the values of one path.

    Args:
        trials: all of them.
        path: of the space.
        metrics: names of the objectives.
        log: whether numbers stand in decades.
        choices: the values it can have, in their order; none for numbers between two ends.
    """
    trials = [trial for trial in trials if path in trial.values]
    values = [trial.values[path] for trial in trials]
    names = [str(choice) for choice in choices]
    places = [names.index(str(value)) for value in values] if choices else values
    with stacked([_HEIGHT if len(metrics) == 1 else 0.7 * _HEIGHT] * len(metrics)) as (figure, panels):
        for place, (axes, metric) in enumerate(zip(panels, metrics, strict=True)):
            _dots(axes, trials, places, place)
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
    """One objective against the first, and the trials that no other one beats in everything.

    Args:
        trials: all of them.
        front: numbers of those that are not beaten.
        metrics: names of the two.
        at: place of the other objective.
    """
    trials = [trial for trial in trials if len(trial.scores) > at]
    with stacked([_HEIGHT]) as (figure, (axes,)):
        _dots(axes, trials, [trial.scores[at] for trial in trials])
        best = sorted((trial.scores[at], trial.scores[0], trial.number) for trial in trials if trial.number in front)
        if best:
            x, y, numbers = zip(*best, strict=True)
            axes.plot(x, y, color=SERIES[1], marker="o", markersize=5, linewidth=1.0, label="not beaten")
            for place in zip(x, y, numbers, strict=True):
                offset = {"xytext": (4, -9), "textcoords": "offset points"}
                axes.annotate(str(place[2]), place[:2], color=MUTED, fontsize=7, **offset)
        axes.set(xlabel=metrics[1], title=f"{metrics[0]} against {metrics[1]}")
        _legend(axes)
    return figure


def importance_figure(shares: Mapping[str, float]) -> Figure:
    """Path -> its part of what decides between good trials and all, the largest on top."""
    with stacked([0.35 * len(shares) + 0.5]) as (figure, (axes,)):
        paths = sorted(shares, key=shares.get)
        bars = axes.barh(paths, [100 * shares[path] for path in paths], color=SERIES[0], height=0.6)
        axes.bar_label(bars, fmt="%.0f %%", padding=3, color=MUTED, fontsize=8)
        axes.set(title="importance (%)", xlim=(0, 1.15 * max(100 * max(shares.values()), 1)))
        axes.grid(visible=False, axis="y")
    return figure


def rate_figure(trials: Sequence[tuple[float, float, TrialPoint]], *, metric: str, maximize: bool) -> Figure:
    """The rate of every trial against its batch; of each batch the best one, and what linear and square root ask for.

    Args:
        trials: batch, rate and trial.
        metric: of the objective.
        maximize: whether more of it is better.
    """
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


def _dots(axes: Axes, trials: Sequence[TrialPoint], places: Sequence[float], score: int = 0) -> None:
    for state, (face, edge, marker) in _LOOKS.items():
        pairs = zip(places, trials, strict=True)
        chosen = [(x, trial.scores[score]) for x, trial in pairs if trial.state == state and len(trial.scores) > score]
        if chosen:
            style = {"color": edge} if marker == "x" else {"facecolor": face, "edgecolor": edge}
            axes.scatter(*zip(*chosen, strict=True), s=18, marker=marker, label=state, **style)


def _legend(axes: Axes) -> None:
    """Beside the dots, not over them, and only where there is more than one kind."""
    if len(axes.get_legend_handles_labels()[1]) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0), borderaxespad=0.0)
