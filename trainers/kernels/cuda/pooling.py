"""Pooling on a GPU of images whose channels are last in memory."""

from __future__ import annotations

from typing import Any

from trainers.kernels.cpu.convolution import Pair
from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import THREADS

_MOST = (1 << 32) - THREADS  # threads: the kernels count them in 32 bits


def max_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> tuple[Any, Any]:
    """See `trainers.kernels.cpu.pooling`."""
    y, places = _empty(x, out, x.dtype), _empty(x, out, "B")
    _launch("max_pooled", (x, y, places), size=x.shape[2:], out=out, kernel=kernel, stride=stride, pad=pad)
    return y, places


def max_pooling_gradient(gy: Any, places: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """See `trainers.kernels.cpu.pooling`."""
    gx = _empty(gy, size, gy.dtype)
    _launch("pooling_gradient", (gy, places, gx), size=size, out=gy.shape[2:], kernel=kernel, stride=stride, pad=pad)
    return gx


def average_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> Any:
    """The mean of each window, zeros beyond the border."""
    y = _empty(x, out, x.dtype)
    _launch("average_pooled", (x, y), size=x.shape[2:], out=out, kernel=kernel, stride=stride, pad=pad)
    return y


def average_pooling_gradient(gy: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """The gradient of `average_pooling`'s input, of height and width `size`."""
    gx = _empty(gy, size, gy.dtype)
    _launch("pooling_gradient", (gy, None, gx), size=size, out=gy.shape[2:], kernel=kernel, stride=stride, pad=pad)
    return gx


def _empty(like: Any, size: Pair, dtype: Any) -> Any:
    n, channels = like.shape[:2]
    return launcher.device.xp.empty((n, *size, channels), dtype).transpose(0, 3, 1, 2)


def _launch(
    name: str, arrays: tuple[Any, ...], *, size: Pair, out: Pair, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """Launch a kernel on arrays (n, channels, ...), or None; each thread writes V channels of a pixel of the last."""
    arrays = [array if array is None else as_NHWC(array) for array in arrays]
    n, *_, channels = arrays[0].shape
    width = launcher.width_of(arrays[0].itemsize, channels)
    pixels = n * (size[0] * size[1] if name == "pooling_gradient" else out[0] * out[1])
    if (threads := pixels * (channels // width)) > _MOST:
        raise MemoryError(f"{name}: {threads} threads, more than the kernel counts")  # smaller micro-batches do
    blocks = -(-threads // THREADS)
    sizes = (n, *size, channels, *out, *kernel, *stride, *pad)
    launcher.device.launch(name, arrays[0].dtype.char, width, (blocks,), (*arrays, *sizes))


def as_NHWC(x: Any) -> Any:
    """An array (n, channels, height, width) with channels last; a copy only where they are not last in memory."""
    return launcher.device.xp.ascontiguousarray(x.transpose(0, 2, 3, 1))
