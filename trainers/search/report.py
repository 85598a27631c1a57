"""`report.html` of a search: the best trials, pictures, then every trial."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from recipes.planning.rates import full_rate
from recipes.reports.html import Markup, inline_svg, joined, table, tag
from recipes.reports.page import document
from recipes.reports.wording import duration, number
from recipes.schema import Search
from trainers.runs.run_folder import REPORT, RUN
from trainers.search.display import column_names, metric_name, scores, shown
from trainers.search.search_folder import write_whole
from trainers.search.study import FOLDER, SECONDS, FilteredStudy, best_trials, is_whole, reason_of, state_counts, state_of

_FEW = 10  # with fewer complete trials an importance or a contour would be drawn from chance
_GOOD = 5  # trials that importance takes for the good ones, where a tenth of all are fewer


def write_search_page(folder: Path, study: optuna.Study, search: Search, *, confirmed=()) -> Path:
    """Write the page of a search into its folder, whole or not at all."""
    write_whole(folder / REPORT, search_page_text(study, search, folder=folder))
    return folder / REPORT


def write_transfer_page(folder: Path, search: Search, parts: Sequence[tuple[optuna.Study, Path]]) -> Path:
    """Write the page of a transfer: links to the pages of its two searches, and a plot of rate against batch.

    Args:
        folder: of the transfer.
        search: as the user wrote it.
        parts: study and folder of each of its searches, the small batch first.
    """
    best, (objective,) = best_trials(parts[-1][0]), search.objectives
    maximize = objective.direction == "maximize"
    links = [
        tag("li", tag("a", own.name, href=f"{own.name}/{REPORT}"), f": {_spent(search, study.get_trials())}")
        for study, own in parts
    ]
    body = [
        tag("div", f"transfer over {search.recipe}", class_="muted"),
        tag("p", _verdict(search, best), class_="verdict"),
        tag("ul", *links),
        _pictures(_rate_by_batch(parts, metric=metric_name(objective.metric), maximize=maximize)),
    ]
    write_whole(folder / REPORT, document(search.title or search.name, joined(body)))
    return folder / REPORT


def search_page_text(study: optuna.Study, search: Search, *, folder: Path | None = None) -> str:
    """The page as text; without `folder` the plots that need the runs in it are left out."""
    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.state != TrialState.WAITING]
    best = best_trials(study)
    body = [
        tag("div", f"search over {search.recipe}", class_="muted"),
        tag("p", _verdict(search, best), class_="verdict"),
        tag("p", _spent(search, trials), class_="muted"),
        *([tag("h2", "Not beaten in everything"), _table(best, search, best)] if len(search.objectives) > 1 else []),
        _pictures(_figures(study, search, folder)),
        tag("h2", "Trials"),
        _table(trials, search, best),
    ]
    return document(search.title or search.name, joined(body))


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
    return f"{state_counts(trials)}; {number(hours, digits=3)} device-hours." if trials else ""


def _table(trials: list[FrozenTrial], search: Search, best: list[FrozenTrial]) -> Markup:
    metrics = [objective.metric for objective in search.objectives]
    heads = ("trial", *column_names(list(search.space)), *map(metric_name, metrics), "state", "time", "reason")
    numbers = {trial.number for trial in best}
    rows = [_row(trial, search, metrics, bold=trial.number in numbers) for trial in trials]
    return table(heads, rows, class_="trials")


def _row(trial: FrozenTrial, search: Search, metrics: list[str], *, bold: bool) -> tuple[object, ...]:
    values = trial.values or [None] * len(metrics)
    scores_shown = [shown(metric, value) for metric, value in zip(metrics, values, strict=True)]
    return (
        tag("a", str(trial.number), href=f"{trial.user_attrs.get(FOLDER, '')}/"),
        *(_value(trial.params[path]) if path in trial.params else "" for path in search.space),
        *([tag("b", text) for text in scores_shown] if bold else scores_shown),
        state_of(trial),
        duration(trial.user_attrs.get(SECONDS, 0.0)),
        reason_of(trial),
    )


def _value(value: object) -> str:
    return number(value) if isinstance(value, float) else value if isinstance(value, str) else json.dumps(value)


def _pictures(figures: Iterator[tuple[Any, str]]) -> Markup:
    from recipes.reports.plots import svg_text

    with drawn_by_optuna():
        drawn = [(svg_text(figure), caption) for figure, caption in figures]
    tags = [
        tag("figure", inline_svg(text, prefix=f"p{index}", label=caption), tag("figcaption", caption))
        for index, (text, caption) in enumerate(drawn)
    ]
    return joined([tag("h2", "Pictures"), tag("div", *tags, class_="pictures")]) if tags else Markup("")


@contextmanager
def drawn_by_optuna() -> Iterator[None]:
    """Silence two warnings of Optuna: that its plots are experimental, and that PED-ANOVA takes low targets as good."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes")
        yield


def _figures(study: optuna.Study, search: Search, folder: Path | None) -> Iterator[tuple[Any, str]]:
    """All plots for which there are trials enough; without `folder` not those that need the runs in it."""
    from recipes.reports.plots import of_search

    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.values]
    points = [_point(trial) for trial in trials]
    if not points:
        return
    metrics = [metric_name(objective.metric) for objective in search.objectives]
    maximize = search.objectives[0].direction == "maximize"
    if len(metrics) == 1:
        yield from _by_optuna(study, points, metrics[0])
    front = [trial.number for trial in best_trials(study)]
    for at, metric in list(enumerate(metrics))[1:]:
        figure = of_search.front_figure(points, front, metrics=(metrics[0], metric), at=at)
        yield figure, f"Trials that no other one beats in everything, by {metrics[0]} and {metric}."
    if any(path.startswith("batch.") for path in search.space):
        yield from _rate_by_batch([(study, folder)], metric=metrics[0], maximize=maximize)
    yield from _importance(study, search, metrics)
    for path, range_ in search.space.items():
        if any(path in point.values for point in points):
            how = {"log": getattr(range_, "log", False), "choices": getattr(range_, "choices", ())}
            figure = of_search.slice_figure(points, path, metrics=metrics, **how)
            yield figure, f"Every trial by its {path}; the other values differ too."


