"""Max pooling over images whose channels are last in memory: float32 by `pooling.c`, else by NumPy."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np

from trainers.kernels.cpu.compiled import LIBRARY, load, place
from trainers.kernels.cpu.convolution import Pair, channels_last
from trainers.kernels.threads import THREADS

_PAIR = ctypes.c_int64 * 2


class _Windows(ctypes.Structure):
    """`struct windows` of `pooling.c`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("images", "height", "width", "channels", "out_height", "out_width")),
        *((name, _PAIR) for name in ("kernel", "stride", "pad")),
        ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_uint),
        *((name, ctypes.c_void_p) for name in ("x", "gy", "y", "gx", "places")),
    )


_COMPILED = load(LIBRARY, dict.fromkeys(("max_pooling", "max_pooling_gradient"), (ctypes.POINTER(_Windows),)))


def max_pooling(x: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> tuple[np.ndarray, np.ndarray]:
    """The largest value of each window, and its place there: the first of equal ones.

    Args:
        x: (n, c, h, w).
        out: height and width of the output; windows may extend beyond the border.
    Returns:
        both (n, c, *out), the places uint8.
    """
    x_NHWC = channels_last(x)
    if _serves(x.dtype) and _reaches_in(x.shape[2:], kernel=kernel, stride=stride, pad=pad, out=out):
        y = np.empty((len(x), *out, x.shape[1]), x.dtype)
        places = np.empty(y.shape, np.uint8)
        _call("max_pooling", x_NHWC.shape, y.shape, kernel, stride, pad, x=x_NHWC, y=y, places=places)
        return y.transpose(0, 3, 1, 2), places.transpose(0, 3, 1, 2)
    views = _views(_padded(x_NHWC, kernel, stride, pad, out), kernel, stride, out)
    y = next(views).copy()
    places = np.zeros(y.shape, np.uint8)
    for number, view in enumerate(views, start=1):
        larger = (view > y) | (view != view)  # a NaN wins, as in `pooling.c`
        np.maximum(places, larger.view(np.uint8) * np.uint8(number), out=places)
        np.maximum(y, view, out=y)
    return y.transpose(0, 3, 1, 2), places.transpose(0, 3, 1, 2)


def max_pooling_gradient(
    gy: np.ndarray, places: np.ndarray, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair
) -> np.ndarray:
    """The gradient of `max_pooling`'s input, of height and width `size`."""
    gy_NHWC, places_NHWC = channels_last(gy), channels_last(places)
    n, *out, channels = gy_NHWC.shape
    if _serves(gy.dtype) and _reaches_in(size, kernel=kernel, stride=stride, pad=pad, out=out):
        gx = np.empty((n, *size, channels), gy.dtype)
        _call(
            "max_pooling_gradient", gx.shape, gy_NHWC.shape, kernel, stride, pad, gy=gy_NHWC, gx=gx, places=places_NHWC
        )
        return gx.transpose(0, 3, 1, 2)
    padded = np.zeros((n, *_padded_size(size, kernel, stride, pad, out), channels), gy.dtype)
    apart = all(k <= step for k, step in zip(kernel, stride, strict=True))
    for number, view in enumerate(_views(padded, kernel, stride, out)):
        chosen = places_NHWC == number
        if apart:
            np.copyto(view, gy_NHWC, where=chosen)
        else:
            np.add(view, gy_NHWC, out=view, where=chosen)
    (height, width), (top, left) = size, pad
    return padded[:, top : top + height, left : left + width].transpose(0, 3, 1, 2)


def max_pooled_at(x: np.ndarray, places: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair) -> np.ndarray:
    """The values of x at the places that `max_pooling` has found in other values."""
    places_NHWC = channels_last(places)
    out = places_NHWC.shape[1:3]
    y = np.zeros(places_NHWC.shape, x.dtype)
    for number, view in enumerate(_views(_padded(channels_last(x), kernel, stride, pad, out), kernel, stride, out)):
        np.copyto(y, view, where=places_NHWC == number)
    return y.transpose(0, 3, 1, 2)


def _serves(dtype: np.dtype) -> bool:
    return _COMPILED is not None and THREADS.serve and dtype == np.float32


def _reaches_in(size: Pair, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> bool:
    """Whether every window has a pixel of the image."""
    return all(
        p < k and (o - 1) * step < s + p for s, k, step, p, o in zip(size, kernel, stride, pad, out, strict=True)
    )


def _call(
    name: str, shape: tuple[int, ...], out: tuple[int, ...], kernel: Pair, stride: Pair, pad: Pair, **of: Any
) -> None:
    """A function of `pooling.c` on contiguous arrays; both shapes are (n, h, w, c)."""
    images, height, width, channels = shape
    windows = _Windows(
        images=images,
        height=height,
        width=width,
        channels=channels,
        out_height=out[1],
        out_width=out[2],
        kernel=_PAIR(*kernel),
        stride=_PAIR(*stride),
        pad=_PAIR(*pad),
        parallel=THREADS.parallel,
        threads=THREADS.on(images * height * width * channels),
        **{key: place(array) for key, array in of.items()},
    )
    getattr(_COMPILED, name)(windows)


def _views(padded: np.ndarray, kernel: Pair, stride: Pair, out: Pair) -> Iterator[np.ndarray]:
    """For each place in a window: a view of that pixel of all windows."""
    for j in range(kernel[0]):
        for i in range(kernel[1]):
            yield padded[:, j : j + stride[0] * out[0] : stride[0], i : i + stride[1] * out[1] : stride[1]]


def _padded_size(size: Pair, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> Pair:
    reach = ((o - 1) * step + k for o, step, k in zip(out, stride, kernel, strict=True))
    return tuple(max(s + p, r) for s, p, r in zip(size, pad, reach, strict=True))


def _padded(x_NHWC: np.ndarray, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> np.ndarray:
    n, height, width, channels = x_NHWC.shape
    size = _padded_size((height, width), kernel, stride, pad, out)
    if size == (height, width):
        return x_NHWC
    padded = np.full((n, *size, channels), -np.inf, x_NHWC.dtype)
    padded[:, pad[0] : pad[0] + height, pad[1] : pad[1] + width] = x_NHWC
    return padded
