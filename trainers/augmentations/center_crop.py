"""The middle of an image."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.planning.draws import Draws
from trainers.arguments import ImageSize, require_size
from trainers.faults import UnfitImage


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