def _point(trial: FrozenTrial) -> Any:
    from recipes.reports.plots.of_search import TrialPoint

    return TrialPoint(number=trial.number, state=state_of(trial), scores=tuple(trial.values), values=trial.params)


def _by_optuna(study: optuna.Study, points: Sequence[Any], metric: str) -> Iterator[tuple[Any, str]]:
    """Optuna's plots of the optimization history and of the intermediate values."""
    from optuna.visualization import matplotlib as drawn

    from recipes.reports.plots.figure import drawn_elsewhere
    from recipes.reports.plots.of_search import history_figure, reports_figure

    trials = study.get_trials(deepcopy=False)
    with drawn_elsewhere():
        if _whole(trials):
            others = [point for point in points if point.state in ("pruned", "short")]
            axes = drawn.plot_optimization_history(FilteredStudy(study, _others_as_pruned), target_name="")
            yield history_figure(axes, others, metric=metric), "Every trial, and the best so far."
    with drawn_elsewhere():
        if any(trial.intermediate_values for trial in trials):
            states = {trial.number: state_of(trial) for trial in trials}
            words = "What trials reported on their way: pruned ones dashed, infeasible ones grey."
            yield reports_figure(drawn.plot_intermediate_values(study), states, metric=metric), words


def _whole(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Complete trials that trained all epochs."""
    return [trial for trial in trials if trial.state == TrialState.COMPLETE and is_whole(trial)]


def _others_as_pruned(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """All trials, complete ones of fewer epochs as pruned, so that none of them counts as the best.

    None may be left out: Optuna takes a trial's number for its index in the list.
    """
    shown = list(trials)
    for index, trial in enumerate(shown):
        if trial.state == TrialState.COMPLETE and not is_whole(trial):
            shown[index] = copy(trial)
            shown[index].state = TrialState.PRUNED
    return shown


def _importance(study: optuna.Study, search: Search, metrics: list[str]) -> Iterator[tuple[Any, str]]:
    """Importances by PED-ANOVA, which handles conditional parameters, for each objective; with one, a contour too."""
    from optuna.visualization.matplotlib import plot_contour, plot_param_importances

    from recipes.reports.plots.figure import drawn_elsewhere, restyled
    from recipes.reports.plots.of_search import importance_figure

    whole, view = _whole(study.get_trials(deepcopy=False)), FilteredStudy(study, _whole)
    paths = [path for path in search.space if len({str(trial.params.get(path)) for trial in whole}) > 1]
    if len(whole) < _FEW or not paths:
        return
    good = max(0.1, _GOOD / len(whole))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=good)
    how: dict[str, Any] = {"evaluator": evaluator, "params": paths}
    best = f"the best {max(_GOOD, round(good * len(whole)))} of {len(whole)} whole trials"
    for index, metric in enumerate(metrics):
        if len(metrics) > 1:
            how["target"] = _lower_is_better(search, index)
        with drawn_elsewhere():
            figure = importance_figure(plot_param_importances(view, **how, target_name=metric), metric=metric)
            yield figure, f"What {best} have in common in {metric} (PED-ANOVA): a hint only."
    shares = optuna.importance.get_param_importances(view, **how)
    shared = [path for path in shares if sum(path in trial.params for trial in whole) >= _FEW]
    if len(shared) > 1 and len(metrics) == 1:
        with drawn_elsewhere():
            figure = restyled(plot_contour(view, params=shared[:2], target_name=""), title=metrics[0])
            yield figure, f"{metrics[0]} between whole trials, by the two values that matter most."


def _lower_is_better(search: Search, index: int) -> Callable[[FrozenTrial], float]:
    """The target that PED-ANOVA is given for an objective."""
    sign = -1 if search.objectives[index].direction == "maximize" else 1
    return lambda trial: sign * trial.values[index]


def _rate_by_batch(
    parts: Sequence[tuple[optuna.Study, Path | None]], *, metric: str, maximize: bool
) -> Iterator[tuple[Any, str]]:
    """Learning rate against batch, from the trials' run records; only if the trials differ in their batch."""
    from recipes.reports.plots.of_search import rate_figure

    points = []
    for study, folder in parts:
        for trial in study.get_trials(deepcopy=False):
            pair = batch_and_rate(trial, folder) if trial.values else None
            if pair is not None:
                points.append((*pair, _point(trial)))
    if len({batch for batch, _, _ in points}) > 1:
        words = "The full rate of every trial at its batch; the lines begin at the best one of the smallest batch."
        yield rate_figure(points, metric=metric, maximize=maximize), words


def batch_and_rate(trial: FrozenTrial, folder: Path | None) -> tuple[int, float] | None:
    """A run's largest batch and its learning rate there, without warmup and schedule; None if there is no record."""
    name = trial.user_attrs.get(FOLDER)
    if folder is None or name is None:
        return None
    try:
        path = next(path for path in (folder / name / RUN, folder / name / "run-0" / RUN) if path.is_file())
        run = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
        batch = max(segment["global_batch_size"] for segment in run["plan"]["segments"])
        formula = run["recipe"]["learning_rate"]
    except (OSError, StopIteration, yaml.YAMLError, LookupError, TypeError):
        return None
    return batch, full_rate(formula["reference"], batch, rule=formula["rule"], per=formula["per"])


_LOADER: Callable[[str], Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
