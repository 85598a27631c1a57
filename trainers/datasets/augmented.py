"""Samples of a recipe's data set as the model gets them, by split."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Literal

from recipes.schema import Dataset, Recipe
from trainers.augmentations.pipeline import Pipeline
from trainers.datasets.bad_images import can_skip, open_samples
from trainers.datasets.samples import EncodedSamples, UnreadableImage
from trainers.runs.errors import UnfitImage

Split = Literal["train", "late", "eval"]  # late: training samples after the end of augmentation


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
        samples, is_encoded = self.samples, isinstance(self.samples, EncodedSamples)
        augmented: Callable[..., Any] = self.pipeline.pixels if self.pixels else self.pipeline
        named = getattr(samples, "name_of", "sample {}".format)
        try:
            image, label = samples.lazy(index) if is_encoded else samples[index]
            with samples.naming(index) if is_encoded else nullcontext():
                return augmented(image, epoch=epoch, index=index, image_size=image_size), label
        except UnfitImage as error:
            raise UnfitImage(f"{named(index)}: {error}") from error
        except UnreadableImage as error:
            way_out = ": mend or remove it, or write `on_bad_image: skip` in the data set's file"
            named = f"{error}; it is sample {index}{way_out if can_skip(error) else ''}"
            raise UnreadableImage(named) from error.__cause__


def augmented_samples(recipe: Recipe, dataset: Dataset, split: Split, *, pixels: bool = False) -> AugmentedSamples:
    """Open a split of the data set, with the recipe's augmentation."""
    pipeline = Pipeline(parts=getattr(recipe.augmentation, split), dataset=dataset, seed=recipe.seed)
    samples = open_samples(dataset, "train" if split == "late" else split)
    return AugmentedSamples(samples, pipeline, split, pixels)
