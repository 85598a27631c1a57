"""`report.html` of a search: the best trials, pictures, then every trial."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, TrialState

from recipes.reports.markup import Markup, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import duration, number
from recipes.schema import Search
from trainers.run_folder import REPORT
from trainers.search.pictures import pictures, rates_picture
from trainers.search.states import counted, reason_of, state_of
from trainers.search.study import FOLDER, SECONDS, best_trials
from trainers.search.wording import column_names, metric_name, scores, shown


def write_search_page(folder: Path, study: optuna.Study, search: Search) -> Path:
    """Write the page of a search into its folder, whole or not at all."""
    return _write(folder, search_page_text(study, search, folder=folder))


def write_transfer_page(folder: Path, search: Search, parts: Sequence[tuple[optuna.Study, Path]]) -> Path:
    """Write the page of a transfer: links to the pages of its two searches, and a plot of rate against batch.

    Args:
        folder: of the transfer.
        search: as the user wrote it.
        parts: study and folder of each of its searches, the small batch first.
    """
    best = best_trials(parts[-1][0])
    links = [
        tag("li", tag("a", own.name, href=f"{own.name}/{REPORT}"), f": {_spent(search, study.get_trials())}")
        for study, own in parts
    ]
    body = [
        tag("div", f"transfer over {search.recipe}", class_="muted"),
        tag("p", _verdict(search, best), class_="verdict"),
        tag("ul", *links),
        rates_picture(parts, search),
    ]
    return _write(folder, document(search.title or search.name, joined(body)))


def search_page_text(study: optuna.Study, search: Search, *, folder: Path | None = None) -> str:
    """The page as text; without `folder` the plots that need the runs in it are left out."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    best = best_trials(study)
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", _verdict(search, best), class_="verdict"),
        tag("p", _spent(search, trials), class_="muted"),
        *([tag("h2", "Not beaten in everything"), _table(best, search, best)] if len(search.objectives) > 1 else []),
        pictures(study, search, folder),
        tag("h2", "Trials"),
        _table(trials, search, best),
    ]
    return document(search.title or search.name, joined(body))


def _write(folder: Path, text: str) -> Path:
    path = folder / REPORT
    partial = path.with_name(f".{REPORT}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(path)
    return path


def _verdict(search: Search, best: list[FrozenTrial]) -> str:
    if not best:
        return "No trial is complete." if not search.constraints else "No complete trial keeps the constraints."
    if len(search.objectives) > 1:
        return f"{len(best)} trials are beaten by no other one in everything." if len(best) > 1 else "One beats all."
    kept = " of those that keep the constraints" if search.constraints else ""
    return f"Trial {best[0].number} is best{kept}, with {scores(search, best[0].values)}."


def _spent(search: Search, trials: list[FrozenTrial]) -> str:
    """How many trials ended in which state, and their device-hours."""
    hours = sum(trial.user_attrs.get(SECONDS, 0.0) for trial in trials) * search.ranks_per_trial / 3600
    return f"{counted(trials)}; {number(hours, digits=3)} device-hours." if trials else ""


def _table(trials: list[FrozenTrial], search: Search, best: list[FrozenTrial]) -> Markup:
    metrics = [objective.metric for objective in search.objectives]
    heads = ("trial", *column_names(list(search.space)), *map(metric_name, metrics), "state", "time", "reason")
    numbers = {trial.number for trial in best}
    rows = [_row(trial, search, metrics, bold=trial.number in numbers) for trial in trials]
    return table(heads, rows, class_="trials")


def _row(trial: FrozenTrial, search: Search, metrics: list[str], *, bold: bool) -> tuple[object, ...]:
    values = trial.values or [None] * len(metrics)
    said = [shown(metric, value) for metric, value in zip(metrics, values, strict=True)]
    return (
        tag("a", str(trial.number), href=f"{trial.user_attrs.get(FOLDER, '')}/"),
        *(_value(trial.params[path]) if path in trial.params else "" for path in search.space),
        *([tag("b", text) for text in said] if bold else said),
        state_of(trial),
        duration(trial.user_attrs.get(SECONDS, 0.0)),
        reason_of(trial),
    )


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)
