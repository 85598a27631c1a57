"""From a sample of a data set to the array that the model gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

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

    def __call__(self, image_HWC: np.ndarray, *, epoch: int, index: int) -> np.ndarray:
        """The augmented image of sample `index` in `epoch`: float32, CHW, in C order, an array of its own.

        Args:
            image_HWC: uint8, or float32 in 0..255; it is not changed.
            epoch: of the stream.
            index: position of the sample in its data set's own order.
        Raises:
            ValueError: the image has another number of axes or type.
        """
        if image_HWC.ndim != 3 or image_HWC.dtype not in (np.uint8, np.float32):
            raise ValueError(
                f"sample {index} must be an image height x width x channels of uint8 or float32, "
                f"got shape {image_HWC.shape} of {image_HWC.dtype}"
            )
        for place, part in enumerate(self._parts):
            image_HWC = part(image_HWC, draws(self._seed, "augmentation", epoch, index, place))
        image_CHW = np.array(image_HWC.transpose(2, 0, 1), dtype=np.float32, order="C")
        image_CHW /= self._divisor
        return image_CHW
