"""From a sample of a data set to the array that the model gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from recipes.image_size import at_image_size, keys_of_image_size
from recipes.planning.draws import Draws, draws
from trainers.augmentations.normalize import Normalize

Augmentation = Callable[[np.ndarray, Draws], np.ndarray]


class NamedStatistics(Protocol):
    """What the pipeline needs to know of a data set: `name`, and `mean` and `std` of pixels scaled to 0..1."""

    name: str
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


class Pipeline:
    """A list of augmentations, each with draws of its own, and the conversion to float32 CHW.

    Augmentation number `place` of the list draws from `draws(seed, "augmentation", epoch, index, place)`, so an image
    depends on nothing else. Pixels that nothing has scaled are divided by 255 at the end; an augmentation of another
    range says so by a class attribute `scales_pixels = True`.

    Args:
        parts: in order; a `Normalize` by name is bound to `dataset`.
        dataset: the recipe's.
        seed: the recipe's.
    Raises:
        ValueError: a `Normalize` names another data set, or the data set has no mean and std.
    """

    def __init__(self, *, parts: Sequence[Augmentation], dataset: NamedStatistics, seed: int) -> None:
        numbers = {"name": dataset.name, "mean": dataset.mean, "std": dataset.std}
        self._parts = [part.bound(**numbers) if isinstance(part, Normalize) else part for part in parts]
        self._divisor = np.float32(1 if any(getattr(part, "scales_pixels", False) for part in parts) else 255)
        self._seed = seed
        self._needs_size = any(map(keys_of_image_size, self._parts))
        self._parts_at: dict[int, list[Augmentation]] = {}

    def __call__(self, image_HWC: np.ndarray, *, epoch: int, index: int, image_size: int | None = None) -> np.ndarray:
        """The augmented image of sample `index` in `epoch`: float32, CHW, in C order, an array of its own.

        Args:
            image_HWC: uint8, or float32 in 0..255; it is not changed.
            epoch: of the stream.
            index: position of the sample in its data set's own order.
            image_size: what a part's `size: image_size` means in this update.
        Raises:
            ValueError: the image has another number of axes or type, or a part needs the image size and there is none.
        """
        if image_HWC.ndim != 3 or image_HWC.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"sample {index} must be an image height x width x channels of uint8 or float32, "
                f"got shape {image_HWC.shape} of {image_HWC.dtype}"
            )
        for place, part in enumerate(self._sized(image_size)):
            image_HWC = part(image_HWC, draws(self._seed, "augmentation", epoch, index, place))
        image_CHW = np.array(image_HWC.transpose(2, 0, 1), dtype=np.float32, order="C")
        image_CHW /= self._divisor
        return image_CHW

    def _sized(self, image_size: int | None) -> list[Augmentation]:
        if not self._needs_size:
            return self._parts
        if image_size is None:
            raise ValueError("an augmentation means the recipe's `image_size`, which is not there")
        if image_size not in self._parts_at:
            self._parts_at[image_size] = [at_image_size(part, image_size) for part in self._parts]
        return self._parts_at[image_size]
