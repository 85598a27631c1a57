"""Grey values, and the conversion back to an image's type."""

from __future__ import annotations

import numpy as np

_SHARES_OF_GREY = np.array([0.299, 0.587, 0.114], dtype=np.float32)  # ITU-R BT.601


def grey(image_HWC: np.ndarray) -> np.ndarray:
    """The brightness of each pixel, float32 (height, width, 1); of one channel that channel."""
    if image_HWC.shape[2] == 1:
        return image_HWC
    return image_HWC @ _SHARES_OF_GREY[:, np.newaxis]


def as_given(image_HWC: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A float32 image in 0..255, which may be overwritten, as one of the type that was given; uint8 is rounded."""
    return np.rint(image_HWC, out=image_HWC).astype(np.uint8) if dtype == np.uint8 else image_HWC
