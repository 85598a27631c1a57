"""Change of an image's size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

from recipes.arguments import ImageSize, require_size
from recipes.planning.random_bits import Draws


def resampled(image_HWC: np.ndarray, *, height: int, width: int) -> np.ndarray:
    """The image at another size, by antialiased bilinear interpolation (the filter grows when the image shrinks).

    Pillow's, at its fixed point for uint8: the same bits wherever the same Pillow runs.

    Args:
        image_HWC: uint8 or float32, any number of channels.
        height, width: in pixels.
    Returns:
        Of the same type and number of channels; the image itself where the size is right already.
    """
    if image_HWC.shape[:2] == (height, width):
        return image_HWC
    size = (width, height)
    if image_HWC.dtype == np.uint8 and image_HWC.shape[2] == 3:
        return np.asarray(Image.fromarray(image_HWC).resize(size, Image.Resampling.BILINEAR))
    channels = [Image.fromarray(image_HWC[:, :, c]) for c in range(image_HWC.shape[2])]
    return np.stack([np.asarray(channel.resize(size, Image.Resampling.BILINEAR)) for channel in channels], axis=2)


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
