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
from trainers.augmentations.normalize import Normalize
from trainers.augmentations.pipeline import Augmentation, Pipeline, Pixels
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.own_data import OwnSamples, WrongSample
from trainers.datasets.samples import SamplesInMemory, UnreadableImage, channels_first, evenly, innermost
from trainers.runs.errors import UnfitImage, one_line, own_place
from trainers.runs.identity import is_of_the_user
from trainers.training.trial_repeat import differing, keeping_fields

_LOOKED = 2000  # samples whose size is looked at before a run
_SCALED = 16  # times as far as before the values lie together, at least, after a division by 255 or by the deviation
_SCALED_BELOW_0 = 8  # likewise where some are below 0, as pixels never are
_ONES = 2  # the largest value of images that are made for 0..1, with what is added to them


def require_images(recipe: Recipe, dataset: Dataset) -> list[str]:
    """Load some samples as training and evaluation do.

    Of files, those with the least and the most height, width and ratio of both: other images lie between them.

    Returns:
        Warnings: an augmentation of the user's own makes other images of the same image with the same draws, or scales
            pixels that are scaled once more after it, which makes every image nearly constant.
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
        called_with = replace(load, pipeline=tried) if own else load
        turned = ""
        if isinstance(innermost(samples), SamplesInMemory):
            shape = samples[0][0].shape
            if way_out := channels_first(shape, dataset.channels):
                turned = f"sample 0 of {split} is an array of {shape}{way_out}"
            if turned and not own:
                raise InputRefused(turned)
            if not own:
                _require_channels(shape[-1], dataset, f"sample 0 of {split}")
        for size in dict.fromkeys(image_sizes(recipe) if split != "eval" else image_sizes(recipe)[-1:]):
            shapes: dict[tuple[int, ...], int] = {}
            for index in _extremes(samples):
                tried.is_first = index == 0
                try:
                    image_CHW, _ = called_with(0, index, image_size=size)
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
                    if turned:
                        raise InputRefused(turned) from error
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
    """Calls augmentations of the user's own several times with the first image and draws, and looks at what they make.

    Attributes:
        is_first: whether the image is the first one.
    """

    key = ""
    reshaped = ""  # which augmentation was the last to change the number of channels, and how
    is_first = True

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._drawing: dict[str, None] = {}
        self._scaling: dict[str, str] = {}
        self._scaled: tuple[int, float, str] | None = None

    @property
    def warnings(self) -> list[str]:
        way_out = "draw from `draws` alone, and keep nothing between calls"
        failing = "makes other images of the same image with the same draws, so no run can be repeated"
        return [*(f"{what} {failing}; {way_out}" for what in self._drawing), *self._scaling.values()]

    def pixels(self, *image: Any, **of: Any) -> Pixels:
        """See `Pipeline.pixels`."""
        self._scaled = None
        made = super().pixels(*image, **of)
        if self._scaled is not None:
            number, _, how = self._scaled
            part, line = self.parts[number], "`scales_pixels: ClassVar[bool] = True`"
            what = f"{self.key}.{number}, {kind_of(part)},"
            if any(isinstance(later, Normalize) for later in self.parts[number:]):
                then = "`Normalize` after it, which takes pixels of 0..255,"
                way_out = "let it return those, uint8 or float32, or remove that `Normalize`"
                way_out += "" if getattr(part, "scales_pixels", False) else f" and add {line} to the class"
            elif self.finish.divisor > 1:
                then = "the division by 255 at the end of the list"
                way_out = f"add {line} to the class, and nothing is divided, or let it return pixels of 0..255"
            else:
                return made
            self._scaling.setdefault(what, f"{what} {how}, and {then} makes the image nearly constant; {way_out}")
        return made

    def apply_own(self, number: int, part: Augmentation, image_HWC: np.ndarray, drawn: Draws) -> np.ndarray:
        def applied() -> np.ndarray:
            return super(_TriedPipeline, self).apply_own(number, part, image_HWC.copy(), replace(drawn))

        what = f"{self.key}.{number}, {kind_of(part)},"
        if self.is_first:
            with keeping_fields(what, part):
                if differing(applied):
                    self._drawing[what] = None
        made = applied()
        if made.shape[2] != image_HWC.shape[2]:
            self.reshaped = f"{what} makes {made.shape} of {image_HWC.shape}, height x width x channels"
        if made.size and not any(getattr(other, "scales_pixels", False) for other in self.parts[:number]):
            self._look_at(number, image_HWC, made)
        return made

    def _look_at(self, number: int, image_HWC: np.ndarray, made_HWC: np.ndarray) -> None:
        """Note an augmentation after which pixels are scaled; forget it where a later one scales them back."""
        before, after = ((float(image.min()), float(image.max())) for image in (image_HWC, made_HWC))
        first, had, how = self._scaled or (number, before[1] - before[0], "")
        has = after[1] - after[0]
        is_small = max(map(abs, after)) <= _ONES and has * _SCALED <= had
        if had > _ONES and has > 0 and (is_small or (after[0] < 0 and has * _SCALED_BELOW_0 <= had)):
            how = how or "makes values from {:.3g} to {:.3g} of pixels from {:.3g} to {:.3g}".format(*after, *before)
            self._scaled = first, had, how
        else:
            self._scaled = None


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
