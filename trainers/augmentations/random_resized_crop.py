"""A crop of random place, area and shape, at a fixed size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from recipes.arguments import ImageSize, require_range, require_size
from recipes.planning.random_bits import Draws
from trainers.augmentations.resize import resampled

_NUM_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class RandomResizedCrop:
    """A rectangle of random area, shape and place, resampled to a square.

        A ~ U(area) * height * width;   r ~ U(ratio)
        crop width = round(sqrt(A r)), crop height = round(sqrt(A / r)), exchanged with probability 1/2
        top, left: uniform over the places where the crop fits

    A crop that does not fit is redrawn, up to 10 draws in all; after that it is the largest square in the middle. Only
    sums, products and roots are computed, which round alike on every machine.

    Args:
        size: side of the result in pixels, or `image_size`, the recipe's.
        area: smallest and largest share of the image's area, in (0, 1].
        ratio: smallest and largest width over height, before the exchange, above 0.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`; `area` or `ratio` are not two
            numbers in range, low first.

    Source: fb.resnet.torch, datasets/transforms.lua, RandomSizedCrop (the attempts, the uniform draws, the exchange);
        the augmentation of Goyal et al. 2017, arXiv 1706.02677.
    Differs: fb.resnet.torch multiplies the side by the ratio, not by its root, so its shapes reach from 9:16 to 16:9,
        and it interpolates bicubically. Others draw the logarithm of the ratio uniformly.
    """

    size: ImageSize
    area: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)

    def __post_init__(self) -> None:
        require_size("RandomResizedCrop.size", self.size)
        require_range("RandomResizedCrop.area", self.area, at_most=1)
        require_range("RandomResizedCrop.ratio", self.ratio)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        top, left, height, width = self.rectangle(*image_HWC.shape[:2], draws)
        crop_HWC = image_HWC[top : top + height, left : left + width]
        return resampled(crop_HWC, height=self.size, width=self.size)

    def rectangle(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the crop in an image of this height and width, all in pixels."""
        for _ in range(_NUM_ATTEMPTS):
            area = _between(self.area, draws.uniform()) * height * width
            ratio = _between(self.ratio, draws.uniform())
            crop_height, crop_width = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if draws.uniform() < 0.5:
                crop_height, crop_width = crop_width, crop_height
            if 0 < crop_height <= height and 0 < crop_width <= width:
                top = draws.integers(height - crop_height + 1)
                left = draws.integers(width - crop_width + 1)
                return top, left, crop_height, crop_width
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side


def _between(bounds: tuple[float, float], share: float) -> float:
    return bounds[0] + (bounds[1] - bounds[0]) * share
