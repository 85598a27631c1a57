"""Opens a frontier and tries every method's space on the recipe, at the smallest and at the largest batch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from recipes.errors import RecipeError, refuse_unreachable
from recipes.planning.division import nearest_divisor
from recipes.planning.rates import full_rate
from recipes.reading.load import Origins, load_tree
from recipes.reading.open import OpenedRecipe
from recipes.reading.read import REFUSED, Reading
from recipes.reading.registry import can_name_folder, find_or_refuse, library_name
from recipes.schema import Frontier, Ladder, Method
from recipes.schema.vocabulary import SearchVocabulary
from recipes.search_space.open_search import (
    SearchChecks,
    read_search,
    read_space,
    recipe_file,
    require_folder_name,
)
from recipes.search_space.ranges import short

RATE = "learning_rate.reference"


@dataclass(frozen=True, kw_only=True)
class OpenedFrontier:
    """A frontier, checked.

    Args:
        tree: resolved: every default filled in.
        recipe: its recipe's file.
        bases: method -> the recipe with its fixed values, at the recipe's own batch.
        options: arguments of `open_recipe` by which the recipe was opened.
    """

    frontier: Frontier
    tree: dict[str, Any]
    recipe: Path
    bases: Mapping[str, OpenedRecipe]
    path: Path
    options: dict[str, Any]

    def search_tree(self, method: str, batch: int | None) -> dict[str, Any]:
        """The file of a point's search as plain data, without values to try first; None is the recipe's own batch."""
        frontier, own = self.frontier, {}
        if batch is not None:
            span, longest = self.norm_span(method, batch), self.longest(method, batch)[0]
            own = {"batch.global": batch, "batch.norm_span": span, "epochs": longest}
        few = frontier.quasi_random or -(-frontier.budget.trials // 2)
        objective = {"metric": "accuracy"}
        if (target := frontier.goal.target) is not None:
            objective = {"metric": "updates_to", "target": target, "spacing": frontier.spacing}
        return {
            "kilobatch": 1,
            "name": f"{frontier.name}-{method}-{batch or 'own'}",
            "title": f"{str(frontier.goal).capitalize()}: {method} at batch {batch}",
            "recipe": library_name(self.recipe) or str(self.recipe.resolve()),
            "objective": objective,
            "space": {**self.tree["space"], **self.tree["methods"].get(method, {}).get("space", {})},
            "fixed": {**frontier.fixed, **frontier.all_methods[method].fixed, **own},
            "sampler": {"kind": "TPESampler", "n_startup_trials": few, "multivariate": True},
            "budget": {"trials": frontier.budget.trials},
            "confirm": {"top": 1, "seeds": frontier.seeds} if frontier.seeds else None,
            "ranks_per_trial": frontier.ranks_per_trial,
            "retries": frontier.retries,
            "reports": math.ceil(1 / frontier.spacing),
            "seed": frontier.seed,
        }

    def norm_span(self, method: str, batch: int) -> int:
        """That of the recipe, or the nearest number of samples that divides the batch, as `recipes scale` takes it."""
        recipe = self.bases[method].recipe
        compares = getattr(recipe.optimizer, "needs_group_gradients", False) and batch != recipe.learning_rate.per
        most = batch // 2 if compares and batch > 1 else batch
        return nearest_divisor(min(recipe.batch.norm_span.sizes), [batch], most=most)

    def longest(self, method: str, batch: int) -> tuple[str | float, int]:
        """The longest trial of a point, as the recipe's `epochs` and in updates."""
        goal, base = self.frontier.goal, self.bases[method]
        if goal.updates is not None:
            return f"{goal.updates}up", goal.updates
        limits = self.frontier.budget if goal.epochs is None else goal
        epochs = base.recipe.epochs if limits.epochs is None else limits.epochs
        updates = math.ceil(epochs * base.dataset.num_train / batch)
        if limits.updates is not None and limits.updates < updates:
            return f"{limits.updates}up", limits.updates
        return epochs, updates

    def rate_factor(self, method: str, batch: int) -> float:
        """The full rate at a batch, over `learning_rate.reference`."""
        formula = self.bases[method].recipe.learning_rate
        return full_rate(1.0, batch, rule=formula.rule, per=formula.per)


