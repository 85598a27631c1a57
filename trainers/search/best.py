"""`best.yaml`: the best trial as a complete recipe, ready to train and to share; `pareto/` with several objectives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from recipes.errors import Problem, RecipeError
from recipes.reading.load import resolved_text
from recipes.reading.open import open_recipe
from recipes.reading.registry import shown
from recipes.schema import Search
from recipes.search_space.open_search import OpenedSearch, assignments
from trainers.search.confirm import confirmed_text
from trainers.search.display import Confirmed, score
from trainers.search.search_folder import write_whole
from trainers.search.study import best_trials, ranked_trials

BEST = "best.yaml"
PARETO = "pareto"  # a folder, where there are several objectives


def write_best(
    folder: Path, opened: OpenedSearch, study: optuna.Study, *, confirmed: Confirmed | None = None
) -> None:
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
        write_whole(path, best_text(opened, trial, confirmed), errors="replace")  # a path in it may be no UTF-8
    for path in set((folder / PARETO).glob("trial-*.yaml")) - set(paths):
        path.unlink()


def recipe_path(folder: Path, search: Search, trial: optuna.trial.FrozenTrial) -> Path:
    """The file for the recipe of one of the best trials."""
    return folder / PARETO / f"trial-{trial.number:04d}.yaml" if len(search.objectives) > 1 else folder / BEST


def best_text(opened: OpenedSearch, trial: optuna.trial.FrozenTrial, confirmed: Confirmed | None = None) -> str:
    """The recipe's file as text: values that the search changed have the origin `search NAME trial 17`.

    It has no `extends` and no claims, and is evaluated as often as the recipe that was searched over.
    """
    search, origin = opened.search, f"search {opened.search.name} trial {trial.number}"
    several = len(search.objectives) > 1
    rank = "On the Pareto front" if several else "Best"
    given: dict[str, Any] = {
        **search.fixed,
        **trial.params,
        "name": f"{search.name}-trial-{trial.number}" if several else f"{search.name}-best",
        "title": f"{rank} of the search {search.name} over {search.recipe}: trial {trial.number}",
        "claims": [],
        "card": None,
    }
    recipe = open_recipe(
        opened.base.path,
        overrides=assignments({**given, **absolute_dataset(opened)}),
        overrides_from=origin,
        **opened.options,
    )
    head = f"# {_scores(search, trial)} in trial {trial.number} of the search {search.name}"
    if confirmed is not None:
        head += f"; {confirmed_text(search, confirmed)}"
    return f"{head} ({str(trial.datetime_complete)[:19]})\n{resolved_text(recipe.tree, recipe.origins)}"


def absolute_dataset(opened: OpenedSearch) -> dict[str, str]:
    """An override with the data set's absolute path, if the recipe names it by a path relative to its own file."""
    dataset = opened.base.path.parent / opened.base.recipe.dataset
    named = dataset.suffix in (".yaml", ".yml") and dataset.is_file()
    return {"dataset": str(dataset.resolve())} if named else {}


def require_utf8(opened: OpenedSearch) -> None:
    """Refuse a data set whose path the best recipe would have to name, and YAML cannot.

    Raises:
        RecipeError: the path is not valid UTF-8.
    """
    path = absolute_dataset(opened).get("dataset", "")
    if path != path.encode(errors="replace").decode():
        what = f"the path of the data set, {path.encode(errors='backslashreplace').decode()}, is no UTF-8"
        way_out = "rename the folder or file: the search has to name it in a file of YAML"
        problem = Problem(file=shown(opened.path), line=1, column=1, path="recipe", what=what, way_out=way_out)
        raise RecipeError([problem])


def absolute_recipe(opened: OpenedSearch) -> str:
    """The recipe's name, or its path."""
    name = opened.search.recipe
    return str(opened.base.path.resolve()) if name.endswith((".yaml", ".yml")) else name


def _scores(search: Search, trial: optuna.trial.FrozenTrial) -> str:
    each = [score(objective.metric, value) for objective, value in zip(search.objectives, trial.values, strict=True)]
    seeds = f", the mean of {search.seeds_per_trial} seeds," if search.seeds_per_trial > 1 else ""
    return f"{', '.join(each)}{seeds}"
