"""Progressive resizing: images whose size moves over the run, and the augmentations that make them so."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from recipes.reading import Reading
from recipes.schema import Recipe
from recipes.vocabulary import Unbuilt

__all__ = ["IMAGE_SIZE", "LONGEST_SIDE", "at_image_size", "check_image_size", "keys_of_image_size"]

IMAGE_SIZE = "image_size"  # what an augmentation's `size` says where the recipe's `image_size` is meant
LONGEST_SIDE = 16_384  # of an image in pixels: one takes 0.8 GB, and the recipe is perhaps a stranger's. Assumed.

_Entry = TypeVar("_Entry")


def keys_of_image_size(entry: object) -> list[str]:
    """The keys of an augmentation that mean the recipe's `image_size`, such as `size`."""
    fields = entry.fields if isinstance(entry, Unbuilt) else _fields(entry)
    return [key for key, value in fields.items() if isinstance(value, str) and value == IMAGE_SIZE]


def at_image_size(entry: _Entry, size: int) -> _Entry:
    """An augmentation with `size` pixels where it means the recipe's `image_size`; itself where it does not."""
    keys = [] if isinstance(entry, Unbuilt) else keys_of_image_size(entry)
    return dataclasses.replace(entry, **dict.fromkeys(keys, size)) if keys else entry


def check_image_size(reading: Reading, recipe: Recipe) -> None:
    """Notes what is wrong between `image_size` and the augmentations; `trainers.build` asks the model."""
    users = 0
    for place, entry in enumerate(recipe.augmentation.train):
        for key in keys_of_image_size(entry):
            users += 1
            if recipe.image_size is None:
                what, way_out = "means the recipe's `image_size`, which is not there", "add `image_size: 224`"
                reading.refuse(("augmentation", "train", place, key), what, way_out)
    for place, entry in enumerate(recipe.augmentation.eval):
        for key in keys_of_image_size(entry):
            what = "is the size of training images, which is not that of evaluation"
            reading.refuse(("augmentation", "eval", place, key), what, "write the number of pixels")
    if recipe.image_size is None:
        return
    if not users:
        way_out = "write `size: image_size` into an entry of `augmentation.train`, or remove `image_size`"
        reading.refuse((IMAGE_SIZE,), "is used by no augmentation", way_out)


def _fields(entry: object) -> dict[str, Any]:
    if not dataclasses.is_dataclass(entry):
        return {}
    return {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
