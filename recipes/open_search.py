"""Opens a search, and tries every path and both ends of every range on the recipe before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipes.conditional import refuse_conditions
from recipes.errors import RecipeError, refuse_unreachable
from recipes.load import load_tree
from recipes.open import OpenedRecipe
from recipes.reading import REFUSED, Reading
from recipes.registry import UnknownNameError, can_name_folder, find, find_or_refuse
from recipes.schema import Objective, Search
from recipes.search_checks import SearchChecks, assignments
from recipes.vocabulary import Component, SearchVocabulary

__all__ = ["OpenedSearch", "assignments", "open_search"]


@dataclass(frozen=True, kw_only=True)
class OpenedSearch:
    """A search, checked.

    Args:
        search: as in its file.
        tree: resolved: every default filled in.
        enqueued: the trials to try first, each with values for some or all paths.
        base: its recipe, with the fixed values.
        path: of the file.
    """

    search: Search
    tree: dict[str, Any]
    enqueued: tuple[dict[str, Any], ...]
    base: OpenedRecipe
    path: Path


@refuse_unreachable()
def open_search(
    name_or_path: str | Path,
    *,
    vocabulary: SearchVocabulary,
    allow_code: bool = False,
    data_root: Path | None = None,
) -> OpenedSearch:
    """A search by its name or the path of its file.

    Args:
        name_or_path: such as `digits` or `./mine.yaml`.
        vocabulary: what `kind` may be.
        allow_code, data_root: as for `open_recipe`.
    Raises:
        RecipeError: with all problems of the search, or of its recipe.
    """
    path = find_or_refuse("searches", str(name_or_path))
    reading, search, resolved = _read(path, vocabulary)
    options = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    checks = SearchChecks(reading=reading, search=search, recipe=_recipe_file(reading, search, path), options=options)
    base = checks.base()
    checks.constraints(base, checks.ends(base))
    checks.sampler()
    checks.pruner()
    enqueued = checks.enqueued(base)
    if reading.problems:
        raise RecipeError(reading.problems)
    return OpenedSearch(search=search, tree={"kilobatch": 1, **resolved}, enqueued=enqueued, base=base, path=path)


def _read(path: Path, vocabulary: SearchVocabulary) -> tuple[Reading, Search, dict[str, Any]]:
    """A search's file, without its recipe, as object and resolved tree."""
    tree, origins = load_tree(path)
    reading = Reading(origins=origins, vocabulary=vocabulary, may_lack=False)
    given = {key: value for key, value in tree.items() if key != "kilobatch"}
    if "name" not in given:
        given["name"] = path.stem
    using = {"space": partial(_read_space, reading), "objective": partial(_read_objective, reading)}
    search, resolved = reading.record(Search, given, (), using=using)
    if search is not REFUSED and not can_name_folder(search.name):
        way_out = "use letters, digits, `_`, `.` and `-`, at most 200"
        reading.refuse(("name",), f"{search.name!r} cannot name a search's folder", way_out)
    if search is not REFUSED:
        refuse_conditions(reading, search.space)
    if reading.problems:
        raise RecipeError(reading.problems)
    return reading, search, resolved


def _read_space(reading: Reading, raw: Any, path: tuple, _: Mapping[str, Any]) -> tuple[Any, Any]:
    if not isinstance(raw, dict) or not raw:
        way_out = "give at least one path, such as `learning_rate.reference: {kind: Float, low: 0.01, high: 1}`"
        return reading.refuse(path, "holds no paths", way_out), raw
    pairs = {name: reading.component(Component("ranges"), inner, (*path, name)) for name, inner in raw.items()}
    resolved = {name: tree for name, (_, tree) in pairs.items()}
    if any(value is REFUSED for value, _ in pairs.values()):
        return REFUSED, resolved
    return {name: value for name, (value, _) in pairs.items()}, resolved


def _read_objective(reading: Reading, raw: Any, path: tuple, _: Mapping[str, Any]) -> tuple[Any, Any]:
    return reading.value(tuple[Objective, ...] if isinstance(raw, list) else Objective, raw, path)


def _recipe_file(reading: Reading, search: Search, path: Path) -> Path:
    """The recipe's file; a path is relative to the search's file, as in `extends`."""
    name = search.recipe
    beside = path.parent / name
    if name.endswith((".yaml", ".yml")):
        if beside.is_file():
            return beside
        reading.refuse(("recipe",), f"there is no file {name}", "the path counts from the search's file")
        raise RecipeError(reading.problems)
    try:
        return find("recipes", name)
    except UnknownNameError as error:
        reading.refuse(("recipe",), error.what, error.way_out)
        raise RecipeError(reading.problems) from None
