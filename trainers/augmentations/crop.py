"""The middle of an image.

A crop of fixed size at a random place, after padding.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.arguments import ImageSize, require_count, require_size
from recipes.planning.random_bits import Draws
from trainers.runs.errors import UnfitImage


@dataclass(frozen=True, kw_only=True)
class CenterCrop:
    """The square in the middle; where it cannot be in the middle, half a pixel towards the top and left.

    Args:
        size: side of the square in pixels, or `image_size`, the recipe's.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`. When called: the image is smaller
            than `size`.

    Source: Goyal et al. 2017, arXiv 1706.02677 (224 of 256 for the errors reported).
    Differs: fb.resnet.torch, datasets/transforms.lua, goes half a pixel towards the bottom and right.
    """

    size: ImageSize

    def __post_init__(self) -> None:
        require_size("CenterCrop.size", self.size)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        height, width, _ = image_HWC.shape
        if min(height, width) < self.size:
            raise UnfitImage(
                f"CenterCrop.size is {self.size}, but the image is {height}x{width}: put a Resize before it, "
                f"or make the size smaller"
            )
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return image_HWC[top : top + self.size, left : left + self.size]


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """A square at a uniformly random place of the image, padded with zeros on all sides.

    Args:
        size: side of the square in pixels, or `image_size`, the recipe's.
        padding: pixels of zeros added at each side first, at least 0. Zero is black before `Normalize` and the mean
            after it.
    Raises:
        ValueError: `size` is neither a whole number above 0 nor `image_size`; `padding` is no whole number of at least
            0. When called: the padded image is smaller than `size`.

    Source: He et al. 2015, arXiv 1512.03385, section 4.2 (CIFAR-10: padding 4, size 32).
    """

    size: ImageSize
    padding: int = 0

    def __post_init__(self) -> None:
        require_size("RandomCrop.size", self.size)
        require_count("RandomCrop.padding", self.padding, at_least=0)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """`size` x `size` pixels, channels and type as given."""
        height, width, channels = image_HWC.shape
        padding = self.padding
        rows, columns = height + 2 * padding - self.size + 1, width + 2 * padding - self.size + 1
        if rows < 1 or columns < 1:
            raise UnfitImage(
                f"RandomCrop.size is {self.size}, but the image is {height}x{width} with a padding of {padding}: "
                "make the size smaller, the padding larger, or put a Resize before it"
            )
        top, left = draws.integers(rows), draws.integers(columns)
        padded_HWC = np.zeros((height + 2 * padding, width + 2 * padding, channels), dtype=image_HWC.dtype)
        padded_HWC[padding : padding + height, padding : padding + width] = image_HWC
        return padded_HWC[top : top + self.size, left : left + self.size]
