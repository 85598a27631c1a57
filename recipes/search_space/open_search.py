"""Opens a search and tries every path and both ends of every range on the recipe before anything starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from recipes.errors import Problem, RecipeError, refuse_unreachable
from recipes.reading.checks import unknown_score
from recipes.reading.load import load_tree
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.reading.read import REFUSED, Reading, value_at
from recipes.reading.registry import UnknownNameError, can_name_folder, find, find_or_refuse
from recipes.reading.yaml import flow_text
from recipes.schema import Objective, Search
from recipes.schema.constraints import Expression
from recipes.schema.search import is_of_recipe
from recipes.schema.vocabulary import Component, SearchVocabulary, lower_is_better, metric_name
from recipes.search_space.ranges import active_values, condition_values, is_active, refuse_conditions, values_text

_COMPLEMENT = "1 - "  # before a path: the range is that of what its value lacks of 1

# Paths that a search may not have.
_NOT_SEARCHED = {
    "evaluation.every": "a trial is evaluated at its `reports`",
    "dataset": "it decides what the scores mean",
    "evaluation.held_out": "it decides by which samples trials are scored; `fixed` may have it",
    "stop_at": "a trial ends at its objective's `target`",
}


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Values by their dotted paths, as `--set` takes them: every `kind` first, since it replaces the keys beside it.

    >>> assignments({"optimizer.weight_decay": 1e-05, "optimizer.kind": "Lars", "optimizer.no_decay": ["norm"]})
    ['optimizer.kind="Lars"', 'optimizer.weight_decay=1e-05', 'optimizer.no_decay=["norm"]']
    >>> assignments({"1 - optimizer.momentum": 0.125})
    ['optimizer.momentum=0.875']
    """
    return [
        f"{plain_path(path)}={flow_text(1 - values[path] if path.startswith(_COMPLEMENT) else values[path])}"
        for path in _kinds_first(values)
    ]


def plain_path(path: str) -> str:
    """The path in the recipe of a path of the space, which may begin with `1 - `."""
    return path.removeprefix(_COMPLEMENT)


def value_in(recipe: Mapping[str, Any], path: str) -> Any:
    """What a resolved recipe has for a path of the space; LookupError where it has none, or after `1 - ` no number."""
    value = value_at(recipe, plain_path(path))
    if not path.startswith(_COMPLEMENT):
        return value
    if not is_number(value):
        raise LookupError(path)
    return round(1 - value, 12)  # 1 - 0.9 is 0.1


def is_number(value: object) -> bool:
    """Whether a value of a recipe is a number, which true and false are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True, kw_only=True)
class OpenedSearch:
    """A search, checked."""

    search: Search
    tree: dict[str, Any]  # resolved: every default filled in
    enqueued: tuple[dict[str, Any], ...]  # the trials to try first, each with values for some or all paths
    base: OpenedRecipe  # its recipe, with the fixed values and those of `valid_point`
    valid_point: dict[str, Any]  # of the space, where the fixed values are valid only together with one
    path: Path
    options: dict[str, Any]  # of `open_recipe` and `open_search`: vocabulary, allow_code, data_root

    def base_now(self) -> OpenedRecipe:
        """Its recipe as `base` was opened, from the files as they are now."""
        given = assignments({**self.search.fixed, **self.valid_point})
        return open_recipe(self.base.path, overrides=given, **self.options)


@refuse_unreachable()
def open_search(
    name_or_path: str | Path,
    *,
    vocabulary: SearchVocabulary,
    allow_code: bool = False,
    data_root: Path | None = None,
    of_run: bool = False,
) -> OpenedSearch:
    """A search by its name or the path of its file; `vocabulary` and the rest as for `open_recipe`.

    Raises:
        RecipeError: with all problems of the search, or of its recipe.
    """
    path = find_or_refuse("searches", str(name_or_path))
    tree, origins = load_tree(path, kind="search")
    reading = Reading(origins=origins, vocabulary=vocabulary, may_lack=False, allow_code=allow_code)
    search, resolved = read_search(reading, {"name": path.stem} | tree)
    options = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    options |= {"of_run": True} if of_run else {}
    recipe = recipe_file(reading, search.recipe, path)
    checks = SearchChecks(reading=reading, search=search, recipe=recipe, options=options)
    base, point = checks.base()
    checks.constraints(base)
    search = replace(search, objective=checks.objectives(base))
    unsure = dict.fromkeys((*base.unsure, *checks.ends(point)))
    enqueued = checks.enqueued(base, point)
    if reading.problems:
        raise RecipeError(reading.problems)
    return OpenedSearch(
        search=search,
        tree={"kilobatch": 1, **resolved},
        enqueued=enqueued,
        base=replace(base, unsure=tuple(unsure)),
        valid_point=active_values(search.space, point.__getitem__),
        path=path,
        options=options,
    )


def read_search(reading: Reading, tree: Mapping[str, Any]) -> tuple[Search, dict[str, Any]]:
    """A search's tree, without its recipe, as object and resolved tree, or RecipeError with all problems."""
    several = isinstance(tree.get("objective"), list)
    using = {
        "space": partial(read_space, reading),
        "objective": lambda raw, at, _: reading.value(tuple[Objective, ...] if several else Objective, raw, at),
    }
    search, resolved = reading.record(Search, tree, (), using=using, beside=("kilobatch",))
    if search is not REFUSED:
        require_folder_name(reading, search.name)
        refuse_conditions(reading, search.space)
    if reading.problems:
        raise RecipeError(reading.problems)
    return search, resolved


