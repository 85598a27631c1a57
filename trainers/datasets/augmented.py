"""Samples of a recipe's data set as the model gets them, by split."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from recipes.errors import InputRefused
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import image_sizes
from trainers.augmentations.decoders import UndecodableImage
from trainers.augmentations.pipeline import Pipeline, Pixels
from trainers.datasets.bad_images import can_skip, open_samples
from trainers.datasets.samples import EncodedSamples, UnreadableImage, innermost
from trainers.runs.errors import UnfitImage
from trainers.runs.identity import is_of_the_user

Split = Literal["train", "late", "eval"]  # late: training samples after the end of augmentation
SMALL = 1 << 14  # values of an image up to which a call of NumPy takes longer than its work
_TOGETHER = 32  # images that are finished at once: few, so that they stay in the cache
_STACKED = 64  # samples of one array from which on it takes less time to make them as arrays
_CHUNK = 8  # samples that a worker takes at a time: few, so that all workers end a micro-batch together
_STACKED_CHUNK = 256  # of those that are made as arrays


@dataclass(frozen=True)
class StackedSamples(Sequence[tuple[Any, int]]):
    """Images and labels of several samples as arrays: a sequence of pairs.

    Args:
        images: float32 NCHW, or `Pixels` of arrays.
        labels: one integer a sample.
    """

    images: np.ndarray | Pixels
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, number: Any) -> Any:
        images = self.images
        image = Pixels(*(each[number] for each in images)) if isinstance(images, Pixels) else images[number]
        return image, int(self.labels[number])


@dataclass(frozen=True, eq=False)
class AugmentedSamples:
    """Loads samples of one split: (epoch, index, image_size=None) -> what its pipeline makes of it, label.

    Args:
        samples: of the data set.
        pipeline: the recipe's for this split.
        split: which.
        pixels: gives `Pixels`, which `pipeline.finish` makes an image of, in place of images.
    """

    samples: Any
    pipeline: Pipeline
    split: Split
    pixels: bool = False

    def __call__(self, epoch: int, index: int, image_size: int | None = None) -> tuple[Any, int]:
        pixels, label = self._load(epoch, index, image_size)
        return pixels if self.pixels else self.pipeline.finish.image(*pixels), label

    def chunk(self, image_size: int | None) -> int:
        """Samples that a worker of a rank takes at a time."""
        return _CHUNK if self._stacked([(0, 0)], image_size) is None else _STACKED_CHUNK

    def several(
        self, wanted: Sequence[tuple[int, int]], image_size: int | None, moved: Callable[[], None]
    ) -> Sequence[tuple[Any, int]]:
        """What a call gives for each (epoch, index), small images in less time; `moved` is called after some."""
        if len(wanted) >= _STACKED and (stacked := self._stacked(wanted, image_size)) is not None:
            moved()
            return stacked
        images: list[Any] = []
        labels, waiting = [], []
        for epoch, index in wanted:
            pixels, label = self._load(epoch, index, image_size)
            labels.append(label)
            waiting.append(pixels)
            if len(waiting) == _TOGETHER or pixels.pixels_HWC.size > SMALL:
                images.extend(self._finished(waiting))
                waiting = []
            moved()
        images.extend(self._finished(waiting))
        return list(zip(images, labels, strict=True))

    def _stacked(self, wanted: Sequence[tuple[int, int]], image_size: int | None) -> StackedSamples | None:
        """They, where they are small images of one array, and the list of augmentations can be computed for all."""
        if self._are_foreign or not hasattr(self.samples, "where"):
            return None
        epochs, indices = np.array(wanted, np.int64).T
        if (places := self.samples.where(indices)) is None:
            return None
        images, rows, labels = places
        if not isinstance(images, np.ndarray) or images.dtype not in (np.uint8, np.float32) or images[0].size > SMALL:
            return None
        try:
            pixels = self.pipeline.stack(
                np.asarray(images), rows, epochs=epochs, indices=indices, image_size=image_size
            )
        except UnfitImage:  # which one by one says which it is
            return None
        if pixels is None:
            return None
        return StackedSamples(pixels if self.pixels else self.pipeline.finish.stack(*pixels), labels)

    def _finished(self, several: list[Pixels]) -> Iterable[Any]:
        return several if self.pixels or not several else self.pipeline.finish.images(several)

    def _load(self, epoch: int, index: int, image_size: int | None) -> tuple[Pixels, int]:
        samples, is_encoded = self.samples, isinstance(self.samples, EncodedSamples)
        try:
            image, label = samples.lazy(index) if is_encoded else samples[index]
            if self._are_foreign and isinstance(image, np.ndarray):  # the next sample may be in the same memory
                image = image.copy()
            try:  # other errors, such as of a file that a user's augmentation reads, are not the image's
                return self.pipeline.pixels(image, epoch=epoch, index=index, image_size=image_size), label
            except UndecodableImage as error:
                raise UnreadableImage(f"{self._name_of(index)}: {error}") from error
        except UnfitImage as error:
            raise UnfitImage(f"{self._name_of(index)}: {error}") from error
        except UnreadableImage as error:
            way_out = ": mend or remove it, or write `on_bad_image: skip` in the data set's file"
            named = f"{error}; it is sample {index}{way_out if can_skip(error) else ''}"
            raise UnreadableImage(named) from error.__cause__

    @functools.cached_property
    def _are_foreign(self) -> bool:
        """Whether a reader of the user's own made them; those of a class of samples are copies already."""
        return is_of_the_user(innermost(self.samples))

    def _name_of(self, index: int) -> str:
        return getattr(self.samples, "name_of", "sample {}".format)(index)


def augmented_samples(recipe: Recipe, dataset: Dataset, split: Split, *, pixels: bool = False) -> AugmentedSamples:
    """Open a split of the data set, with the recipe's augmentation."""
    pipeline = Pipeline(parts=getattr(recipe.augmentation, split), dataset=dataset, seed=recipe.seed)
    samples = open_samples(dataset, "train" if split == "late" else split)
    return AugmentedSamples(samples, pipeline, split, pixels)


class UnfitEnd(InputRefused):
    """The end of augmentation does not fit what is before it.

    Args:
        what, way_out: of `augmentation.end`.
    """

    def __init__(self, what: str, way_out: str) -> None:
        self.what, self.way_out = what, way_out
        super().__init__(f"augmentation.end: {what}; {way_out}")


def late_samples(recipe: Recipe, dataset: Dataset, train: AugmentedSamples) -> AugmentedSamples:
    """Training samples as they are after the end of augmentation, of the same open data set.

    Raises:
        UnfitEnd: they come out in another size than before, are normalised otherwise, or not scaled alike.
    """
    has_end = train.pipeline.finish.normalize is not None
    pipeline = Pipeline(parts=recipe.augmentation.late, dataset=dataset, seed=recipe.seed, has_end=has_end)
    if pipeline.finish != train.pipeline.finish:
        what = "ends in another `Normalize` than augmentation.train, or scales pixels in another way"
        raise UnfitEnd(what, "let both lists end in the same `Normalize`")
    late = replace(train, pipeline=pipeline, split="late")
    before, after = (load(0, 0, image_size=image_sizes(recipe)[-1])[0].shape for load in (train, late))
    if before != after:
        raise UnfitEnd(f"makes images of {after} where augmentation.train makes {before}", "give both one size")
    return late
