"""Progressive resizing: an image size that changes over the run, and the augmentations that use it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from recipes.schema.recipe import Recipe
from recipes.schema.vocabulary import Unbuilt

IMAGE_SIZE = "image_size"  # value of an augmentation's `size` that stands for the recipe's `image_size`

_Entry = TypeVar("_Entry")


def keys_of_image_size(entry: object) -> list[str]:
    """The keys of an augmentation whose value stands for the recipe's `image_size`, such as `size`."""
    fields = entry.fields if isinstance(entry, Unbuilt) else vars(entry) if dataclasses.is_dataclass(entry) else {}
    return [key for key, value in fields.items() if isinstance(value, str) and value == IMAGE_SIZE]


def at_image_size(entry: _Entry, size: int) -> _Entry:
    """An augmentation with `size` pixels in place of `image_size`; the same object if it does not use it."""
    keys = [] if isinstance(entry, Unbuilt) else keys_of_image_size(entry)
    return dataclasses.replace(entry, **dict.fromkeys(keys, size)) if keys else entry


def image_sizes(recipe: Recipe, *, known: bool = False) -> list[int | None]:
    """Side of the images that the model is trained on in pixels, for each step of the recipe's `image_size`.

    It is the `size` of the last augmentation that has one, or the `shorter` of a `Resize` behind it; else None. An
    augmentation whose `size` is not that of its output says so by a class attribute `keeps_size = True`.

    Args:
        known: None also where an augmentation of the user's own behind that one, without `size` and `keeps_size`, may
            change the size; else it is taken to keep it.
    """
    side_of = _known_side if known else _side
    if recipe.image_size is None:
        return [side_of(recipe.augmentation.train)]
    steps = recipe.image_size.sizes
    sides = [side_of([at_image_size(part, size) for part in recipe.augmentation.train]) for size in steps]
    return sides if known else [side or size for side, size in zip(sides, steps, strict=True)]


def sides_by_size(recipe: Recipe) -> dict[int | None, int | None]:
    """Side of the images that the model is trained on, by the recipe's `image_size`; None where it has none."""
    steps = (None,) if recipe.image_size is None else recipe.image_size.sizes
    return dict(zip(steps, image_sizes(recipe), strict=True))


def late_sizes(recipe: Recipe) -> list[int | None]:
    """Side of the training images after the end of augmentation, for each step of `image_size` from there on.

    It is None where it is not `known`, as of `image_sizes`.
    """
    late, ramp, at = recipe.augmentation.late, recipe.image_size, recipe.augmentation.end.at
    if ramp is None:
        return [_known_side(late)]
    steps = [size for start, size in zip(ramp.boundaries, ramp.sizes, strict=True) if start > at]
    return [_known_side([at_image_size(part, size) for part in late]) for size in (ramp(at), *steps)]


def evaluated_size(recipe: Recipe, *, known: bool = False) -> int | None:
    """Side of the images that the model is scored on, as of `image_sizes`."""
    return (_known_side if known else _side)(recipe.augmentation.eval)


def _known_side(parts: Sequence[object]) -> int | None:
    for part in reversed(parts):
        if getattr(part, "keeps_size", False):
            continue
        if isinstance(getattr(part, "size", None), int):
            break
        if not type(part).__module__.startswith("trainers."):  # the user's own, or not built
            return None
    return _side(parts)


def _side(parts: Sequence[object]) -> int | None:
    side = None
    for part in parts:
        if getattr(part, "keeps_size", False):
            continue
        if isinstance(size := getattr(part, "size", None), int):
            side = size
        elif side is not None and isinstance(shorter := getattr(part, "shorter", None), int):  # of a square
            side = shorter
    return side
