"""`report.html` of a search: the best trials, charts, then every trial; it follows the search while it runs."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState, create_trial

from recipes.reports import charts
from recipes.reports.charts import Chart, chart, curve, plain
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.page import document
from recipes.reports.style import MUTED
from recipes.reports.wording import counted, duration, number, percent
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch
from recipes.search_space.ranges import short
from trainers.runs.run_folder import REPORT, write_whole
from trainers.search import results
from trainers.search.folder import TRIALS
from trainers.search.results import Confirmed, best_by_seeds, column_names, confirmed_text, metric_words
from trainers.search.study import EVERY, begun, rank_seconds_of, state_of

_FEW = 10  # with fewer complete trials an importance would be drawn from chance
_GOOD = 5  # trials that importance takes for the good ones, where a tenth of all are fewer
_LOOKS: dict[str, dict[str, Any]] = {  # of a trial's curve and dots, by its state
    "complete": {},
    "running": {"style": 2},
    "pruned": {"colour": MUTED, "dashes": [5, 3]},
    "paused": {"colour": MUTED, "dashes": [1, 2]},
    "infeasible": {"colour": MUTED},
    "diverged": {"style": 3, "scales": False},
    "best": {"style": 1, "width": 2.5},
}

Place = Mapping[str, Any]  # axis -> positions of points


def write_search_page(
    folder: Path,
    study: optuna.Study,
    opened: OpenedSearch,
    rows: Sequence[Mapping[str, Any]],
    *,
    confirmed: Sequence[Confirmed] = (),
    note: str = "",
    live: float = 0.0,
) -> None:
    """Write the page of a search into its folder, whole or not at all.

    Args:
        rows: of all trials that have begun, as `row_of`.
        confirmed: trials trained again on fresh seeds, the best first, if they were.
        note: how many of their runs have ended, while some have not.
        live: seconds after which the page looks for what is new, while the search runs; 0: it has ended.
    """
    search, trials, best = opened.search, begun(study), best_by_seeds(study, confirmed)
    if not live:
        rows = [{**row, "state": row["state"].replace("running", "stopped")} for row in rows]
    counts = results.trials_text(Counter(row["state"] for row in rows), search.budget.trials)
    running = f"The search runs; this is its state of {time.strftime('%Y-%m-%d %H:%M:%S')}."
    now = [
        tag("p", _verdict(search, best, confirmed, note), class_="verdict"),
        tag("p", f"{counts}; {number(results.device_hours(study, rows), digits=3)} device-hours", class_="muted"),
        *([tag("p", running, class_="muted")] if live else []),
        *([tag("h2", "Confirmed"), *(tag("p", confirmed_text(search, one)) for one in confirmed)] if confirmed else []),
    ]
    by_number = {row["trial"]: row for row in rows}
    front = [by_number[trial.number] for trial in best] if len(search.objectives) > 1 else []
    tables = [
        *([tag("h2", "Not beaten in everything"), _table(front, search, best)] if front else []),
        *(_importances(search, at, trials) for at in range(len(search.objectives))),
        tag("h2", "Trials"),
        _table(rows, search, best),
    ]
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", "", id="state", class_="muted", role="status"),
        tag("div", *now, id="now"),
        charts.drawn(search_charts(study, opened, best=best)),
        tag("div", *tables, id="tiles"),
        tag("div", "", id="picked"),
    ]
    write_whole(
        folder / REPORT,
        document(search.title or search.name, joined(body), style=charts.style(), script=charts.script(), live=live),
    )


def _verdict(search: Search, best: Sequence[FrozenTrial], confirmed: Sequence[Confirmed], note: str) -> str:
    more = f"; {note}." if note else "."
    if confirmed:
        name = results.name_of_best(confirmed).replace("best", "Best")
        return f"{'Best on fresh seeds' if name == 'Best' else name} is trial {confirmed[0].trial}{more}"
    kept = " of those that keep the constraints" if search.constraints else ""
    if not best:
        return f"No trial{kept} is complete."
    if len(search.objectives) > 1:
        return f"{counted(len(best), 'trial')} that no other one beats in everything."
    return f"Trial {best[0].number} is best{kept}, with {results.scores(search, best[0].values)}{more}"


def _table(rows: Sequence[Mapping[str, Any]], search: Search, best: Sequence[FrozenTrial]) -> Markup:
    metrics, best = [objective.metric for objective in search.objectives], {trial.number for trial in best}
    heads = ("trial", *column_names(search.space).values(), *map(metric_words, metrics), "state", "time", "")
    made = []
    for row in rows:
        own = map(results.score_text, metrics, row["scores"] or [None] * len(metrics))
        texts = (
            tag("a", str(row["trial"]), href=f"{TRIALS}/trial-{row['trial']:04d}/"),
            *(short(row["values"][path]) if path in row["values"] else "" for path in search.space),
            *(tag("b", text) if row["trial"] in best else text for text in own),
            *(row["state"], duration(row["seconds"]), row["note"]),
        )
        made.append(tag("tr", *(tag("td", text) for text in texts), data_name=f"trial {row['trial']}"))
    return table(heads, made, class_="trials")


def _importances(search: Search, at: int, trials: Sequence[FrozenTrial]) -> Markup:
    """The share of each path in what distinguishes good trials by the objective of index `at`, the largest first."""
    whole = [trial for trial in trials if state_of(trial) == "complete"]
    names, num_good = _varying(search, whole), max(_GOOD, len(whole) // 10)
    if len(whole) < _FEW or not names:
        return joined([])
    view = optuna.create_study(direction=search.objectives[at].direction)
    for trial in whole:
        view.add_trial(create_trial(value=trial.values[at], params=trial.params, distributions=trial.distributions))
    with warnings.catch_warnings(action="ignore"):
        share = (num_good - 0.5) / len(whole)  # of which Optuna rounds the number up
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
        shares = optuna.importance.get_param_importances(view, params=[*names], evaluator=evaluator)
    bars = [(names[path], tag("progress", value=f"{share:.3f}"), percent(share)) for path, share in shares.items()]
    goal = metric_words(search.objectives[at].metric)
    words = f"What the best {num_good} of {len(whole)} whole trials have in common in {goal} (PED-ANOVA): a hint only."
    return joined([tag("h2", f"Importance for {goal}"), table(("", "", ""), bars), tag("p", words, class_="muted")])


def _varying(search: Search, trials: Sequence[FrozenTrial]) -> dict[str, str]:
    """Path -> short name, of the paths in which these trials differ."""
    names = column_names(search.space).items()
    return {path: name for path, name in names if len({str(trial.params.get(path)) for trial in trials}) > 1}


def search_charts(study: optuna.Study, opened: OpenedSearch, *, best: Sequence[FrozenTrial]) -> dict[str, Any]:
    """All charts for which there are trials enough."""
    search, on = opened.search, _Charts(study, opened, best)
    on.curves()
    if len(search.objectives) == 1:
        on.history()
    for at in range(len(search.objectives)):
        if at:
            on.front(at)
        for path, name in column_names(search.space).items():
            on.slice(path, name, at)
        on.parallel(at)
    return {"points": on.points, "charts": on.charts}


class _Charts:
    """Collects charts; each method adds one, or none if there is nothing to draw."""

    def __init__(self, study: optuna.Study, opened: OpenedSearch, best: Sequence[FrozenTrial]) -> None:
        self._search, self._trials, self._best = opened.search, begun(study), best
        self._epochs = float(opened.base.recipe.epochs)  # of a trial that does not search them
        metrics = [objective.metric for objective in opened.search.objectives]
        self._percent = [metric == "accuracy" for metric in metrics]
        self._titles = ["accuracy (%)" if metric == "accuracy" else metric_words(metric) for metric in metrics]
        self._signs = [1 if objective.direction == "maximize" else -1 for objective in opened.search.objectives]
        self.points: dict[str, Any] = {}
        self.charts: list[Chart] = []

    def curves(self) -> None:
        """What each trial reported on its way; a curve that diverged does not scale the axis."""
        reports, curves, has_goal = self._search.reports, [], self._search.has_goal
        title = "accuracy that the target lacks (%)" if has_goal else f"{self._titles[0]} on the way"
        in_percent = has_goal or self._percent[0]
        reported, best = [one for one in self._trials if one.intermediate_values], {one.number for one in self._best}
        for state, look in _LOOKS.items():
            for trial in [one for one in reported if ("best" if one.number in best else state_of(one)) == state]:
                every = trial.user_attrs.get(EVERY, 1 / reports)
                parts = [report * every for report in trial.intermediate_values]
                own = trial.params.get("epochs", self._epochs)
                place = {"part of the run": parts, "epochs": [part * own for part in parts]}
                values = [100 * value if in_percent else value for value in trial.intermediate_values.values()]
                how = {"names": f"trial {trial.number}", "group": state, "width": 1.2, **look}
                curves.append(self._curve(f"way {trial.number}", place, values, state, **how))
        words = "What trials reported on their way. Point at a curve or at a row of the table."
        self._add(title, words, curves, axes=("part of the run", "epochs"), percent=in_percent)

    def history(self) -> None:
        """The objective of every trial when it ended, and the best so far."""
        ended = [trial for trial in self._trials if trial.state.is_finished()]
        ended.sort(key=lambda trial: trial.datetime_complete)
        began = min((trial.datetime_start for trial in ended), default=None)
        hours = [rank_seconds_of(trial, self._search) / 3600 for trial in ended]
        place = {
            "trial": [trial.number for trial in ended],
            "time": [(trial.datetime_complete - began).total_seconds() for trial in ended],
            "device-hours": [*itertools.accumulate(hours)],
        }
        curves = self._dots(self._titles[0], ended, place)
        if self._best:
            best = [self._score(trial) if state_of(trial) == "complete" else math.nan for trial in ended]
            look = "highest" if self._signs[0] > 0 else "lowest"
            curves.append(self._curve("best", place, best, "best so far", style=1, look=look))
        words = "Every trial when it ended, and the best so far."
        self._add(self._titles[0], words, curves, axes=[*place], percent=self._percent[0])

    def front(self, at: int) -> None:
        """The first objective against another one."""
        first, other = self._titles[0], self._titles[at]
        title = f"{first} against {other}"
        curves = self._dots(title, self._trials, {other: [self._score(trial, at) for trial in self._trials]})
        best = sorted((self._score(trial, at), self._score(trial)) for trial in self._best)
        if best:
            x, y = zip(*best, strict=True)
            curves.append(self._curve(f"{title} best", {other: x}, y, "not beaten", style=1))
        words = f"Trials that no other one beats, by {first} and {other}."
        self._add(title, words, curves, axes=[other], percent=self._percent[0])

    def slice(self, path: str, name: str, at: int) -> None:
        """An objective against the value of a path."""
        range_, title = self._search.space[path], f"{self._titles[at]} by {name}"
        choices, trials = getattr(range_, "choices", ()), [one for one in self._trials if path in one.params]
        values = [one.params[path] for one in trials]
        place = {name: [*map(choices.index, values)] if choices else values}
        how = {"ticks": [*map(short, choices)], "may_be": "y"} if choices else {"logarithmic": "x" * range_.log}
        words = f"Every trial by its {path}; the other values differ too."
        self._add(title, words, self._dots(title, trials, place, at), axes=[name], percent=self._percent[at], **how)

    def parallel(self, at: int) -> None:
        """The values of every complete trial, those of the best fifth on top in another colour."""
        whole = [trial for trial in self._trials if state_of(trial) == "complete"]
        whole.sort(key=lambda trial: self._signs[at] * trial.values[at])
        names, title = _varying(self._search, whole), f"{self._titles[at]} and values"
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
            name, place = f"trial {trial.number}", {"value": range(len(columns))}
            curves.append(
                self._curve(title, place, heights, group, style=style, group=group, names=name, width=1 + style / 2)
            )
        words = "The values of every complete trial, each from its lowest to its highest."
        self._add(title, words, curves, axes=["value"], may_be="", ticks=ticks)

    def _add(self, title: str, caption: str, curves: Sequence[dict[str, Any]], **how: Any) -> None:
        if curves:
            self.charts.append(chart(title, caption, curves, **how))

    def _curve(self, name: str, place: Place, values: Any, label: str, **how: Any) -> dict[str, Any]:
        self.points[name] = {axis: plain(own) for axis, own in place.items()}
        return curve(name, values, label, **how)

    def _score(self, trial: FrozenTrial, at: int = 0) -> float | None:
        """A score as it is drawn; None before the trial is complete."""
        if trial.state != TrialState.COMPLETE:
            return None
        return 100 * trial.values[at] if self._percent[at] else trial.values[at]

    def _dots(self, title: str, trials: Sequence[FrozenTrial], place: Place, at: int = 0) -> list[dict[str, Any]]:
        """A dot for each complete one of the trials at its score, where those that diverged lie at the bad edge."""
        edge, curves = "bottom" if self._signs[at] > 0 else "top", []
        states = [state_of(one) if one.state == TrialState.COMPLETE else None for one in trials]
        for state, look in _LOOKS.items():
            if own := [index for index, of_one in enumerate(states) if of_one == state]:
                how = {"names": [f"trial {trials[index].number}" for index in own], **look}
                how["look"] = edge if state == "diverged" else "points"
                at_own = {axis: [positions[index] for index in own] for axis, positions in place.items()}
                values = [self._score(trials[index], at) for index in own]
                curves.append(self._curve(f"{title} {state}", at_own, values, state, **how))
        return curves


def _column(name: str, range_: Any, values: Sequence[Any]) -> tuple[str, list[float | None]]:
    """Name and ends of an axis, and the places of values between their lowest, 0, and highest, 1."""
    log = math.log if getattr(range_, "log", False) else float
    number = range_.choices.index if hasattr(range_, "choices") else log
    pairs = [(number(value), value) for value in values if value is not None]
    (low, first), (high, last) = (end(pairs, key=lambda pair: pair[0]) for end in (min, max))
    places = [None if value is None else (number(value) - low) / ((high - low) or 1) for value in values]
    return f"{name}\n{short(first)} – {short(last)}", places
