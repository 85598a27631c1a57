"""The identity of a training: one digest for each of its recipe, the user's own code, and the data.

Two trainings are the same if all three are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.reading.load import RENAMED, renamed
from recipes.reading.open import OpenedRecipe
from recipes.reading.tree_diff import UNORDERED, WORDS, comparable_tree, is_ramp, ramp_steps
from recipes.sharing.canonical import digest_of

_SCHEMA = 1  # in which recipes are written to be compared, whatever version the program reads


def recipe_id(opened: OpenedRecipe) -> str:
    """SHA-256 of what a recipe trains: equal for every spelling of it, see `identity_tree`."""
    return digest_of(identity_tree(opened))


def identity_tree(opened: OpenedRecipe, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The resolved recipe and the facts of its data set as they decide the training.

    Left out are texts for people (title, claims, card and the like), where the data lie, and values without an effect.
    A ramp of one step is a number, the start of a warmup is a factor, and names whose order has no meaning are sorted.

    Args:
        without: keys of the recipe that are left out too, such as `seed`.
    """
    rate = dict(opened.tree["learning_rate"])
    kind = opened.tree["optimizer"]["kind"]
    if rate["rule"] == "none" and kind != "AdaScale":  # whose gain ends at the batch over `per`
        del rate["per"]
    if rate.get("warmup") and (starts := getattr(opened.recipe.learning_rate.warmup.shape, "start", None)) is not None:
        rate["warmup"] = {**rate["warmup"], "start": starts}
    tree = {**opened.tree, "learning_rate": rate}
    return {"schema": _SCHEMA, "recipe": training_tree(tree, opened.dataset_tree, without=without)}


def training_tree(
    recipe: Mapping[str, Any], dataset: Mapping[str, Any], *, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """A resolved recipe, with the facts of its data set, without texts for people and the keys `without`."""
    tree = comparable_tree(recipe, dataset)
    kept = {key: _plain(value, key) for key, value in tree.items() if key not in (*WORDS, *without)}
    for names in reversed(RENAMED.values()):
        for before, since in names.items():
            kept = renamed(kept, since, before)
    return kept


def identity_ids(opened: OpenedRecipe, made_of: Mapping[str, Any]) -> dict[str, str | None]:
    """The three digests of a training.

    Args:
        made_of: `code` and `data`, SHA-256 by file and by part; no `data` where there are none here.
    Returns:
        `recipe`, `code` (None without own code) and `data` (None if they are not here).
    """
    digests = {what: digest_of(made_of[what]) if made_of.get(what) else None for what in ("code", "data")}
    return {"recipe": recipe_id(opened), **digests}


def _plain(value: Any, key: str) -> Any:
    if is_ramp(value):
        steps = [[float(start.removeprefix("from ")), size] for start, (size, _) in ramp_steps(value).items()]
        return steps[0][1] if len(steps) == 1 else steps
    if isinstance(value, Mapping):
        return {inner: _plain(item, inner) for inner, item in value.items()}
    if isinstance(value, list):
        items = [_plain(item, key) for item in value]
        return sorted(items) if key in UNORDERED and all(isinstance(item, str) for item in items) else items
    return value
