"""The charts of a search, as `recipes.reports.charts` draws them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.reports.charts import Chart, chart, curve, plain
from recipes.reports.style import MUTED
from recipes.schema import Search
from trainers.search.results import column_names, metric_name, short
from trainers.search.study import RATE, SECONDS, begun, best_trials, state_of

_DOTS: dict[str, dict[str, Any]] = {  # state -> look
    "complete": {"look": "points"},
    "pruned": {"look": "hollow"},
    "infeasible": {"look": "points", "colour": MUTED},
    "diverged": {"look": "points", "style": 3},
}
_CURVES: dict[str, dict[str, Any]] = {
    "complete": {},
    "running": {"style": 2},
    "pruned": {"colour": MUTED, "dashes": [5, 3]},
    "infeasible": {"colour": MUTED},
    "diverged": {"style": 3, "scales": False},
    "best": {"style": 1, "width": 2.5},
}
_GOLDEN = 0.618  # parts of this, modulo 1, lie evenly

Place = Mapping[str, Any]  # axis -> position


def search_charts(study: optuna.Study, search: Search, *, epochs: float) -> dict[str, Any]:
    """All charts for which there are trials enough; `epochs` are those of a trial that does not search them."""
    on = _Charts(study, search)
    on.curves(epochs)
    on.history()
    for at in range(len(search.objectives)):
        on.front(at)
        for path, name in on.names.items():
            on.slice(path, name, at)
        on.parallel(at)
    on.rates()
    return {"points": on.points, "charts": on.charts}


def trial_name(trial: FrozenTrial) -> str:
    """What a trial is called on its curves and in its row."""
    return f"trial {trial.number}"


def chart_state(trial: FrozenTrial) -> str:
    """`state_of`, and `diverged` if a score is not finite."""
    return state_of(trial) if all(map(math.isfinite, trial.values or ())) else "diverged"


def whole_trials(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """The complete trials, without those that diverged or break a constraint."""
    return [trial for trial in trials if chart_state(trial) == "complete"]


def varying(search: Search, trials: Sequence[FrozenTrial]) -> dict[str, str]:
    """Path -> short name, of the paths in which these trials differ."""
    names = dict(zip(search.space, column_names(search.space), strict=True))
    return {path: name for path, name in names.items() if len({str(trial.params.get(path)) for trial in trials}) > 1}


class _Charts:
    """Collects charts; each method adds one, or none if there is nothing to draw."""

    def __init__(self, study: optuna.Study, search: Search) -> None:
        self._search, self._trials, self._best = search, begun(study), best_trials(study)
        self._whole = whole_trials(self._trials)
        metrics = [objective.metric for objective in search.objectives]
        self._titles = ["accuracy (%)" if metric == "accuracy" else metric_name(metric) for metric in metrics]
        self._units = [100.0 if metric == "accuracy" else 1.0 for metric in metrics]
        self._signs = [1 if objective.direction == "maximize" else -1 for objective in search.objectives]
        self.names = dict(zip(search.space, column_names(search.space), strict=True))
        self.points: dict[str, Any] = {}
        self.charts: list[Chart] = []

    def curves(self, epochs: float) -> None:
        """What each trial reported on its way; a curve that diverged does not scale the axis."""
        reports, unit, curves = self._search.reports, self._units[0], []
        title = f"{self._titles[0]} on the way"
        if self._search.has_goal:
            title, unit = "accuracy that the target lacks (%)", 100.0
        reported, best = [one for one in self._trials if one.intermediate_values], {one.number for one in self._best}
        for state, look in _CURVES.items():
            for trial in [one for one in reported if ("best" if one.number in best else chart_state(one)) == state]:
                parts = [report / reports for report in trial.intermediate_values]
                own = trial.params.get("epochs", epochs)
                place = {"part of the run": parts, "epochs": [part * own for part in parts]}
                values = [unit * value for value in trial.intermediate_values.values()]
                how = {"names": trial_name(trial), "group": state, "width": 1.2, **look}
                curves.append(self._curve(f"way {trial.number}", place, values, state, **how))
        words = "What trials reported on their way. Point at a curve or at a row of the table."
        self._add(title, words, curves, axes=("part of the run", "epochs"))

    def history(self) -> None:
        """The objective of every trial when it ended, and the best so far."""
        ended = [trial for trial in self._trials if trial.state.is_finished()]
        if len(self._titles) > 1 or not ended:
            return
        ended.sort(key=lambda trial: trial.datetime_complete)
        began = min(trial.datetime_start for trial in ended)
        hours = [trial.user_attrs.get(SECONDS, 0.0) * self._search.ranks_per_trial / 3600 for trial in ended]
        place = {
            "trial": [trial.number for trial in ended],
            "time": [(trial.datetime_complete - began).total_seconds() for trial in ended],
            "device-hours": [*itertools.accumulate(hours)],
        }
        places = [dict(zip(place, values, strict=True)) for values in zip(*place.values(), strict=True)]
        curves = self._dots(self._titles[0], zip(ended, places, strict=True))
        if self._best:
            best = [self._score(trial) if chart_state(trial) == "complete" else math.nan for trial in ended]
            look = "highest" if self._signs[0] > 0 else "lowest"
            curves.append(self._curve("best", place, best, "best so far", style=1, look=look))
        self._add(self._titles[0], "Every trial when it ended, and the best so far.", curves, axes=[*place])

    def front(self, at: int) -> None:
        """The first objective against another one."""
        if not at:
            return
        first, other = self._titles[0], self._titles[at]
        title = f"{first} against {other}"
        curves = self._dots(title, [(trial, {other: self._score(trial, at)}) for trial in self._trials])
        best = sorted((self._score(trial, at), self._score(trial)) for trial in self._best)
        if best:
            x, y = zip(*best, strict=True)
            curves.append(self._curve(f"{title} best", {other: x}, y, "not beaten", style=1))
        self._add(title, f"Trials that no other one beats, by {first} and {other}.", curves, axes=[other])

    def slice(self, path: str, name: str, at: int) -> None:
        """An objective against the value of a path; dots of one choice lie beside each other."""
        range_, title = self._search.space[path], f"{self._titles[at]} by {name}"
        choices, places = getattr(range_, "choices", ()), []
        for trial in [one for one in self._trials if path in one.params]:
            value = trial.params[path]
            aside = (_GOLDEN * trial.number % 1 - 0.5) / 2
            places.append((trial, {name: choices.index(value) + aside if choices else value}))
        how = {"ticks": [*map(short, choices)], "may_be": "y"} if choices else {"logarithmic": "x" * range_.log}
        words = f"Every trial by its {path}; the other values differ too."
        self._add(title, words, self._dots(title, places, at), axes=[name], **how)

    def parallel(self, at: int) -> None:
        """The values of every complete trial, those of the best fifth on top in another colour."""
        whole = sorted(self._whole, key=lambda trial: self._signs[at] * trial.values[at])
        names, title = varying(self._search, whole), f"{self._titles[at]} and values"
        if not names:
            return
        columns = [_column(self._titles[at], None, [self._score(trial, at) for trial in whole])]
        for path, name in names.items():
            columns.append(_column(name, self._search.space[path], [trial.params.get(path) for trial in whole]))
        ticks, heights_of = zip(*columns, strict=True)
        curves = []
        for index, (trial, *heights) in enumerate(zip(whole, *heights_of, strict=True)):
            style = int(index >= len(whole) - math.ceil(len(whole) / 5))
            group = ("others", "best fifth")[style]
            how = {"style": style, "group": group, "names": trial_name(trial), "width": 1 + style / 2}
            curves.append(self._curve(title, {"value": range(len(columns))}, heights, group, **how))
        words = "The values of every complete trial, each from its lowest to its highest."
        self._add(title, words, curves, axes=["value"], may_be="", ticks=ticks)

    def rates(self) -> None:
        """The rate at each batch, the best ones, and the linear and square root rules from the smallest batch."""
        axis, title = "global batch size (samples)", "full learning rate"
        own = [(trial, *trial.user_attrs[RATE]) for trial in self._trials if RATE in trial.user_attrs and trial.values]
        if len({batch for _, batch, _ in own}) < 2:
            return
        heights = {trial.number: rate for trial, _, rate in own}
        curves = self._dots(title, [(trial, {axis: batch}) for trial, batch, _ in own], heights=heights)
        ranked = sorted(own, key=lambda one: self._signs[0] * one[0].values[0])
        best = {batch: rate for trial, batch, rate in ranked if trial in self._whole}  # the last of each
        if best:
            batches = sorted(best)
            lines = [("best", [best[batch] for batch in batches], {"style": 1})]
            for rule, power, dashes in (("linear", 1.0, [5, 3]), ("square root", 0.5, [2, 3])):
                rates = [best[batches[0]] * (batch / batches[0]) ** power for batch in batches]
                lines.append((rule, rates, {"colour": MUTED, "dashes": dashes}))
            curves += [self._curve("batches", {axis: batches}, rates, label, **how) for label, rates, how in lines]
        words = "The full rate of every trial at its batch; the lines begin at the best one of the smallest batch."
        self._add(title, words, curves, axes=[axis], logarithmic="xy")

    def _add(self, title: str, caption: str, curves: Sequence[dict[str, Any]], **how: Any) -> None:
        if curves:
            self.charts.append(chart(title, caption, curves, **how))

    def _curve(self, name: str, place: Place, values: Any, label: str, **how: Any) -> dict[str, Any]:
        self.points[name] = {axis: plain(own) for axis, own in place.items()}
        return curve(name, values, label, **how)

    def _score(self, trial: FrozenTrial, at: int = 0) -> float | None:
        """A score as it is drawn; none of a pruned trial with a target, which reported what it lacks."""
        values = trial.values or ()
        known = len(values) > at and (trial.state == TrialState.COMPLETE or not self._search.has_goal)
        return self._units[at] * values[at] if known else None

    def _dots(
        self,
        title: str,
        places: Iterable[tuple[FrozenTrial, Place]],
        at: int = 0,
        *,
        heights: Mapping[int, float] | None = None,
    ) -> list[dict[str, Any]]:
        """A dot for each trial at its height, or at its score, where those that diverged lie at the bad edge."""
        edge = {} if heights else {"look": "bottom" if self._signs[at] > 0 else "top"}
        rows = [(one, place, heights[one.number] if heights else self._score(one, at)) for one, place in places]
        curves = []
        for state, look in _DOTS.items():
            own = [row for row in rows if row[2] is not None and chart_state(row[0]) == state]
            if own:
                place = {axis: [place[axis] for _, place, _ in own] for axis in own[0][1]}
                how = {"names": [trial_name(trial) for trial, _, _ in own], **look}
                how |= edge if state == "diverged" else {}
                curves.append(self._curve(f"{title} {state}", place, [row[2] for row in own], state, **how))
        return curves


def _column(name: str, range_: Any, values: Sequence[Any]) -> tuple[str, list[float | None]]:
    """Name and ends of an axis, and the places of values between their lowest, 0, and highest, 1."""
    log = math.log if getattr(range_, "log", False) else float
    number = range_.choices.index if hasattr(range_, "choices") else log
    pairs = [(number(value), value) for value in values if value is not None]
    (low, first), (high, last) = (end(pairs, key=lambda pair: pair[0]) for end in (min, max))
    places = [None if value is None else (number(value) - low) / ((high - low) or 1) for value in values]
    return f"{name}\n{short(first)} – {short(last)}", places
