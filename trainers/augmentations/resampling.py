"""Change of an image's size."""

from __future__ import annotations

import numpy as np
from PIL import Image


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
