"""Reads a recipe from its merged tree, and checks its values against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from recipes.divisors import largest_divisor
from recipes.image_size import check_image_size
from recipes.reading import REFUSED, Reading
from recipes.reading_rate import RateReading
from recipes.reading_time import TimeReading
from recipes.registry import can_name_folder
from recipes.schema import Dataset, Recipe
from recipes.vocabulary import Vocabulary

__all__ = ["read_recipe"]


def read_recipe(
    reading: Reading, tree: Mapping[str, Any], *, stem: str, open_dataset: Callable[[str], Dataset]
) -> tuple[Recipe, Dataset, dict[str, Any]]:
    """A recipe from its merged tree.

    Args:
        reading: with the tree's origins; takes the problems.
        tree: as `load_tree` gives it.
        stem: name of the recipe's file, for a recipe that has no name.
        open_dataset: name -> facts; its RecipeError or UnknownNameError is noted at `dataset`.
    Returns:
        The recipe, its data set, and the tree with every default; the first two are REFUSED if they have problems.
    """
    given = {key: value for key, value in tree.items() if key != "kilobatch"}
    if "name" not in given:
        given["name"] = stem
        reading.notes[("name",)] = "rule: the name of the file"
    lacks = given.get("lacks")
    reading.lacks = tuple(name for name in lacks if isinstance(name, str)) if isinstance(lacks, list) else ()
    time = TimeReading(reading=reading, open_dataset=open_dataset)
    using = {
        "dataset": time.read_dataset,
        "epochs": partial(time.read_epochs, global_=_inside(given, "batch", "global")),
        "batch": time.read_batch,
        "image_size": time.read_image_size,
        "learning_rate": RateReading(reading=reading, time=time).read,
    }
    recipe, resolved = reading.record(Recipe, given, (), using=using)
    if recipe is not REFUSED:
        _check(reading, recipe, resolved)
        _check_comparison(reading, recipe)
        _check_augmentation(reading, recipe, time.dataset)
        check_image_size(reading, recipe)
    return recipe, time.dataset, {"kilobatch": 1, **resolved}


def _inside(tree: object, *keys: str) -> object:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _check(reading: Reading, recipe: Recipe, resolved: Mapping[str, Any]) -> None:
    """Checks of values that are valid one by one, but not together."""
    if not can_name_folder(recipe.name):
        by_file = ("name",) in reading.notes
        add = "add a `name:` of" if by_file else "use"
        way_out = f"{add} the letters a to z and A to Z, digits, `_`, `.` and `-`, at most 200"
        reading.refuse(("name",), f"{recipe.name!r} cannot name a run's folder", way_out)
    if recipe.seed < 0:
        reading.refuse(("seed",), f"is {recipe.seed}", "must be 0 or more")
    if recipe.updater.double_buffering and getattr(recipe.optimizer, "needs_group_gradients", False):
        kind = type(recipe.optimizer).__name__
        way_out = "set it to false, or choose another optimizer"
        reading.refuse(("updater", "double_buffering"), f"{kind} sets its rate by the gradient it applies", way_out)
    for place, name in enumerate(recipe.lacks):
        if _is_built(name, reading.vocabulary):
            reading.refuse(("lacks", place), f"{name} is built", "remove it from `lacks`")
    for key in ("assumed", "open"):
        for place, path in enumerate(getattr(recipe, key)):
            if not _exists(resolved, path.split(".")):
                reading.refuse((key, place), f"there is no value at {path}", "name a path that `show` prints")


def _check_comparison(reading: Reading, recipe: Recipe) -> None:
    """An optimizer that compares norm groups needs several in an update, unless its batch is the reference batch."""
    batch = recipe.batch
    if not getattr(recipe.optimizer, "needs_group_gradients", False):
        return
    for start, size in zip(batch.global_.boundaries, batch.global_.sizes, strict=True):
        if batch.norm_span(start) == size != recipe.learning_rate.per:
            compares = f"{type(recipe.optimizer).__name__} compares the gradients of norm groups"
            way_out = "choose a larger batch"
            if size > 1:
                way_out = f"{largest_divisor(size // 2, batch.global_.sizes)} would do"
            what = f"{compares}, and the batch of {size} from {start:g} on is one group"
            reading.refuse(("batch", "norm_span"), what, way_out)
            return


def _check_augmentation(reading: Reading, recipe: Recipe, dataset: Dataset) -> None:
    """An augmentation must fit the augmentations before it and the data set: see `trainers.augmentations`."""
    for split in ("train", "eval"):
        scaled_by = None
        for place, entry in enumerate(getattr(recipe.augmentation, split)):
            path = ("augmentation", split, place)
            if scaled_by and getattr(entry, "needs_pixels", False):
                what = f"stands after {scaled_by}, whose result is no longer in 0..255"
                reading.refuse((*path, "kind"), what, f"put it before {scaled_by}")
            if getattr(entry, "scales_pixels", False):
                scaled_by = type(entry).__name__
            try:
                if hasattr(entry, "require_channels"):
                    entry.require_channels(dataset.channels)
                if hasattr(entry, "bound"):
                    entry.bound(name=dataset.name, mean=dataset.mean, std=dataset.std)
            except ValueError as error:
                reading.refuse_error(error, type(entry), path)


def _is_built(name: str, vocabulary: Vocabulary) -> bool:
    return any(name in getattr(vocabulary, field.name) for field in dataclasses.fields(vocabulary))


def _exists(tree: Any, keys: list[str]) -> bool:
    for key in keys:
        if isinstance(tree, list) and key.isdecimal() and int(key) < len(tree):
            tree = tree[int(key)]
        elif isinstance(tree, dict) and key in tree:
            tree = tree[key]
        else:
            return False
    return True
