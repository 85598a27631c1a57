"""The best of a search: its recipe in `best.yaml` or `pareto/`, and the best trials once more with fresh seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import optuna
from optuna.trial import FrozenTrial

from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.launch.verdict import t_quantile
from trainers.runs.run_folder import write_whole
from trainers.search.outcome import has_ended, metrics_lines, origin_of, trial_result, trial_values
from trainers.search.study import best_trials, ranked_trials
from trainers.search.wording import metric_name, scores, shown

BEST = "best.yaml"
PARETO = "pareto"  # a folder, where there are several objectives
CONFIRM = "confirm"  # in the search's folder: trial-0007/seed-1000, ...
FRESH_SEED = 1000  # added to the recipe's seed, to confirm: far from those of `seeds_per_trial`


@dataclass(frozen=True, kw_only=True)
class Confirmed:
    """A trial's recipe, trained again on fresh seeds: the objective of each, their mean and its 95 % interval."""

    trial: int
    values: Sequence[float]
    mean: float
    low: float
    high: float


def write_best(
    folder: Path, opened: OpenedSearch, study: optuna.Study, *, confirmed: Confirmed | None = None
) -> list[tuple[FrozenTrial, Path]]:
    """Write the recipe of the best trial, or those of the Pareto front, each in a file of its number; returns both.

    `confirmed` is the best trial by runs with fresh seeds; None before there are any.
    """
    best, front = best_trials(study), folder / PARETO
    if confirmed is not None:
        best = [trial for trial in ranked_trials(study) if trial.number == confirmed.trial]
    several = len(opened.search.objectives) > 1
    written = [(trial, front / f"trial-{trial.number:04d}.yaml" if several else folder / BEST) for trial in best]
    for trial, path in written:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, _recipe_text(opened, trial, confirmed))
    for path in set(front.glob("trial-*.yaml")) - {path for _, path in written}:
        path.unlink()
    return written


def _recipe_text(opened: OpenedSearch, trial: FrozenTrial, confirmed: Confirmed | None) -> str:
    """The recipe's file as text: values that the search changed have the origin `search NAME trial 17`.

    It has no `extends` and no claims, and is evaluated as often as the recipe that was searched over.
    """
    search, base = opened.search, opened.base
    given = trial_values(search, trial.number, trial.params)
    dataset = base.path.parent / base.recipe.dataset
    if dataset.suffix in (".yaml", ".yml") and dataset.is_file():  # relative to the recipe's own file
        given["dataset"] = str(dataset.resolve())
    how = {"overrides": assignments(given), "overrides_from": origin_of(search, trial.number)}
    recipe = open_recipe(base.path, **how, **opened.options)
    seeds = f", the mean of {search.seeds_per_trial} seeds," if search.seeds_per_trial > 1 else ""
    head = f"# {scores(search, trial.values, named=True)}{seeds} in trial {trial.number} of the search {search.name}"
    if confirmed is not None:
        head += f"; {confirmed_text(search, confirmed)}"
    return f"{head} ({str(trial.datetime_complete)[:19]})\n{resolved_text(recipe.tree, recipe.origins)}"


def confirm_folder(folder: Path, number: int, seed: int) -> Path:
    """The folder of a run that trains trial `number` again with a fresh seed; `folder` is the search's."""
    return folder / CONFIRM / f"trial-{number:04d}" / f"seed-{seed}"


def confirmed_in(folder: Path, search: Search) -> list[Confirmed]:
    """What the runs in a search's folder confirm, the best mean first; trials with fewer than two runs are left out."""
    objective, confirmed = search.objectives[0], []
    for trial in sorted((folder / CONFIRM).glob("trial-*")):
        values: list[float] = []
        for run in filter(has_ended, sorted(trial.glob("seed-*"))):
            diverged = has_ended(run, "failed")
            result = trial_result(search, [metrics_lines(run)], device_hours=math.nan)
            values += [objective.worst] if diverged else result[0]
        if len(values) > 1:
            mean, half, number = fmean(values), math.inf, int(trial.name.removeprefix("trial-"))
            if all(map(math.isfinite, values)):
                half = t_quantile(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
            confirmed.append(Confirmed(trial=number, values=values, mean=mean, low=mean - half, high=mean + half))
    sign = -1 if objective.direction == "maximize" else 1
    return sorted(confirmed, key=lambda one: (sign * one.mean, one.trial))


def confirmed_text(search: Search, confirmed: Confirmed) -> str:
    """A confirmed trial in words: '98.40 % (97.90 % to 98.90 %) by 5 fresh seeds'."""
    metric = search.objectives[0].metric
    mean, low, high = (shown(metric, value) for value in (confirmed.mean, confirmed.low, confirmed.high))
    return f"{mean} ({low} to {high}) by {len(confirmed.values)} fresh seeds"


def confirmed_rows(search: Search, confirmed: Sequence[Confirmed]) -> list[dict[str, str]]:
    """The table of confirmed trials, on the page and on the terminal: a row each, by column."""
    metric = search.objectives[0].metric
    return [
        {
            "trial": str(one.trial),
            f"mean {metric_name(metric)}": shown(metric, one.mean),
            "95 % interval": f"{shown(metric, one.low)} to {shown(metric, one.high)}",
            f"{len(one.values)} fresh seeds": ", ".join(shown(metric, value) for value in one.values),
        }
        for one in confirmed
    ]
