"""The pictures of a search's page, each with its caption."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from recipes.rates import full_rate
from recipes.reports.markup import Markup, inline_svg, joined, tag
from recipes.schema import Search
from trainers.run_folder import RUN
from trainers.search.rungs import is_whole
from trainers.search.states import state_of
from trainers.search.study import FOLDER, best_trials
from trainers.search.wording import metric_name
from trainers.study_view import StudyView

_FEW = 10  # with fewer complete trials an importance or a contour would be drawn from chance
_GOOD = 5  # trials that importance takes for the good ones, where a tenth of all are fewer


def pictures(study: optuna.Study, search: Search, folder: Path | None) -> Markup:
    """All plots for which there are trials enough.

    Args:
        study: of the search.
        search: the search.
        folder: of the search, with the runs of its trials; None: plots that need the runs are left out.
    """
    return _drawn(_figures(study, search, folder))


def rates_picture(parts: Sequence[tuple[optuna.Study, Path]], search: Search) -> Markup:
    """Learning rate against batch over the trials of several searches, each given with its folder."""
    (objective,) = search.objectives
    maximize = objective.direction == "maximize"
    return _drawn(_of_batches(parts, metric=metric_name(objective.metric), maximize=maximize))


def _drawn(figures: Iterator[tuple[Any, str]]) -> Markup:
    from recipes.reports.plots import svg_text

    with drawn_by_optuna():
        found = [(svg_text(figure), words) for figure, words in figures]
    drawn = [
        tag("figure", inline_svg(text, prefix=f"p{place}", label=words), tag("figcaption", words))
        for place, (text, words) in enumerate(found)
    ]
    return joined([tag("h2", "Pictures"), tag("div", *drawn, class_="pictures")]) if drawn else Markup("")


@contextmanager
def drawn_by_optuna() -> Iterator[None]:
    """Silence two warnings of Optuna: that its plots are experimental, and that PED-ANOVA takes low targets as good."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        warnings.filterwarnings("ignore", message="PedAnovaImportanceEvaluator computes")
        yield


def _figures(study: optuna.Study, search: Search, folder: Path | None) -> Iterator[tuple[Any, str]]:
    from recipes.reports.plots import of_search

    trials = [trial for trial in study.get_trials(deepcopy=False) if trial.values]
    points = [_point(trial) for trial in trials]
    if not points:
        return
    metrics = [metric_name(objective.metric) for objective in search.objectives]
    maximize = search.objectives[0].direction == "maximize"
    if len(metrics) == 1:
        yield from _on_the_way(study, points, metrics[0])
    front = [trial.number for trial in best_trials(study)]
    for at, metric in list(enumerate(metrics))[1:]:
        figure = of_search.front_figure(points, front, metrics=(metrics[0], metric), at=at)
        yield figure, f"Trials that no other one beats in everything, by {metrics[0]} and {metric}."
    if any(path.startswith("batch.") for path in search.space):
        yield from _of_batches([(study, folder)], metric=metrics[0], maximize=maximize)
    yield from _of_importance(study, search, metrics)
    for path, range_ in search.space.items():
        if any(path in point.values for point in points):
            how = {"log": getattr(range_, "log", False), "choices": getattr(range_, "choices", ())}
            figure = of_search.slice_figure(points, path, metrics=metrics, **how)
            yield figure, f"Every trial by its {path}; the other values differ too."


def _point(trial: FrozenTrial) -> Any:
    from recipes.reports.plots.of_search import TrialPoint

    return TrialPoint(
        number=trial.number,
        state=state_of(trial),
        scores=tuple(trial.values),
        values=trial.params,
    )


def _on_the_way(study: optuna.Study, points: Sequence[Any], metric: str) -> Iterator[tuple[Any, str]]:
    """Optuna's plots of the optimization history and of the intermediate values."""
    from optuna.visualization import matplotlib as drawn

    from recipes.reports.plots.foreign import drawn_elsewhere
    from recipes.reports.plots.of_search import history_figure, reports_figure

    trials = study.get_trials(deepcopy=False)
    with drawn_elsewhere():
        if _whole(trials):
            others = [point for point in points if point.state in ("pruned", "short")]
            axes = drawn.plot_optimization_history(StudyView(study, _others_as_pruned), target_name="")
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
    found = []
    for trial in trials:
        if trial.state == TrialState.COMPLETE and not is_whole(trial):
            trial = copy(trial)
            trial.state = TrialState.PRUNED
        found.append(trial)
    return found


def _of_importance(study: optuna.Study, search: Search, metrics: list[str]) -> Iterator[tuple[Any, str]]:
    """Importances by PED-ANOVA, which handles conditional parameters, for each objective; with one, a contour too."""
    from optuna.visualization.matplotlib import plot_contour, plot_param_importances

    from recipes.reports.plots.foreign import drawn_elsewhere, restyled
    from recipes.reports.plots.of_search import importance_figure

    whole, view = _whole(study.get_trials(deepcopy=False)), StudyView(study, _whole)
    paths = [path for path in search.space if len({str(trial.params.get(path)) for trial in whole}) > 1]
    if len(whole) < _FEW or not paths:
        return
    good = max(0.1, _GOOD / len(whole))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=good)
    how: dict[str, Any] = {"evaluator": evaluator, "params": paths}
    best = f"the best {max(_GOOD, round(good * len(whole)))} of {len(whole)} whole trials"
    for place, metric in enumerate(metrics):
        if len(metrics) > 1:
            how["target"] = _lower_is_better(search, place)
        with drawn_elsewhere():
            figure = importance_figure(plot_param_importances(view, **how, target_name=metric), metric=metric)
            yield figure, f"What {best} have in common in {metric} (PED-ANOVA): a hint only."
    shares = optuna.importance.get_param_importances(view, **how)
    shared = [path for path in shares if sum(path in trial.params for trial in whole) >= _FEW]
    if len(shared) > 1 and len(metrics) == 1:
        with drawn_elsewhere():
            figure = restyled(plot_contour(view, params=shared[:2], target_name=""), title=metrics[0])
            yield figure, f"{metrics[0]} between whole trials, by the two values that matter most."


def _lower_is_better(search: Search, place: int) -> Callable[[FrozenTrial], float]:
    """The target that PED-ANOVA is given for an objective."""
    sign = -1 if search.objectives[place].direction == "maximize" else 1
    return lambda trial: sign * trial.values[place]


def _of_batches(
    parts: Sequence[tuple[optuna.Study, Path | None]], *, metric: str, maximize: bool
) -> Iterator[tuple[Any, str]]:
    """Learning rate against batch, from the trials' run records; only if the trials differ in their batch."""
    from recipes.reports.plots.of_search import rate_figure

    found = []
    for study, folder in parts:
        for trial in study.get_trials(deepcopy=False):
            place = batch_and_rate(trial, folder) if trial.values else None
            if place is not None:
                found.append((*place, _point(trial)))
    if len({batch for batch, _, _ in found}) > 1:
        words = "The full rate of every trial at its batch; the lines begin at the best one of the smallest batch."
        yield rate_figure(found, metric=metric, maximize=maximize), words


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
