"""The kernels called `torch`: PyTorch's operators for CPUs on NumPy's memory, channels last, without copies.

PyTorch has one thread, and `trainers.kernels.threads` calls it from several: its own threads spin between operators,
and what they add up depends on how many they are.

Our own compiled passes pool and normalise, and NumPy computes the convolutions for which it takes less time.
"""

from __future__ import annotations

import functools
import math
import mmap
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from trainers.kernels import by_group
from trainers.kernels.cpu import convolution as by_numpy
from trainers.kernels.cpu import normalization
from trainers.kernels.cpu.compiled import Steps
from trainers.kernels.cpu.compiled_normalization import Passes
from trainers.kernels.cpu.convolution import WORTH_THREADS, Pair, out_size
from trainers.kernels.cpu.elementwise import WORTH
from trainers.kernels.cpu.loss import cross_entropy, cross_entropy_gradient  # noqa: F401, operators too
from trainers.kernels.cpu.normalization import sums_of_groups
from trainers.kernels.cpu.pooling import max_pooled_at, max_pooling, max_pooling_gradient  # noqa: F401, operators too
from trainers.kernels.threads import THREADS, num_threads, shared

torch.set_num_threads(1)
COMPUTES_MASK = COMPUTES_GROUPS = normalization.COMPUTES_MASK
scales = normalization.scales
_aten = torch.ops.aten
_compiled, _steps = Passes(THREADS), Steps(THREADS)
whole_scales, row_sums = _compiled.whole_scales, _compiled.row_sums
optimizer_step, finite = _steps.optimizer_step, _steps.finite
STEPS = _steps.types
_LAST = torch.channels_last
# Pixels of an output, up to which NumPy is as fast or faster: fixed, so that ranks and hosts choose alike.
_FEW = 16  # gradients of weights by oneDNN take up to five times as long
# Channels of oneDNN's blocks. With fewer, the weight gradient of a strided 1x1 convolution writes past its memory, from
# which processes crash: uxlfoundation/oneDNN, issue 6035, in PyTorch 2.14.1.
_BLOCK = 16
_LEAST_COMPARED = 1000  # numbers, see `_samples_a_call`


