"""The library of recipes: its list, and copies to start your own recipe from."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.reading.load import load_tree
from recipes.reading.open import open_recipe
from recipes.reading.registry import find_or_refuse, is_of_library, names, path_of_pack, require_suffix, shown
from recipes.schema.vocabulary import Vocabulary


def library(*, vocabulary: Vocabulary, allow_code: bool = False) -> tuple[list[dict[str, Any]], list[Problem]]:
    """A row for every recipe that has a name, sorted by name, and the problems of those that do not open.

    `global_batch_size` is that of the first update.
    """
    rows: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for name in names("recipes"):
        try:
            opened = open_recipe(name, vocabulary=vocabulary, allow_code=allow_code)
        except RecipeError as error:
            problems += error.problems
        else:
            recipe = opened.recipe
            row = {
                "name": name,
                "title": recipe.title,
                "dataset": recipe.dataset,
                "model": opened.tree["model"]["kind"],
            }
            row |= {"epochs": recipe.epochs, "global_batch_size": recipe.batch.global_.sizes[0]}
            rows.append({**row, "source": dict(recipe.source)})
    return rows, problems


def copy_recipe(name: str, target: Path | None = None) -> Path:
    """Copies a recipe's file, comments included.

    A first line names the original. The `source` that it inherits in the library, and a copy does not, comes last.

    Args:
        name: of the recipe.
        target: the new file; by default the recipe's file name in the working directory.
    Raises:
        RecipeError: there is no such recipe, or the new file exists, has another suffix or cannot be written.
    """
    source = find_or_refuse("recipes", name)
    if path_of_pack(name) != name:
        way_out = "write a file with `kilobatch: 1`, `extends: REGISTRY/NAME@VERSION` and your own values"
        raise RecipeError([Problem(file=name, what="the recipe of a pack lies beside its data set", way_out=way_out)])
    target = target or Path(source.name)
    require_suffix(target)
    of = f"{shown(name)}, kilobatch {version('kilobatch')}"
    origin = f"# A copy of {of}. What you change is no longer what it claims.\n"
    try:
        with target.open("xb") as file:
            file.write(origin.encode() + source.read_bytes() + _inherited_source(source).encode())
    except OSError as error:
        reason = "exists, and a copy never overwrites" if isinstance(error, FileExistsError) else str(error.strerror)
        way_out = "give another name: kilobatch recipes copy NAME FILE.yaml"
        problem = Problem(file=shown(target), what=reason, way_out=way_out)
        raise RecipeError([problem]) from None
    return target


def _inherited_source(path: Path) -> str:
    """The `source` that a recipe of the library inherits, as YAML; empty where it has its own."""
    if not is_of_library(path) or re.search("^source:", path.read_text(encoding="utf-8"), re.MULTILINE):
        return ""
    tree, _ = load_tree(path)
    return f"source: {json.dumps(tree['source'], ensure_ascii=False)}\n" if "source" in tree else ""
