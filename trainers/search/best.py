"""`best.yaml`: the best trial as a complete recipe, ready to train and to share; `pareto/` with several objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.search.confirm import Confirmed, confirmed_text
from trainers.search.search_folder import write_whole
from trainers.search.study import best_trials, ranked_trials
from trainers.search.wording import score

BEST = "best.yaml"
PARETO = "pareto"  # a folder, where there are several objectives


def write_best(folder: Path, opened: OpenedSearch, study: optuna.Study, *, confirmed: Confirmed | None = None) -> None:
    """Write the recipe of the best trial, or those of the Pareto front, each in a file of its trial's number.

    Args:
        folder: of the search.
        opened: the search.
        study: of the search.
        confirmed: the best trial by runs with fresh seeds; None before there are any.
    """
    best = best_trials(study)
    if confirmed is not None:
        best = [trial for trial in ranked_trials(study) if trial.number == confirmed.trial]
    paths = [recipe_path(folder, opened.search, trial) for trial in best]
    for trial, path in zip(best, paths, strict=True):
        path.parent.mkdir(exist_ok=True)
        write_whole(path, best_text(opened, trial, confirmed))
    for path in set((folder / PARETO).glob("trial-*.yaml")) - set(paths):
        path.unlink()


def recipe_path(folder: Path, search: Search, trial: optuna.trial.FrozenTrial) -> Path:
    """The file for the recipe of one of the best trials."""
    return folder / PARETO / f"trial-{trial.number:04d}.yaml" if len(search.objectives) > 1 else folder / BEST


def best_text(opened: OpenedSearch, trial: optuna.trial.FrozenTrial, confirmed: Confirmed | None = None) -> str:
    """The recipe's file as text: values that the search changed have the origin `search NAME trial 17`.

    It has no `extends` and no claims, and is evaluated as often as the recipe that was searched over.
    """
    search, base = opened.search, opened.base
    several = len(search.objectives) > 1
    given: dict[str, Any] = {
        **search.fixed,
        **trial.params,
        "name": f"{search.name}-trial-{trial.number}" if several else f"{search.name}-best",
        "title": f"{'On the Pareto front' if several else 'Best'} of the search {search.name} over {search.recipe}: "
        f"trial {trial.number}",
        "claims": [],
        "card": None,
    }
    dataset = base.path.parent / base.recipe.dataset
    if dataset.suffix in (".yaml", ".yml") and dataset.is_file():  # relative to the recipe's own file
        given["dataset"] = str(dataset.resolve())
    origin = f"search {search.name} trial {trial.number}"
    recipe = open_recipe(base.path, overrides=assignments(given), overrides_from=origin, **opened.options)
    each = [score(objective.metric, value) for objective, value in zip(search.objectives, trial.values, strict=True)]
    seeds = f", the mean of {search.seeds_per_trial} seeds," if search.seeds_per_trial > 1 else ""
    head = f"# {', '.join(each)}{seeds} in trial {trial.number} of the search {search.name}"
    if confirmed is not None:
        head += f"; {confirmed_text(search, confirmed)}"
    return f"{head} ({str(trial.datetime_complete)[:19]})\n{resolved_text(recipe.tree, recipe.origins)}"
