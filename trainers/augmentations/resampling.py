"""Bilinear resampling of uint8 images, antialiased, with the same bits on every machine.

    c = (i + 1/2) n / m                                  the middle of value i of m, in pixels, of which there are n
    w(j) = max(0, 1 - |j + 1/2 - c| / max(1, n / m))     the weight of pixel j, divided by their sum over j
    value i = (2^21 + sum of round(2^22 w(j)) pixel j) >> 22

All rows first, then all columns. Each of the two passes is rounded to 8 bits. These are the numbers of Pillow's
`resize(size, BILINEAR)` up to version 12; later ones take the columns first where that saves time.

`resampling.c` computes it for one thread. Kilobatch's installation compiles it; without a compiler, without AVX2, and
for images that it does not serve, the caller takes Pillow, one pass at a time.
"""

from __future__ import annotations

import ctypes
import importlib.util

import numpy as np

_PLACE, _SIZE = ctypes.c_void_p, ctypes.c_int


def _built() -> ctypes.CDLL | None:
    """What was compiled; None without a compiler, or where it is of an older `resampling.c` or for another system."""
    spec = importlib.util.find_spec("trainers.augmentations._resampling")
    try:
        library = None if spec is None or spec.origin is None else ctypes.CDLL(spec.origin)
        library.resample.argtypes = (_PLACE, ctypes.c_int64, *[_SIZE] * 3, _PLACE, *[_SIZE] * 3)
    except (OSError, AttributeError):
        return None
    return library


LIBRARY = _built()
PASSES = LIBRARY.serves() if LIBRARY is not None else 0  # bits of a register: 512 with AVX-512, 256 with AVX2, or none


def compiled(image_HWC: np.ndarray, height: int, width: int, *, passes: int = PASSES) -> np.ndarray | None:
    """The image at another size; None where compiled code does not serve it.

    It serves images that shrink to no less than a seventh, and grey ones with AVX-512 only. Python's lock is released.

    Args:
        image_HWC: uint8, at least one pixel.
        height, width: in pixels, at least 1.
        passes: 512, or 256 where the processor has these or wider ones.
    """
    if not passes:
        return None
    rows, columns, channels = image_HWC.shape
    down, right, across = image_HWC.strides
    if (right, across) != (channels, 1) or down < 0:
        image_HWC = np.ascontiguousarray(image_HWC)
        down = columns * channels  # strides of axes of length 1 may be any
    result_HWC = np.empty((height, width, channels), np.uint8)
    source, target = (each.__array_interface__["data"][0] for each in (image_HWC, result_HWC))
    served = LIBRARY.resample(source, down, rows, columns, channels, target, height, width, passes)
    return result_HWC if served else None
