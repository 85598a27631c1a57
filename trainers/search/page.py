"""`report.html` of a search: pictures, then every trial."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.reports.markup import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import duration, number, percent
from recipes.schema import Search
from trainers.run_folder import REPORT
from trainers.search.study import FOLDER, REASON, SECONDS, best_trial

_SCORED = (TrialState.COMPLETE, TrialState.PRUNED)


def write_search_page(folder: Path, study: optuna.Study, search: Search) -> Path:
    """Write the page of a search into its folder, whole or not at all."""
    path = folder / REPORT
    partial = path.with_name(f".{REPORT}.partial")
    partial.write_text(search_page_text(study, search), encoding="utf-8")
    partial.rename(path)
    return path


def search_page_text(study: optuna.Study, search: Search) -> str:
    """The page as text."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    best = best_trial(study)
    words = "No trial is complete." if best is None else f"Trial {best.number} is best, with {_score(search, best)}."
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", words, class_="verdict"),
        _pictures(trials, search),
        tag("h2", "Trials"),
        _table(trials, search),
    ]
    return document(search.title or search.name, joined(body))


def _table(trials: list[FrozenTrial], search: Search) -> Markup:
    heads = ("trial", *search.space, search.objective.metric, "state", "time", "reason")
    rows = [
        (
            tag("a", str(trial.number), href=f"{trial.user_attrs.get(FOLDER, '')}/{REPORT}"),
            *(_value(trial.params.get(path)) for path in search.space),
            _score(search, trial),
            trial.state.name.lower(),
            duration(trial.user_attrs.get(SECONDS, 0.0)),
            trial.user_attrs.get(REASON, ""),
        )
        for trial in trials
    ]
    return table(heads, rows)


def _pictures(trials: list[FrozenTrial], search: Search) -> Markup:
    from recipes.reports.plots import svg_text
    from recipes.reports.plots.of_search import TrialPoint, history_figure, reports_figure, slice_figure

    points = [
        TrialPoint(
            number=trial.number,
            complete=trial.state == TrialState.COMPLETE,
            value=trial.value,
            values=trial.params,
            reports=trial.intermediate_values,
        )
        for trial in trials
        if trial.state in _SCORED and trial.value is not None
    ]
    if not points:
        return Markup("")
    metric = search.objective.metric
    figures = [
        (history_figure(points, metric=metric, maximize=metric == "accuracy"), "Every trial, and the best so far."),
        (reports_figure(points, metric=metric), "What trials reported on their way; pruned ones are dashed."),
    ]
    for path, range_ in search.space.items():
        figure = slice_figure(points, path, metric=metric, log=getattr(range_, "log", False))
        figures.append((figure, f"Every trial by its {path}; the other values differ too."))
    drawn = [
        tag("figure", inline_svg(svg_text(figure), prefix=f"p{place}", label=words), tag("figcaption", words))
        for place, (figure, words) in enumerate(figures)
    ]
    return joined([tag("h2", "Pictures"), tag("div", *drawn, class_="pictures")])


def _score(search: Search, trial: FrozenTrial) -> str:
    if trial.value is None:
        return ""
    return percent(trial.value) if search.objective.metric == "accuracy" else number(trial.value)


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