def require_folder_name(reading: Reading, name: str) -> None:
    """Refuse a name that cannot name a folder."""
    if not can_name_folder(name):
        way_out = "use letters, digits, `_`, `.` and `-`, at most 200"
        reading.refuse(("name",), f"{name!r} cannot name a folder", way_out)


def read_space(reading: Reading, raw: Any, path: tuple, _: Mapping[str, Any]) -> tuple[Any, Any]:
    """A space: path -> range."""
    if not isinstance(raw, dict) or not raw:
        way_out = "give at least one path, such as `learning_rate.reference: {kind: Float, low: 0.01, high: 1}`"
        return reading.refuse(path, "holds no paths", way_out), raw
    space, resolved = {}, {}
    for name, inner in raw.items():
        space[name], resolved[name] = reading.component(Component("ranges"), inner, (*path, name))
    return REFUSED if REFUSED in space.values() else space, resolved


def recipe_file(reading: Reading, name: str, path: Path) -> Path:
    """The file of the recipe that a search or frontier at `path` names; a path is relative to it, as in `extends`."""
    try:
        return find("recipes", str(path.parent / name) if name.endswith((".yaml", ".yml")) else name)
    except UnknownNameError as error:
        reading.refuse(("recipe",), error.what, error.way_out)
    raise RecipeError(reading.problems)


