"""Another size, the shape kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from recipes.planning.draws import Draws
from trainers.arguments import ImageSize, require_size
from trainers.augmentations.resampling import resampled


@dataclass(frozen=True, kw_only=True)
class Resize:
    """The shorter side to a given length, the longer one in proportion, rounded to the nearest pixel.

    Args:
        shorter: length of the shorter side in pixels, or `image_size`, the recipe's.
    Raises:
        ValueError: `shorter` is neither a whole number above 0 nor `image_size`.

    Source: fb.resnet.torch, datasets/transforms.lua, Scale.
    Differs: bilinear and antialiased, where the source is bicubic.
    """

    shorter: ImageSize

    def __post_init__(self) -> None:
        require_size("Resize.shorter", self.shorter)

    def __call__(self, image_HWC: np.ndarray, draws: Draws) -> np.ndarray:
        """The resampled image, channels and type as given."""
        height, width, _ = image_HWC.shape
        side = min(height, width)
        height, width = ((2 * length * self.shorter + side) // (2 * side) for length in (height, width))
        return resampled(image_HWC, height=height, width=width)