def convolution(
    x: np.ndarray, W: np.ndarray, b: np.ndarray | None, *, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    if _suits_numpy(W, stride, pad, x.shape[2:]):
        return by_numpy.convolution(x, W, b, stride=stride, pad=pad, groups=groups)
    out = (len(W), *out_size(x.shape[2:], W.shape[2:], stride, pad))
    return _by_samples(_convolved, x, W, out, (stride, pad), groups, b)


def in_order(W: np.ndarray) -> np.ndarray:
    """The weights with channels last, as PyTorch reads them: reordered once, they need no copy in later calls."""
    return _tensor(W).numpy()


def convolution_data(
    gy: np.ndarray, W: np.ndarray, *, size: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    if _suits_numpy(W, stride, pad, size):
        return by_numpy.convolution_data(gy, W, size=size, stride=stride, pad=pad, groups=groups)
    return _by_samples(_convolved_back, gy, W, (W.shape[1], *size), (stride, pad, size), groups)


def convolution_weights(
    x: np.ndarray, gy: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    W = _unread((gy.shape[1], x.shape[1], *kernel), _tensor(x[:0]))
    if gy.shape[2] * gy.shape[3] <= _FEW or _suits_numpy(W, stride, pad, x.shape[2:]):
        return by_numpy.convolution_weights(x, gy, kernel=kernel, stride=stride, pad=pad, groups=groups)
    if tuple(kernel) == (1, 1) and tuple(pad) == (0, 0) and x.shape[1] < _BLOCK:  # one pixel in so many is read
        x, stride = x[:, :, :: stride[0], :: stride[1]], (1, 1)
    worth = gy.size * W[0].numel() >= WORTH_THREADS
    count = groups if groups > 1 or by_group.count or not worth else min(num_threads(), len(x))
    x_parts, gy_parts = (_tensor(array).tensor_split(count) for array in (x, gy))
    parts = [W] * count

    def task(start: int, stop: int) -> None:
        for number in range(start, stop):
            part = x_parts[number]
            images = _images(W, stride, pad, part)
            given = (_cut(gy_parts[number], images), _cut(part, images), W, stride, pad)
            parts[number] = _backward(*given, [False, True, False])[1]

    _on_threads(task, count, worth=worth)
    return _summed(parts, in_tree=groups > 1).contiguous().numpy()


def product(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x @ y. NumPy's product would wake OpenBLAS's threads beside PyTorch's."""
    return torch.mm(_tensor(x), _tensor(y)).numpy()


def mean_and_variance(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """See `trainers.kernels.cpu.normalization`; PyTorch gives them rounded to the type of x."""
    if (result := _compiled.mean_and_variance(x)) is not None:
        return result
    result = [torch.batch_norm_update_stats(_image(group), None, None, 0.0) for group in x]
    mean, var = (np.array([part.numpy() for part in parts], np.float64) for parts in zip(*result, strict=True))
    return mean, var


def normalized(x: np.ndarray, mean: np.ndarray, inv_std: np.ndarray, gamma: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """See `trainers.kernels.cpu.normalization`."""
    y = np.empty(x.shape, x.dtype)
    for group, about, times, plus, out in zip(x, mean, gamma * inv_std, beta, y, strict=True):
        away = torch.sub(_tensor(group), _tensor(about), out=torch.from_numpy(out))  # first: far from 0 few digits
        torch.addcmul(_tensor(plus), away, _tensor(times), out=away)  # are left in a sum of products
    return y


def normalized_by(
    x: np.ndarray, scales: tuple[np.ndarray, ...], *, relu: bool, plus: np.ndarray | None = None
) -> np.ndarray:
    """See `trainers.kernels.cpu.normalization`."""
    if (y := _compiled.normalized_by(x, scales, relu=relu, plus=plus)) is not None:
        return y
    y = normalized(x, *scales)
    out = torch.from_numpy(y)
    if plus is not None:
        out.add_(_tensor(plus))
    if relu:
        out.relu_()
    return y


def gradient_by(
    gy: np.ndarray,
    x: np.ndarray,
    scales: tuple[np.ndarray, ...],
    *,
    relu: bool,
    y: np.ndarray | None = None,
    whole: Any = None,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """See `trainers.kernels.cpu.normalization`."""
    if (result := _compiled.gradient_by(gy, x, scales, relu=relu, y=y, whole=whole)) is not None:
        return result
    if relu and y is None:
        y = normalized_by(x, scales, relu=True)
    counted, (mean, inv_std, gamma, _) = relu_gradient(y, gy) if relu else gy, scales
    gx, *parts = normalization_gradient(counted, x, mean, inv_std, gamma, whole=whole)
    return gx, sums_of_groups(parts, like=gamma), counted


def normalization_gradient(
    gy: np.ndarray, x: np.ndarray, mean: np.ndarray, inv_std: np.ndarray, gamma: np.ndarray, *, whole: Any = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """See `trainers.kernels.cpu.normalization`, which serves parts of groups."""
    if whole is not None:
        return normalization.normalization_gradient(gy, x, mean, inv_std, gamma, whole=whole)
    result = []
    for gy_group, group, *vectors in zip(gy, x, gamma, mean, inv_std, strict=True):
        weight, about, inverse = (_tensor(np.ascontiguousarray(each)) for each in vectors)  # strides are not looked at
        given = (_image(gy_group), _image(group), weight, None, None, about, inverse, True, 0.0, [True, True, True])
        gx, ggamma, gbeta = (part.numpy() for part in _aten.native_batch_norm_backward(*given))
        result.append((gx[0, :, :, 0].T, ggamma, gbeta))
    return tuple(each[0][np.newaxis] if len(each) == 1 else np.stack(each) for each in zip(*result, strict=True))


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """x + y; None for small arrays, which NumPy adds as fast."""
    return torch.add(_tensor(x, order=None), _tensor(y, order=None)).numpy() if x.size >= WORTH else None


def add_to(x: np.ndarray, y: np.ndarray) -> bool:
    """x += y, except for small arrays; returns whether it was done."""
    if x.size < WORTH:
        return False
    torch.from_numpy(x).add_(_tensor(y, order=None))
    return True


def relu(x: np.ndarray) -> np.ndarray:
    """max(x, 0)"""
    return torch.relu(_tensor(x, order=None)).numpy()


def relu_gradient(y: np.ndarray, gy: np.ndarray) -> np.ndarray:
    """gy where y > 0, else 0."""
    return _aten.threshold_backward(_tensor(gy, order=None), _tensor(y, order=None), 0).numpy()


def _suits_numpy(W: Any, stride: Pair, pad: Pair, size: Pair) -> bool:
    """Whether a convolution is a product of a few pixels and a matrix, which NumPy does in half the time."""
    if tuple(W.shape[2:]) != (1, 1) or tuple(stride) == (1, 1) or tuple(pad) != (0, 0):
        return False
    height, width = out_size(size, (1, 1), stride, pad)
    return height * width <= _FEW


def _convolved(x: torch.Tensor, W: torch.Tensor, b: torch.Tensor | None, stride: Pair, pad: Pair) -> torch.Tensor:
    x, images = _aligned(x), _images(W, stride, pad, x)
    return _cut(torch.conv2d(_cut(x, images), W, b, stride, pad), len(x))


def _convolved_back(gy: torch.Tensor, W: torch.Tensor, b: None, stride: Pair, pad: Pair, size: Pair) -> torch.Tensor:
    gy = _aligned(gy)
    x = _unread((len(gy), W.shape[1], *size), gy)
    images = _images(W, stride, pad, x)
    return _cut(_backward(_cut(gy, images), _cut(x, images), W, stride, pad, [True, False, False])[0], len(gy))


def _unread(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Channels last, for an operator that reads only shape and order: pages that are never touched take no memory."""
    count, channels, height, width = shape
    pages = mmap.mmap(-1, math.prod(shape) * like.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=like.dtype).view(count, height, width, channels).permute(0, 3, 1, 2)


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """x at a multiple of 16 bytes, as arrays of their own are: 1x1 convolutions without oneDNN round by the place."""
    return x.clone(memory_format=torch.preserve_format) if x.data_ptr() % 16 else x


_Calls = Callable[..., torch.Tensor]


def _by_samples(
    of: _Calls,
    x: np.ndarray,
    W: np.ndarray,
    out: tuple[int, ...],
    how: Any,
    groups: int,
    b: np.ndarray | None = None,
) -> np.ndarray:
    """of(x, W, b, *how), (n, *out), on several threads, with the bits that each group has alone."""
    x_tensor, W_tensor, b_tensor = _tensor(x), _tensor(W), None if b is None else _tensor(b)
    threads = num_threads() if len(x) * W.size * out[1] * out[2] >= WORTH_THREADS else 1
    size = _samples_a_call(of, x.dtype, x.shape, W.shape, b is not None, how, groups, threads)
    if size == len(x):
        return of(x_tensor, W_tensor, b_tensor, *how).numpy()
    y = torch.empty((len(x), *out), dtype=x_tensor.dtype, memory_format=_LAST)

    def task(start: int, stop: int) -> None:
        for first in range(start * size, stop * size, size):
            y[first : first + size] = of(x_tensor[first : first + size], W_tensor, b_tensor, *how)

    _on_threads(task, len(x) // size, worth=threads > 1)
    return y.numpy()


def _on_threads(task: Callable[[int, int], None], count: int, *, worth: bool) -> None:
    """See `trainers.kernels.threads.shared`; on each thread PyTorch has but this one, which it must be told on each."""

    def alone(start: int, stop: int) -> None:
        torch.set_num_threads(1)
        task(start, stop)

    shared(alone, count, worth=worth)


@functools.cache
def _samples_a_call(
    of: _Calls,
    dtype: np.dtype,
    shape: tuple[int, ...],
    W_shape: tuple[int, ...],
    biased: bool,
    how: Any,
    groups: int,
    threads: int,
) -> int:
    """The samples of a call, for `threads` at once: so many that bits stay those of a call for each norm group.

    PyTorch may choose another way to compute for another number of samples, so it is tried, for random numbers. Of few
    numbers all may be the same by chance, of 16 once in 30 times (measured), so more are drawn.
    """
    n, span = shape[0], shape[0] // groups
    sizes = (n // k for k in range(threads, 0, -1) if n % k == 0)
    size = next(size for size in sizes if size % span == 0 or span % size == 0)
    if size == span:
        return size
    large, small = max(size, span), min(size, span)
    draws, shapes = np.random.default_rng(0), ((large, *shape[1:]), W_shape, W_shape[:1])
    compared = 0
    while compared < _LEAST_COMPARED:
        x, W, b = (_tensor(draws.standard_normal(each, dtype)) for each in shapes)
        given = W, b if biased else None, *how
        whole = of(x, *given)
        parts = (slice(start, start + small) for start in range(0, large, small))
        if not all(torch.equal(whole[part], of(x[part], *given)) for part in parts):
            return span
        compared += whole.numel()
    return size


def _summed(parts: Sequence[torch.Tensor], *, in_tree: bool) -> torch.Tensor:
    """The sum of the parts, which it overwrites; in the order of `by_group.tree_sum`, or one after the other."""
    if not in_tree:
        return functools.reduce(torch.Tensor.add_, parts)
    while len(parts) > 1:
        parts = [a.add_(b) for a, b in zip(parts[0::2], parts[1::2], strict=True)]
    return parts[0]


def _backward(gy, x, W, stride, pad, wanted):
    return _aten.convolution_backward(gy, x, W, None, stride, pad, (1, 1), False, (0, 0), 1, wanted)


def _images(W: Any, stride: Pair, pad: Pair, x: torch.Tensor) -> int:
    """Number of images that a convolution's input is cut into.

    A 1x1 convolution gives the same for any number. With fewer than 16 images PyTorch does not use oneDNN on one
    thread, which takes half as long.
    """
    count, _, height, _ = x.shape
    if W.shape[2:] != (1, 1) or stride != (1, 1) or pad != (0, 0):
        return count
    parts = (k for k in range(1, height + 1) if height % k == 0)
    return count * next(k for k in parts if count * k >= 16 or k == height)


def _cut(x: torch.Tensor, images: int) -> torch.Tensor:
    """A view of the same memory, channels last, as `images` images of fewer or more lines."""
    if images == len(x):
        return x
    count, channels, height, width = x.shape
    return x.permute(0, 2, 3, 1).view(images, count * height // images, width, channels).permute(0, 3, 1, 2)


def _image(rows: np.ndarray) -> torch.Tensor:
    """(rows, channels) as one image with channels last in memory, for which PyTorch has fast passes."""
    return torch.from_numpy(rows.T[np.newaxis, :, :, np.newaxis])


def _tensor(array: np.ndarray, *, order: torch.memory_format | None = _LAST) -> torch.Tensor:
    """A tensor on the same memory; a copy where it has another order, negative strides or is read-only."""
    if not array.flags.writeable or min(array.strides, default=0) < 0:
        array = array.copy(order="K")
    tensor = torch.from_numpy(array)
    if order is None or array.ndim != 4:
        return tensor
    tensor = tensor.contiguous(memory_format=order)
    if tensor.shape[1] > 1:
        return tensor
    # One channel is in both orders at once, and PyTorch would give a convolution's output the other one.
    _, _, height, width = tensor.shape
    return tensor.as_strided(tensor.shape, (height * width, 1, width, 1))
