"""Pixels of a batch made into images as the model gets them, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.kernels.cuda import launcher


def finished(pixels: Any, mirrored: Any, shift: Any, scale: Any, *, channels_first: bool, dtype: Any) -> Any:
    """(x - shift) / scale of each channel in float32, then rounded to `dtype`; some mirrored.

    Args:
        pixels: uint8 or float32, (samples, height, width, channels), or (samples, channels, height, width).
        mirrored: uint8 (samples,), not 0 where left and right are exchanged.
        shift, scale: float32 (channels,).
        channels_first: whether pixels are (samples, channels, height, width).
        dtype: of the images.
    Returns:
        images NCHW, in memory with their channels last.
    """
    samples, *sizes = pixels.shape
    channels, height, width = sizes if channels_first else (sizes[2], *sizes[:2])
    steps = (1, height * width) if channels_first else (channels, 1)
    images_NHWC = launcher.device.xp.empty((samples, height, width, channels), dtype)
    name = "finish_bytes" if pixels.dtype == np.uint8 else "finish_floats"
    arguments = (pixels, mirrored, shift, scale, images_NHWC, height, width, channels, *steps)
    launcher.device.launch(name, images_NHWC.dtype.char, 1, (samples * height,), arguments)
    return images_NHWC.transpose(0, 3, 1, 2)
