"""A trial before ranks start: it shows whether samples can be loaded, and images be computed together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from recipes.errors import InputRefused
from recipes.planning.random_bits import Draws
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import image_sizes
from recipes.schema.vocabulary import kind_of
from trainers.augmentations.pipeline import Augmentation, Pipeline
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.own_data import OwnSamples, WrongSample
from trainers.datasets.samples import SamplesInMemory, UnreadableImage, evenly, innermost
from trainers.runs.errors import UnfitImage, one_line, own_place
from trainers.runs.identity import is_of_the_user
from trainers.training.trial_repeat import differing, keeping_fields

_LOOKED = 2000  # samples whose size is looked at before a run


def require_images(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Load some samples as training and evaluation do.

    Of files, those with the least and the most height, width and ratio of both: other images lie between them.

    Returns:
        Warnings: an augmentation of the user's own makes other images of the same image with the same draws.
    Raises:
        InputRefused: a sample or an augmentation fails, an augmentation changes its own fields, or images come out in
            several sizes or with other channels.
    """
    warnings: list[str] = []
    keys = {"train": "augmentation.train", "eval": "augmentation.eval"}
    keys |= {} if recipe.augmentation.end is None else {"late": "augmentation.end"}
    for split, key in keys.items():
        load = augmented_samples(recipe, dataset, split)
        samples, parts = load.samples, getattr(recipe.augmentation, split)
        own = list(filter(is_of_the_user, parts))
        own_data = isinstance(innermost(samples), OwnSamples)
        tried = _TriedPipeline(parts=parts, dataset=dataset, seed=recipe.seed)
        tried.key = key
        first = replace(load, pipeline=tried) if own else load
        if not own and isinstance(innermost(samples), SamplesInMemory):
            _require_channels(samples[0][0].shape[-1], dataset, f"sample 0 of {split}")
        for size in dict.fromkeys(image_sizes(recipe) if split != "eval" else image_sizes(recipe)[-1:]):
            shapes: dict[tuple[int, ...], int] = {}
            for index in _extremes(samples):
                try:
                    image_CHW, _ = (first if index == 0 else load)(0, index, image_size=size)
                except InputRefused:
                    raise
                except UnfitImage as error:
                    raise InputRefused(f"{key}: {error}") from error
                except (UnreadableImage, WrongSample) as error:
                    raise InputRefused(f"{error}") from error
                except Exception as error:
                    if own_data and not own:
                        what = f"{one_line(error)} ({own_place(error)})"
                        raise InputRefused(f"sample {index} of {split} cannot be loaded: {what}") from error
                    called = "an augmentation is called with (image_HWC, draws) and returns an image, uint8 or float32"
                    raise InputRefused(
                        f"{key} cannot be applied to sample {index}: {one_line(error)} ({own_place(error)}); "
                        f"{tried.reshaped or called}"
                    ) from error
                _require_channels(len(image_CHW), dataset, f"sample {index} of {split}", tried.reshaped)
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
        warnings += tried.warnings
    return warnings


class _TriedPipeline(Pipeline):
    """Calls augmentations of the user's own several times with the same image and draws."""

    key = ""
    reshaped = ""  # which augmentation was the last to change the number of channels, and how

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._drawing: dict[str, None] = {}

    @property
    def warnings(self) -> list[str]:
        way_out = "draw from `draws` alone, and keep nothing between calls"
        failing = "makes other images of the same image with the same draws, so no run can be repeated"
        return [f"{what} {failing}; {way_out}" for what in self._drawing]

    def apply_own(self, number: int, part: Augmentation, image_HWC: np.ndarray, drawn: Draws) -> np.ndarray:
        def applied() -> np.ndarray:
            return super(_TriedPipeline, self).apply_own(number, part, image_HWC.copy(), replace(drawn))

        what = f"{self.key}.{number}, {kind_of(part)},"
        with keeping_fields(what, part):
            if differing(applied):
                self._drawing[what] = None
            made = applied()
        if made.shape[2] != image_HWC.shape[2]:
            self.reshaped = f"{what} makes {made.shape} of {image_HWC.shape}, height x width x channels"
        return made


def _require_channels(given: int, dataset: Dataset, which: str, reshaped: str = "") -> None:
    if given != dataset.channels and reshaped:
        raise InputRefused(f"{reshaped}, and the file of data set {dataset.name} says {dataset.channels} channels")
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
