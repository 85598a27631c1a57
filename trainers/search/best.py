"""`best.yaml`: the best trial as a complete recipe, ready to train and to share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna

from recipes.open import open_recipe
from recipes.open_search import OpenedSearch, assignments
from recipes.provenance import resolved_text
from recipes.schema import Search
from trainers.vocabulary import vocabulary

BEST = "best.yaml"


def write_best(
    folder: Path, opened: OpenedSearch, trial: optuna.trial.FrozenTrial, *, data: Path | None, allow_code: bool
) -> Path:
    """Write the recipe of a trial, with `search NAME trial 17` as the origin of what the search changed.

    It extends nothing, promises nothing, and is evaluated as often as the recipe it comes from.
    """
    path = folder / BEST
    partial = path.with_name(f".{BEST}.partial")
    partial.write_text(best_text(opened, trial, data=data, allow_code=allow_code), encoding="utf-8")
    partial.rename(path)
    return path


def best_text(
    opened: OpenedSearch, trial: optuna.trial.FrozenTrial, *, data: Path | None = None, allow_code: bool = False
) -> str:
    """The file as text."""
    search, said_by = opened.search, f"search {opened.search.name} trial {trial.number}"
    given: dict[str, Any] = {
        **search.fixed,
        **trial.params,
        "name": f"{search.name}-best",
        "title": f"Best of the search {search.name} over {search.recipe}: trial {trial.number}",
        "claims": [],
        "card": None,
    }
    dataset = opened.base.path.parent / opened.base.recipe.dataset
    if dataset.suffix in (".yaml", ".yml") and dataset.is_file():  # it is named by its path from the recipe's file
        given["dataset"] = str(dataset.resolve())
    found = open_recipe(
        opened.base.path,
        vocabulary=vocabulary(allow_code=allow_code),
        overrides=assignments(given),
        overrides_from=said_by,
        allow_code=allow_code,
        data_root=data,
    )
    head = (
        f"# {_score(search, trial)} in trial {trial.number} of the search {search.name} ({trial.datetime_complete})\n"
    )
    return head + resolved_text(found.tree, found.origins)


def _score(search: Search, trial: optuna.trial.FrozenTrial) -> str:
    return f"{search.objective.metric} {trial.value:.6g}"
