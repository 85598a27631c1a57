"""Parts of an image set to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lr_schedules.units import require_number
from recipes.arguments import require_count, require_range
from recipes.planning.random_bits import Draws

_NUM_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class Cutout:
    """A square around a uniformly random pixel set to zero; what of it lies outside the image is lost.

        rows y - size // 2 to y - size // 2 + size - 1, columns alike        y ~ U{0, ..., height - 1}

    Args:
        size: side of the square in pixels. Zero is black before `Normalize` and the mean after it: put it last.
    Raises:
        ValueError: `size` is no whole number above 0.

    Source: DeVries and Taylor 2017, arXiv 1708.04552 (not checked); their code, uoguelph-mlrg/Cutout, util/cutout.py.
    Differs: a version of that code (commit 02f333a) goes `size` pixels to both sides of the centre.
    """

    size: int

    # Its size is that of the hole: the image keeps its own.
    keeps_size: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_count("Cutout.size", self.size)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """A copy of the image with a hole."""
        height, width, _ = image_HWC.shape
        top, left = (draws.integers(length) - self.size // 2 for length in (height, width))
        cut_HWC = image_HWC.copy()
        cut_HWC[max(top, 0) : max(top + self.size, 0), max(left, 0) : max(left + self.size, 0)] = 0
        return cut_HWC


@dataclass(frozen=True, kw_only=True)
class RandomErasing:
    """A rectangle of random area, shape and place set to zero, with a probability.

        A ~ U(area) * height * width;   log r ~ U(log ratio)
        height of the rectangle = round(sqrt(A r)), width = round(sqrt(A / r))
        top, left: uniform over the places where it fits

    A rectangle as high or as wide as the image is redrawn, up to 10 draws in all; after that nothing is erased.

    Args:
        probability: probability of a rectangle, in [0, 1].
        area: smallest and largest share of the image's area, in (0, 1].
        ratio: smallest and largest height over width, above 0; of `RandomResizedCrop` it is width over height.
    Raises:
        ValueError: `probability` is no number in [0, 1]; `area` or `ratio` are not two numbers in range, low first.

    Source: torchvision, transforms.RandomErasing; timm, data/random_erasing.py, mode const; Zhong et al. 2017, arXiv
        1708.04896 (not checked).
    Differs: the paper fills with random values. Zero is black before `Normalize` and the mean after it. Both libraries
        erase after it: put this last.
    """

    probability: float = 0.5
    area: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)

    def __post_init__(self) -> None:
        require_number("RandomErasing.probability", self.probability, at_least=0, at_most=1)
        require_range("RandomErasing.area", self.area, at_most=1)
        require_range("RandomErasing.ratio", self.ratio)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The image, or a copy with a hole."""
        if draws.uniform() >= self.probability:
            return image_HWC
        top, left, height, width = self.rectangle(*image_HWC.shape[:2], draws)
        erased_HWC = image_HWC.copy()
        erased_HWC[top : top + height, left : left + width] = 0
        return erased_HWC

    def rectangle(self, height: int, width: int, draws: Draws) -> tuple[int, int, int, int]:
        """(top, left, height, width) of the hole in an image of this height and width; all 0 where none fits."""
        low, high = map(math.log, self.ratio)
        for _ in range(_NUM_ATTEMPTS):
            area = (self.area[0] + (self.area[1] - self.area[0]) * draws.uniform()) * height * width
            ratio = math.exp(low + (high - low) * draws.uniform())
            hole_height, hole_width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if hole_height < height and hole_width < width:
                top = draws.integers(height - hole_height + 1)
                left = draws.integers(width - hole_width + 1)
                return top, left, hole_height, hole_width
        return 0, 0, 0, 0
