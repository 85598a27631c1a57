"""ReLU and sums of large arrays by several threads, in blocks that stay in the cache.

Max pooling over images whose channels are last in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from trainers.kernels.cpu.convolution import Pair, channels_last
from trainers.kernels.threads import shared

_BLOCK_VALUES = 1 << 15
WORTH = 1 << 18  # size of an array, in values, from which on this is faster


def relu(x: np.ndarray) -> np.ndarray | None:
    """max(x, 0); None, as from all functions here, where Chainer's own is as fast."""
    return _by_blocks(lambda y, x: np.maximum(x, 0, out=y), x)


def relu_gradient(y: np.ndarray, gy: np.ndarray) -> np.ndarray | None:
    """gy where y > 0, else 0."""
    return _by_blocks(lambda gx, y, gy: np.multiply(gy, y > 0, out=gx), y, gy)


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """x + y"""
    return _by_blocks(lambda z, x, y: np.add(x, y, out=z), x, y)


def add_to(x: np.ndarray, y: np.ndarray) -> bool:
    """x += y, where that is faster than NumPy's own; returns whether it was done."""
    return _by_blocks(lambda z, x, y: np.add(x, y, out=z), x, y, out=x) is not None


def _by_blocks(
    function: Callable[..., object], *arrays: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray | None:
    """function(out, *arrays) on blocks of arrays that have one memory layout; None where they have not."""
    first = arrays[0]
    if first.size < WORTH:
        return None
    order = next((o for o in ((0, 2, 3, 1), (0, 1, 2, 3)) if first.ndim == 4 and _dense(first, o)), None)
    if order is None or not all(_dense(a, order) and a.shape == first.shape for a in arrays):
        return None
    out = np.empty([first.shape[number] for number in order], first.dtype) if out is None else out.transpose(order)
    flat = [out.ravel(), *(array.transpose(order).ravel() for array in arrays)]

    def task(start: int, stop: int) -> None:
        for place in range(start * _BLOCK_VALUES, min(stop * _BLOCK_VALUES, first.size), _BLOCK_VALUES):
            function(*(values[place : place + _BLOCK_VALUES] for values in flat))

    shared(task, -(-first.size // _BLOCK_VALUES), worth=True)
    return out.transpose(np.argsort(order))


def _dense(array: np.ndarray, order: tuple[int, ...]) -> bool:
    return array.ndim == 4 and array.transpose(order).flags.c_contiguous


def max_pooling(x: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> tuple[np.ndarray, np.ndarray]:
    """The largest value of each window, and its place there: the first of equal ones.

    Args:
        x: (n, c, h, w).
        out: height and width of the output; windows may extend beyond the border.
    Returns:
        both (n, c, *out), the places uint8.
    """
    padded = _padded(channels_last(x), kernel, stride, pad, out)
    views = _views(padded, kernel, stride, out)
    y = next(views).copy()
    places = np.zeros(y.shape, np.uint8)
    for number, view in enumerate(views, start=1):
        np.maximum(places, (view > y).view(np.uint8) * np.uint8(number), out=places)
        np.maximum(y, view, out=y)
    return y.transpose(0, 3, 1, 2), places.transpose(0, 3, 1, 2)


def max_pooling_gradient(
    gy: np.ndarray, places: np.ndarray, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair
) -> np.ndarray:
    """The gradient of `max_pooling`'s input, of height and width `size`."""
    gy_NHWC, places_NHWC = channels_last(gy), channels_last(places)
    n, *out, channels = gy_NHWC.shape
    padded = np.zeros((n, *_padded_size(size, kernel, stride, pad, out), channels), gy.dtype)
    apart = all(k <= step for k, step in zip(kernel, stride, strict=True))
    for number, view in enumerate(_views(padded, kernel, stride, out)):
        chosen = (places_NHWC == number).astype(gy.dtype)
        if apart:
            np.multiply(gy_NHWC, chosen, out=view)
        else:
            chosen *= gy_NHWC
            view += chosen
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
