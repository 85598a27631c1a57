"""ReLU and sums on a GPU that keep the memory layout of their inputs, where CuPy's own always write C order.

Pixels of a batch made into images as the model gets them, on a GPU.

Softmax cross entropy on a GPU: a loss a sample, their mean, and the gradient. Sums have a fixed order.

Pooling on a GPU of images whose channels are last in memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import THREADS


def relu(x: Any) -> Any | None:
    """max(x, 0). As in all functions here, None where x has gaps in memory or the arrays differ in type."""
    return _alike("relu", x)


def relu_gradient(y: Any, gy: Any) -> Any | None:
    """gy where y > 0, else 0."""
    return _alike("relu_gradient", y, gy)


def add(x: Any, y: Any) -> Any | None:
    """x + y"""
    return _alike("add", x, y)


def add_to(x: Any, y: Any) -> bool:
    """x += y, in place; returns whether it was done."""
    return _alike("add_to", x, y, in_place=True) is not None


def _alike(name: str, *arrays: Any, in_place: bool = False) -> Any | None:
    """Run a kernel on arrays brought into the first one's layout; `in_place` it writes the first one."""
    first, xp = arrays[0], launcher.device.xp
    if any(array.dtype != first.dtype for array in arrays):
        return None
    order = sorted(range(first.ndim), key=lambda axis: -first.strides[axis])  # stable: C order where all are equal
    if not first.transpose(order).flags.c_contiguous:
        return None
    rows = [xp.ascontiguousarray(array.transpose(order)) for array in arrays]
    if not in_place:
        rows.append(xp.empty(rows[0].shape, first.dtype))
    width = launcher.width_of(first, first.size)
    blocks = -(-first.size // (width * THREADS))
    launcher.device.launch(name, first.dtype.char, width, (blocks,), (*rows, first.size))
    return first if in_place else rows[-1].transpose(sorted(range(first.ndim), key=order.__getitem__))


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


_LANES = 64  # threads that share a sample, at most; assumed


def cross_entropy(x: Any, targets: Any, *, label_smoothing: float) -> tuple[Any, Any]:
    """The mean over samples, an array without axes, and what `cross_entropy_gradient` needs.

    Both are float32 where x has 16 bits. A label outside the classes makes the mean NaN.

    Args:
        x: logits, (samples, classes).
        targets: int32 or int64 (samples,), labels; or float32 (samples, classes), mixtures of them before smoothing.
        label_smoothing: in [0, 1).
    """
    xp, kind = launcher.device.xp, launcher.vector_type(x)
    losses, kept, mean = xp.empty(len(x), "d"), xp.empty((len(x), 3), kind), xp.empty((), kind)
    _launch("cross_entropy", x, targets, label_smoothing, losses, kept)
    launcher.device.launch("mean_loss", x.dtype.char, 1, (1,), (losses, mean, len(x)))
    return mean, kept


def cross_entropy_gradient(x: Any, targets: Any, kept: Any, gy: Any, *, label_smoothing: float) -> Any:
    """The gradient of `cross_entropy` with respect to its x.

    Args:
        kept: the second result of `cross_entropy`.
        gy: gradient of the mean, without axes.
    """
    xp = launcher.device.xp
    gx = xp.empty(x.shape, x.dtype)
    _launch("cross_entropy_gradient", x, targets, label_smoothing, kept, xp.ascontiguousarray(gy, kept.dtype), gx)
    return gx


def _launch(name: str, x: Any, targets: Any, label_smoothing: float, *arguments: Any) -> None:
    xp, (samples, classes) = launcher.device.xp, x.shape
    lanes = min(_LANES, 1 << (classes - 1).bit_length())
    given = [xp.ascontiguousarray(array) for array in (x, targets)]
    bytes_of_a_label = 0 if targets.dtype.kind == "f" else targets.dtype.itemsize
    numbers = (float(label_smoothing), bytes_of_a_label, samples, classes, lanes)
    blocks = -(-samples * lanes // THREADS)
    launcher.device.launch(name, x.dtype.char, 1, (blocks,), (*given, *numbers, *arguments))


Pair = tuple[int, int]


def max_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> tuple[Any, Any]:
    """See `trainers.kernels.cpu.pooling_elementwise`."""
    y, places = _empty(x, out, x.dtype), _empty(x, out, "B")
    _launch_pooling("max_pooled", (x, y, places), size=x.shape[2:], out=out, kernel=kernel, stride=stride, pad=pad)
    return y, places


def max_pooling_gradient(gy: Any, places: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """See `trainers.kernels.cpu.pooling_elementwise`."""
    gx = _empty(gy, size, gy.dtype)
    _launch_pooling(
        "pooling_gradient", (gy, places, gx), size=size, out=gy.shape[2:], kernel=kernel, stride=stride, pad=pad
    )
    return gx


def max_pooled_at(x: Any, places: Any, *, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """See `trainers.kernels.cpu.pooling_elementwise`."""
    out = places.shape[2:]
    y = _empty(x, out, x.dtype)
    _launch_pooling("max_pooled_at", (x, places, y), size=x.shape[2:], out=out, kernel=kernel, stride=stride, pad=pad)
    return y


def average_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> Any:
    """The mean of each window, zeros beyond the border."""
    y = _empty(x, out, x.dtype)
    _launch_pooling("average_pooled", (x, y), size=x.shape[2:], out=out, kernel=kernel, stride=stride, pad=pad)
    return y


def average_pooling_gradient(gy: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """The gradient of `average_pooling`'s input, of height and width `size`."""
    gx = _empty(gy, size, gy.dtype)
    _launch_pooling(
        "pooling_gradient", (gy, None, gx), size=size, out=gy.shape[2:], kernel=kernel, stride=stride, pad=pad
    )
    return gx


def _empty(like: Any, size: Pair, dtype: Any) -> Any:
    n, channels = like.shape[:2]
    return launcher.device.xp.empty((n, *size, channels), dtype).transpose(0, 3, 1, 2)


def _launch_pooling(
    name: str, arrays: tuple[Any, ...], *, size: Pair, out: Pair, kernel: Pair, stride: Pair, pad: Pair
) -> None:
    """Launch a kernel on arrays (n, channels, ...), or None; each thread writes V channels of a pixel of the last."""
    arrays = [array if array is None else as_NHWC(array) for array in arrays]
    n, *_, channels = arrays[0].shape
    width = launcher.width_of(arrays[0], channels)
    pixels = n * (size[0] * size[1] if name == "pooling_gradient" else out[0] * out[1])
    blocks = -(-pixels * (channels // width) // THREADS)
    sizes = (n, *size, channels, *out, *kernel, *stride, *pad)
    launcher.device.launch(name, arrays[0].dtype.char, width, (blocks,), (*arrays, *sizes))


def as_NHWC(x: Any) -> Any:
    """An array (n, channels, height, width) with channels last; a copy only where they are not last in memory."""
    return launcher.device.xp.ascontiguousarray(x.transpose(0, 2, 3, 1))