@dataclass(frozen=True, kw_only=True)
class SearchChecks:
    """The checks, in their order, with the options of `open_recipe`; problems go to `reading`.

    Their `point` is the first end of each range, where the fixed values are valid only with such values; else empty.
    """

    reading: Reading
    search: Search
    recipe: Path
    options: dict[str, Any]

    def base(self) -> tuple[OpenedRecipe, dict[str, Any]]:
        """The recipe with the fixed values, and the point; RecipeError: it does not open, or a path is given twice."""
        search, point = self.search, {}
        for key in ("space", "fixed"):
            for path in getattr(search, key):
                self._require_free(key, path)
        if self.reading.problems:
            raise RecipeError(self.reading.problems)
        try:
            base = self._opened({})
        except RecipeError:
            point = {path: next(iter(range_.ends.values())) for path, range_ in search.space.items()}
            active = active_values(search.space, point.__getitem__)
            places = {path: ("fixed", path) for path in search.fixed}
            places |= {path: ("space", path, *next(iter(search.space[path].ends))) for path in active}
            try:
                base = self._opened(point)
            except RecipeError as error:
                for problem in error.problems:
                    if problem.file == "command line":
                        self._pass_on(places[_kinds_first(places)[problem.line - 1]], problem)
                    else:  # it has a line of its own
                        self.reading.problems.append(problem)
                raise RecipeError(self.reading.problems) from None
        if base.recipe.stop_at is not None:
            way_out = "give `fixed: {stop_at: null}`; for a goal `objective: {metric: updates_to, target: 0.9}`"
            self.reading.refuse(("recipe",), "ends at its `stop_at`, where trials cannot be compared", way_out)
        return base, point

    def ends(self, point: Mapping[str, Any]) -> tuple[str, ...]:
        """Opens the recipe with each end of each range; of a conditional one, under each combination of conditions.

        Returns:
            What is then `unsure` of the recipe.
        """
        unsure: list[str] = []
        for path, range_ in self.search.space.items():
            problems = {}
            for index, value in range_.ends.items():
                for given in condition_values(self.search.space, path):
                    try:
                        unsure += self._opened({**point, **given, path: value}).unsure
                    except RecipeError as error:
                        first, with_ = error.problems[0], f" with {values_text(given)}" if given else ""
                        problems[index] = replace(first, what=first.what + with_)
            same = len({(problem.what, problem.way_out) for problem in problems.values()}) == 1
            if same and len(problems) == len(range_.ends):  # the path is wrong, not its values
                self._pass_on(("space", path), next(iter(problems.values())), at_key=True)
            else:
                for index, problem in problems.items():
                    self._pass_on(("space", path, *index), problem)
        return tuple(unsure)

    def objectives(self, base: OpenedRecipe) -> Objective | tuple[Objective, ...]:
        """The objectives, told by the recipe's metrics which values are better; notes metrics that it does not have."""
        metrics, several, made = base.recipe.evaluation.metrics, isinstance(self.search.objective, tuple), []
        known = ("accuracy", "loss", *map(metric_name, metrics), "train_loss", "device_hours")
        named = [(("objective", at) if several else ("objective",), it) for at, it in enumerate(self.search.objectives)]
        named += [(("constraints", at), it) for at, it in enumerate(self.search.constraints) if it.metric]
        for place, it in named:
            if is_of_recipe(it.metric) and it.metric not in known:
                self.reading.refuse((*place, "metric"), *unknown_score(it.metric, known))
        for it in self.search.objectives:
            lower = it.higher_is_better is None and is_of_recipe(it.metric) and lower_is_better(it.metric, metrics)
            made.append(replace(it, higher_is_better=False) if lower else it)
        return tuple(made) if several else made[0]

    def constraints(self, base: OpenedRecipe) -> None:
        """Every path of a constraint is in the space, or has a number in the recipe."""
        for index, constraint in enumerate(self.search.constraints):
            paths = Expression(constraint.value).paths if constraint.value is not None else ()
            for path in filter(lambda path: path not in self.search.space, paths):
                at = ("constraints", index, "value")
                try:
                    Expression(path)(partial(value_at, base.tree))
                except LookupError:
                    self.reading.refuse(at, f"the recipe has no value at {path}", "name a path that it has")
                except ValueError as error:
                    self.reading.refuse(at, str(error), "name a path that holds a number")

    def enqueued(self, base: OpenedRecipe, point: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """The values of each trial that is tried first."""
        trials, space = [], self.search.space
        for index, given in enumerate(self.search.enqueue):
            at, way_out = ("enqueue", index), "enqueue values of your own"
            if given == "recipe":
                values = active_values(space, partial(value_in, base.tree))
                places = dict.fromkeys(values, at)
                if point:
                    self.reading.refuse(at, "the recipe is not valid with `fixed`", way_out)
                for path in [path for path in space if path not in values and not space[path].when]:
                    self.reading.refuse(at, f"the recipe has no value at {path}", way_out)
            else:
                values, places = dict(given), {path: (*at, path) for path in given}
            for path, value in values.items():
                place = places[path]
                if path not in space:
                    self.reading.refuse(place, f"{path} is not in the space", "name a path of `space`, or use `fixed`")
                elif not space[path].holds(value):
                    what = f"{json.dumps(value)} of {path} is outside its range"
                    self.reading.refuse(place, what, f"widen space.{path}, or leave this out")
                elif not is_active(space, path, values):
                    way_out = f"give {values_text(condition_values(space, path)[0])} beside it"
                    self.reading.refuse(place, f"a trial has {path} only with others", way_out)
            trials.append(values)
        return tuple(trials)

    def _opened(self, values: Mapping[str, Any]) -> OpenedRecipe:
        """The recipe with the fixed values, and those of these that are active."""
        active = active_values(self.search.space, values.__getitem__)
        return open_recipe(self.recipe, overrides=assignments({**self.search.fixed, **active}), **self.options)

    def _require_free(self, key: str, path: str) -> None:
        """Refuse a path that is reserved, or is given twice, also by a path above it, or lacks numbers after `1 - `."""
        at, own, path, space = (key, path), path, plain_path(path), self.search.space
        values = space[own].ends.values() if key == "space" else [self.search.fixed[own]]
        if own != path and not all(map(is_number, values)):
            self.reading.refuse(at, "takes numbers only", f"write {path}, without `{_COMPLEMENT}`", at_key=True)
        if path == own and own.replace(" ", "").startswith("1-"):
            way_out = f"write {_COMPLEMENT}{own.partition('-')[2].strip()}, with a blank on each side"
            self.reading.refuse(at, "is no path of a recipe", way_out, at_key=True)
        for reserved, why in _NOT_SEARCHED.items():
            # An older version searched over some of them: `of_run` opens it, so that the error can say so.
            clash = (key == "space" and not self.options.get("of_run")) or reserved == "evaluation.every"
            if clash and (path == reserved or path.startswith(f"{reserved}.") or reserved.startswith(f"{path}.")):
                self.reading.refuse(at, f"cannot be part of a search: {why}", "remove it", at_key=True)
        for given in [*space, *(self.search.fixed if key == "space" else ())]:
            other = plain_path(given)
            # A conditional range may have a fixed value too, for the trials that do not search it.
            twice = path == other and given in space and (given != own if key == "space" else not space[given].when)
            if twice or path.startswith(f"{other}."):
                self.reading.refuse(at, f"is given by {other} of this search too", "keep one of the two", at_key=True)

    def _pass_on(self, at: tuple, problem: Problem, *, at_key: bool = False) -> None:
        """Notes a problem of the recipe at the value of the search that causes it."""
        value = f"{problem.path} " if problem.path not in ("", at[1]) else ""
        self.reading.refuse(at, f"the recipe refuses this: {value}{problem.what}", problem.way_out, at_key=at_key)


def _kinds_first(paths: Mapping[str, Any]) -> list[str]:
    """The paths of kinds, outer ones first, then all others in their order."""
    kinds = [path for path in paths if path.rpartition(".")[2] == "kind"]
    return sorted(kinds, key=lambda path: path.count(".")) + [path for path in paths if path not in kinds]
