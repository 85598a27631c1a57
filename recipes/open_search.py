"""Opens a search: every path and both ends of every range are tried on the recipe before anything starts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.load import load_tree
from recipes.open import OpenedRecipe, open_recipe
from recipes.reading import REFUSED, Reading
from recipes.registry import UnknownNameError, find, find_or_refuse
from recipes.schema import Search
from recipes.vocabulary import Component, SearchVocabulary

__all__ = ["OpenedSearch", "assignments", "open_search"]

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# What names the run and not what it does; and what a search sets for itself.
_NOT_SEARCHED = {
    "name": "each trial has its own",
    "title": "each trial has its own",
    "claims": "each trial has its own",
    "card": "each trial has its own",
    "evaluation.every": "a trial is evaluated at its `reports`",
    "dataset": "it decides what the scores mean",
}


@dataclass(frozen=True, kw_only=True)
class OpenedSearch:
    """A search, checked.

    Args:
        search: as its file says.
        tree: resolved: every default filled in.
        enqueued: what is tried first, each a value for some paths or all.
        base: its recipe, with the fixed values.
        path: of the file.
    """

    search: Search
    tree: dict[str, Any]
    enqueued: tuple[dict[str, Any], ...]
    base: OpenedRecipe
    path: Path


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Values by their dotted paths, as `--set` takes them.

    >>> assignments({"learning_rate.reference": 1e-05, "optimizer.no_decay": ["norm"]})
    ['learning_rate.reference=1e-05', 'optimizer.no_decay=["norm"]']
    """
    return [f"{path}={json.dumps(value)}" for path, value in values.items()]


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
        allow_code, data_root: as of `open_recipe`.
    Raises:
        RecipeError: with all that is wrong with it, or with its recipe.
    """
    path = find_or_refuse("searches", str(name_or_path))
    tree, origins = load_tree(path)
    reading = Reading(origins=origins, vocabulary=vocabulary, may_lack=False)
    given = {key: value for key, value in tree.items() if key != "kilobatch"}
    if "name" not in given:
        given["name"] = path.stem
    search, resolved = reading.record(Search, given, (), using={"space": partial(_read_space, reading)})
    if search is not REFUSED and (not _NAME.fullmatch(search.name) or not search.name.strip(".")):
        way_out = "use letters, digits, `_`, `.` and `-`"
        reading.refuse(("name",), f"{search.name!r} cannot name a search's folder", way_out)
    if reading.problems:
        raise RecipeError(reading.problems)
    options = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    checks = _Checks(reading=reading, search=search, recipe=_recipe_file(reading, search, path), options=options)
    base = checks.base()
    checks.ends(base)
    enqueued = checks.enqueued(base)
    if reading.problems:
        raise RecipeError(reading.problems)
    return OpenedSearch(search=search, tree={"kilobatch": 1, **resolved}, enqueued=enqueued, base=base, path=path)


def _read_space(reading: Reading, raw: Any, path: tuple, _: Mapping[str, Any]) -> tuple[Any, Any]:
    if not isinstance(raw, dict) or not raw:
        way_out = "give at least one path, such as `learning_rate.reference: {kind: Float, low: 0.01, high: 1}`"
        return reading.refuse(path, "holds no paths", way_out), raw
    pairs = {name: reading.component(Component("ranges"), inner, (*path, name)) for name, inner in raw.items()}
    resolved = {name: tree for name, (_, tree) in pairs.items()}
    if any(value is REFUSED for value, _ in pairs.values()):
        return REFUSED, resolved
    return {name: value for name, (value, _) in pairs.items()}, resolved


def _recipe_file(reading: Reading, search: Search, path: Path) -> Path:
    """A path counts from the search's file, as that of `extends` does from a recipe's."""
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


@dataclass(frozen=True, kw_only=True)
class _Checks:
    """What a search says against what its recipe allows; problems go to `reading`."""

    reading: Reading
    search: Search
    recipe: Path
    options: dict[str, Any]

    def base(self) -> OpenedRecipe:
        """The recipe with the fixed values.

        Raises:
            RecipeError: it does not open, or a path is given twice.
        """
        search, fixed = self.search, list(self.search.fixed)
        for key in ("space", "fixed"):
            for path in getattr(search, key):
                self._require_free(key, path, [*search.space, *(fixed if key == "space" else [])])
        if self.reading.problems:
            raise RecipeError(self.reading.problems)
        try:
            return open_recipe(self.recipe, overrides=assignments(search.fixed), **self.options)
        except RecipeError as error:
            for problem in error.problems:
                if problem.file == "command line":
                    self._pass_on(("fixed", fixed[problem.line - 1]), problem)
                else:  # it has a place of its own
                    self.reading.problems.append(problem)
            raise RecipeError(self.reading.problems) from None

    def ends(self, base: OpenedRecipe) -> None:
        """Opens the recipe with each end of each range."""
        for path, range_ in self.search.space.items():
            found = {}
            for place, value in range_.ends.items():
                overrides = assignments({**self.search.fixed, path: value})
                try:
                    open_recipe(base.path, overrides=overrides, **self.options)
                except RecipeError as error:
                    found[place] = error.problems[0]
            same = len({(problem.what, problem.way_out) for problem in found.values()}) == 1
            if same and len(found) == len(range_.ends):  # not the values are wrong, but the path
                self._pass_on(("space", path), next(iter(found.values())), at_key=True)
            else:
                for place, problem in found.items():
                    self._pass_on(("space", path, *place), problem)

    def enqueued(self, base: OpenedRecipe) -> tuple[dict[str, Any], ...]:
        """What is tried first, value by value."""
        found = []
        for place, given in enumerate(self.search.enqueue):
            whole = given == "recipe"
            values = self._own_values(base, ("enqueue", place)) if whole else dict(given)
            for path, value in values.items():
                at = ("enqueue", place) if whole else ("enqueue", place, path)
                if path not in self.search.space:
                    self.reading.refuse(at, f"{path} is not in the space", "name a path of `space`, or use `fixed`")
                elif not self.search.space[path].holds(value):
                    what = f"{json.dumps(value)} of {path} is outside its range"
                    self.reading.refuse(at, what, f"widen space.{path}, or leave this out")
            found.append(values)
        return tuple(found)

    def _own_values(self, base: OpenedRecipe, at: tuple) -> dict[str, Any]:
        """The recipe's values at the paths of the space."""
        values = {}
        for path in self.search.space:
            try:
                values[path] = _value_at(base.tree, path)
            except LookupError:
                self.reading.refuse(at, f"the recipe has no value at {path}", "enqueue values of your own")
        return values

    def _require_free(self, key: str, path: str, taken: list[str]) -> None:
        """Refuse a path that is reserved, or that lies inside another one of the search."""
        at = (key, path)
        for reserved, why in _NOT_SEARCHED.items():
            clash = key == "space" or reserved == "evaluation.every"
            if clash and (path == reserved or path.startswith(f"{reserved}.") or reserved.startswith(f"{path}.")):
                self.reading.refuse(at, f"cannot be part of a search: {why}", "remove it", at_key=True)
        for other in taken:
            if path.startswith(f"{other}.") or (key == "fixed" and path == other):
                self.reading.refuse(at, f"is given by {other} of this search too", "keep one of the two", at_key=True)

    def _pass_on(self, at: tuple, problem: Problem, *, at_key: bool = False) -> None:
        """A problem of the recipe at the place in the search that brings it about."""
        name = at[1]
        value = f"{problem.path} " if problem.path and problem.path != name else ""
        self.reading.refuse(at, f"the recipe refuses this: {value}{problem.what}", problem.way_out, at_key=at_key)


def _value_at(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree[int(key)] if isinstance(tree, list) and key.isdigit() else tree[key]
    return tree
