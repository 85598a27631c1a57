"""A trial before ranks start: it shows whether samples can be loaded, and images be computed together."""

from __future__ import annotations

from typing import Any

from recipes.errors import InputRefused
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import image_sizes
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.own_data import OwnSamples, WrongSample
from trainers.datasets.samples import SamplesInMemory, UnreadableImage, evenly, innermost
from trainers.runs.errors import UnfitImage, one_line, own_place
from trainers.runs.identity import is_of_the_user

_LOOKED = 2000  # samples whose size is looked at before a run


def require_images(recipe: Recipe, dataset: Dataset) -> None:
    """Load some samples as training and evaluation do.

    Of files, those with the least and the most height, width and ratio of both: other images lie between them.

    Raises:
        InputRefused: a sample or an augmentation fails, or images come out in several sizes or with other channels.
    """
    keys = {"train": "augmentation.train", "eval": "augmentation.eval"}
    keys |= {} if recipe.augmentation.end is None else {"late": "augmentation.end"}
    for split, key in keys.items():
        load = augmented_samples(recipe, dataset, split)
        samples, parts = load.samples, getattr(recipe.augmentation, split)
        own = list(filter(is_of_the_user, parts))
        own_data = isinstance(innermost(samples), OwnSamples)
        if not own and isinstance(innermost(samples), SamplesInMemory):
            _require_channels(samples[0][0].shape[-1], dataset, f"sample 0 of {split}")
        for size in dict.fromkeys(image_sizes(recipe) if split != "eval" else image_sizes(recipe)[-1:]):
            shapes: dict[tuple[int, ...], int] = {}
            for index in _extremes(samples):
                try:
                    image_CHW, _ = load(0, index, image_size=size)
                except (UnfitImage, UnreadableImage, WrongSample) as error:
                    raise InputRefused(f"{error}") from error
                except Exception as error:
                    if own_data and not own:
                        what = f"{one_line(error)} ({own_place(error)})"
                        raise InputRefused(f"sample {index} of {split} cannot be loaded: {what}") from error
                    raise InputRefused(
                        f"{key} cannot be applied to sample {index}: {one_line(error)} ({own_place(error)}); an "
                        "augmentation is called with (image_HWC, draws) and returns an image, uint8 or float32"
                    ) from error
                _require_channels(len(image_CHW), dataset, f"sample {index} of {split}")
                shapes.setdefault(image_CHW.shape, index)
            if len(shapes) > 1:
                (one, first), (other, second) = list(shapes.items())[:2]
                called = getattr(samples, "name_of", "sample {}".format)
                named = [called(first), called(second)]
                raise InputRefused(
                    f"{key} makes {'x'.join(map(str, one))} of {named[0]}, {'x'.join(map(str, other))} of {named[1]}: "
                    "they cannot be computed together; bring all images to one size: Resize and CenterCrop, or "
                    "RandomResizedCrop"
                )


def _require_channels(given: int, dataset: Dataset, which: str) -> None:
    if given != dataset.channels:
        what = f"{given} channels, and the file of data set {dataset.name} says {dataset.channels}"
        raise InputRefused(f"{which} has {what}; correct `channels` there")


def _extremes(samples: Any) -> list[int]:
    """Some samples: the first ones, and those of extreme sizes among evenly spaced ones."""
    chosen = [0, len(samples) - 1]
    if hasattr(samples, "size_of"):
        sizes = {index: samples.size_of(index) for index in evenly(len(samples), _LOOKED)}
        for measure in (lambda i: sizes[i][0], lambda i: sizes[i][1], lambda i: sizes[i][0] / sizes[i][1]):
            chosen += [min(sizes, key=measure), max(sizes, key=measure)]
    return sorted(set(chosen))
