"""Pixels of a batch made into images as the model gets them, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.kernels.cuda import launcher

_COLOURS, _PIXEL_BYTES = 3, 16


def finished(pixels: Any, mirrored: Any, shift: Any, scale: Any, *, channels_first: bool, dtype: Any) -> Any:
    """(x - shift) / scale of each channel in float32, then rounded to `dtype`; some mirrored.

    Args:
        pixels: uint8 or float32, (samples, height, width, channels), or (samples, channels, height, width).
        mirrored: uint8 (samples,), not 0 where left and right are exchanged.
        shift, scale: float32 (channels,).
        channels_first: whether pixels are (samples, channels, height, width).
        dtype: of the images.
    Returns:
        images NCHW, in memory with their channels last; three channels are the first of 4 or 8, see `whole_pixels`.
    """
    samples, *sizes = pixels.shape
    channels, height, width = sizes if channels_first else (sizes[2], *sizes[:2])
    steps = (1, height * width) if channels_first else (channels, 1)
    padded = max(channels, _PIXEL_BYTES // np.dtype(dtype).itemsize) if channels == _COLOURS else channels
    images_NHWC = launcher.device.xp.empty((samples, height, width, padded), dtype)
    name = "finish_bytes" if pixels.dtype == np.uint8 else "finish_floats"
    arguments = (pixels, mirrored, shift, scale, images_NHWC, height, width, channels, padded, *steps)
    launcher.device.launch(name, images_NHWC.dtype.char, 1, (samples * height,), arguments)
    return images_NHWC[..., :channels].transpose(0, 3, 1, 2)


def whole_pixels(images: Any) -> Any | None:
    """The 4 or 8 channels last (n, h, w, c) of which images are the first ones, as `finished` makes them; else None.

    cuDNN's tensor cores read whole pixels of 16 bytes. It would copy images of three channels in each convolution.
    """
    n, channels, height, width = images.shape
    size, lanes = images.itemsize, _PIXEL_BYTES // images.itemsize
    row = width * _PIXEL_BYTES
    if channels != _COLOURS or lanes <= channels or images.strides != (height * row, size, row, _PIXEL_BYTES):
        return None
    if launcher.address(images) % _PIXEL_BYTES:
        return None  # other channels of wider images
    as_strided = launcher.device.xp.lib.stride_tricks.as_strided
    return as_strided(images, (n, height, width, lanes), (height * row, row, _PIXEL_BYTES, size))


def copied(array: Any) -> Any:
    """A copy in the same order in memory, for images with the channels beside them."""
    pixels = whole_pixels(array) if array.ndim == 4 else None
    return array.copy(order="K") if pixels is None else pixels.copy()[..., :_COLOURS].transpose(0, 3, 1, 2)