@refuse_unreachable()
def open_frontier(
    name_or_path: str | Path,
    *,
    vocabulary: SearchVocabulary,
    overrides: Sequence[str] = (),
    allow_code: bool = False,
    data_root: Path | None = None,
    of_run: bool = False,
) -> OpenedFrontier:
    """A frontier by its name or the path of its file.

    Args:
        name_or_path: such as `digits` or `./mine.yaml`.
        vocabulary: what `kind` may be.
        overrides: `a.b=c` as given to `--set`, of the frontier.
        allow_code, data_root, of_run: as for `open_recipe`.
    Raises:
        RecipeError: with the problems of the frontier, or of its recipe.
    """
    path = find_or_refuse("frontiers", str(name_or_path))
    tree, origins = load_tree(path, overrides=overrides, kind="frontier")
    reading = Reading(origins=origins, vocabulary=vocabulary, may_lack=False)
    using = {
        "space": partial(read_space, reading),
        "methods": partial(_read_methods, reading),
        "batches": lambda raw, at, _: reading.value(Ladder if isinstance(raw, dict) else tuple[int, ...], raw, at),
    }
    given = {"name": path.stem} | tree
    frontier, resolved = reading.record(Frontier, given, (), using=using, beside=("kilobatch",))
    if frontier is not REFUSED:
        require_folder_name(reading, frontier.name)
    if reading.problems:
        raise RecipeError(reading.problems)
    options = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    options |= {"of_run": True} if of_run else {}
    recipe, bases = recipe_file(reading, frontier.recipe, path), {}
    opened = OpenedFrontier(
        frontier=frontier,
        tree={"kilobatch": 1, **resolved},
        recipe=recipe,
        bases=bases,
        path=path,
        options=options,
    )
    for method in frontier.all_methods:
        view = replace(reading, origins=_of_method(origins, method))
        for name in (*frontier.fixed, *frontier.all_methods[method].fixed):
            if name != "batch.norm_span" and name.split(".")[0] == "batch":
                view.refuse(("fixed", name), "the frontier sets the batch", "give `batches`", at_key=True)
        for batch in (None, frontier.sizes[0], frontier.sizes[-1]):
            search, _ = read_search(view, opened.search_tree(method, batch))
            checks = SearchChecks(reading=view, search=search, recipe=recipe, options=options)
            base, point = checks.base()
            if batch is None:
                bases[method] = base
            else:
                unsure = dict.fromkeys((*bases[method].unsure, *base.unsure, *checks.ends(point)))
                bases[method] = replace(bases[method], unsure=tuple(unsure))
            if reading.problems:
                raise RecipeError(reading.problems)
    if not of_run:
        _require_reached_budgets(reading, opened)
    return opened


def _require_reached_budgets(reading: Reading, opened: OpenedFrontier) -> None:
    """Refuse budgets of `accuracy_at` that no trial comes to."""
    epochs, updates = 0.0, 0
    for method, batch in product(opened.bases, opened.frontier.sizes):
        whole, most = opened.longest(method, batch)
        made = most * batch / opened.bases[method].dataset.num_train if isinstance(whole, str) else whole
        epochs, updates = max(epochs, made), max(updates, most)
    for unit, longest in (("epochs", epochs), ("updates", updates)):
        for index, budget in enumerate(getattr(opened.frontier.accuracy_at, unit)):
            if budget > longest:
                what = f"is {budget:g}, and no trial is longer than {short(longest)} {unit}"
                reading.refuse(("accuracy_at", unit, index), what, "give less, or a larger `budget`")
    if reading.problems:
        raise RecipeError(reading.problems)


def _read_methods(reading: Reading, raw: Any, path: tuple, _: Mapping[str, Any]) -> tuple[Any, Any]:
    if not isinstance(raw, dict) or not raw:
        way_out = "give each a name, such as `momentum: {fixed: {optimizer.momentum: 0.9}}`, or leave `methods` out"
        return reading.refuse(path, "holds no methods", way_out), raw
    methods, resolved = {}, {}
    for name, inner in raw.items():
        if inner is None:  # `--set methods.momentum=null` takes one away
            continue
        if not can_name_folder(str(name)):
            reading.refuse((*path, name), f"{name!r} cannot name a folder", "use letters, digits, `_` and `-`")
        given = {key: value for key, value in inner.items() if value != {}} if isinstance(inner, dict) else inner
        using = {"space": partial(read_space, reading)}
        methods[name], resolved[name] = reading.record(Method, given, (*path, name), using=using)
    return (REFUSED if REFUSED in methods.values() else methods), resolved


def _of_method(origins: Origins, method: str) -> Origins:
    """The origins of a frontier's values, where the search of a point of this method has them."""
    own = {path[2:]: origin for path, origin in origins.items() if path[:2] == ("methods", method) and path[2:]}
    set_by = {"batch.global": "batches", "batch.norm_span": "batches", "epochs": "budget"}
    given = {("fixed", name): origins[(key,)] for name, key in set_by.items() if (key,) in origins}
    return {**given, **origins, **own}
