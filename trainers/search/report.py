"""`report.html` of a search: the best trials, charts, then every trial; it follows the search while it runs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial, create_trial

from recipes.reports import charts
from recipes.reports.html import Markup, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import duration, number, percent
from recipes.schema import Search
from trainers.runs.run_folder import REPORT, write_whole
from trainers.search.charts import search_charts, trial_name, varying, whole_trials
from trainers.search.results import Confirmed, column_names, confirmed_rows, metric_name, row_of, scores, short, shown
from trainers.search.study import SECONDS, begun, best_trials, state_counts, state_of

_FEW = 10  # with fewer complete trials an importance would be drawn from chance
_GOOD = 5  # trials that importance takes for the good ones, where a tenth of all are fewer


def write_search_page(
    folder: Path,
    study: optuna.Study,
    search: Search,
    *,
    epochs: float,
    confirmed: Sequence[Confirmed] = (),
    live: float = 0.0,
) -> None:
    """Write the page of a search into its folder, whole or not at all.

    Args:
        epochs: of a trial that does not search them.
        confirmed: trials trained again on fresh seeds, the best first, if they were.
        live: seconds after which the page looks for what is new, while the search runs; 0: it has ended.
    """
    trials = begun(study)
    best, rows = best_trials(study), confirmed_rows(search, confirmed)
    hours = sum(trial.user_attrs.get(SECONDS, 0.0) for trial in trials) * search.ranks_per_trial / 3600
    counts = state_counts(trials, live=live > 0)
    running = f"The search runs; this is its state of {time.strftime('%Y-%m-%d %H:%M:%S')}."
    now = [
        tag("p", _verdict(search, best, confirmed), class_="verdict"),
        tag("p", f"{counts}; {number(hours, digits=3)} device-hours." if trials else "", class_="muted"),
        *([tag("p", running, class_="muted")] if live else []),
        *([tag("h2", "Confirmed"), table([*rows[0]], [[*row.values()] for row in rows])] if rows else []),
    ]
    tables = [
        *([tag("h2", "Not beaten in everything"), _table(best, search, best)] if len(search.objectives) > 1 else []),
        *(_importances(search, at, trials) for at in range(len(search.objectives))),
        tag("h2", "Trials"),
        _table(trials, search, best, live=live > 0),
    ]
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", "", id="state", class_="muted"),
        tag("div", *now, id="now"),
        charts.drawn(search_charts(study, search, epochs=epochs)),
        tag("div", *tables, id="tiles"),
        tag("div", "", id="picked"),
    ]
    how = {"style": charts.style(), "script": charts.script(), "live": live}
    write_whole(folder / REPORT, document(search.title or search.name, joined(body), **how))


def _verdict(search: Search, best: list[FrozenTrial], confirmed: Sequence[Confirmed]) -> str:
    if confirmed:
        mean = shown(search.objectives[0].metric, confirmed[0].mean)
        return f"Trial {confirmed[0].trial} is best, with {mean} in the mean of {len(confirmed[0].values)} fresh seeds."
    if not best:
        return "No trial is complete." if not search.constraints else "No complete trial keeps the constraints."
    if len(search.objectives) > 1:
        return f"{len(best)} trials are beaten by no other one in everything." if len(best) > 1 else "One beats all."
    kept = " of those that keep the constraints" if search.constraints else ""
    return f"Trial {best[0].number} is best{kept}, with {scores(search, best[0].values)}."


def _table(trials: list[FrozenTrial], search: Search, best: list[FrozenTrial], *, live: bool = False) -> Markup:
    metrics, best = [objective.metric for objective in search.objectives], {trial.number for trial in best}
    heads = ("trial", *column_names(search.space), *map(metric_name, metrics), "state", "time", "")
    rows = []
    for trial in trials:
        row = row_of(trial, search)
        own = map(shown, metrics, row["scores"] or [None] * len(metrics))
        texts = (
            tag("a", str(trial.number), href=f"{row['folder']}/"),
            *(short(row["values"][path]) if path in row["values"] else "" for path in search.space),
            *(tag("b", text) if trial.number in best else text for text in own),
            *(state_of(trial, live=live), duration(row["seconds"]), row["note"]),
        )
        rows.append(tag("tr", *(tag("td", text) for text in texts), data_name=trial_name(trial)))
    return table(heads, rows, class_="trials")


def _importances(search: Search, at: int, trials: Sequence[FrozenTrial]) -> Markup:
    """The share of each path in what distinguishes good trials by the objective of index `at`, the largest first."""
    whole = whole_trials(trials)
    names, num_good = varying(search, whole), max(_GOOD, len(whole) // 10)
    if len(whole) < _FEW or not names:
        return joined([])
    view = optuna.create_study(direction=search.objectives[at].direction)
    for trial in whole:
        view.add_trial(create_trial(value=trial.values[at], params=trial.params, distributions=trial.distributions))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes")
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=num_good / len(whole))
        shares = optuna.importance.get_param_importances(view, params=[*names], evaluator=evaluator)
    bars = [(names[path], tag("progress", value=f"{share:.3f}"), percent(share)) for path, share in shares.items()]
    goal = metric_name(search.objectives[at].metric)
    words = f"What the best {num_good} of {len(whole)} whole trials have in common in {goal} (PED-ANOVA): a hint only."
    return joined([tag("h2", f"Importance for {goal}"), table(("", "", ""), bars), tag("p", words, class_="muted")])
