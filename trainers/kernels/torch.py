"""The kernels called `torch`: PyTorch's operators for CPUs on NumPy's memory, channels last, without copies.

What PyTorch does not cover (padding above half a pooling window, windows that begin in the padding) NumPy computes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from trainers.kernels.by_group import tree_sum
from trainers.kernels.cpu import normalization, pooling
from trainers.kernels.cpu.compiled import Steps, Threads, address
from trainers.kernels.cpu.compiled_normalization import Passes
from trainers.kernels.cpu.convolution import Pair
from trainers.kernels.cpu.elementwise import WORTH
from trainers.kernels.cpu.normalization import sums_of_groups
from trainers.kernels.threads import num_threads


def _openmp() -> int | None:
    """Address of the OpenMP function that starts PyTorch's threads; None where it was built with another library.

    Threads of our own would wait for PyTorch's, which spin between operators.
    """
    try:
        return address(ctypes.CDLL(torch._C.__file__), "GOMP_parallel")
    except OSError:
        return None


torch.set_num_threads(num_threads())
COMPUTES_MASK = COMPUTES_GROUPS = normalization.COMPUTES_MASK
scales = normalization.scales
_aten = torch.ops.aten
_threads = Threads(torch.get_num_threads, _openmp())
_compiled, _steps = Passes(_threads), Steps(_threads)
whole_scales, optimizer_step, finite = _compiled.whole_scales, _steps.optimizer_step, _steps.finite
STEPS = _steps.types
_LAST = torch.channels_last


def convolution(
    x: np.ndarray, W: np.ndarray, b: np.ndarray | None, *, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    if groups > 1:
        return _joined([convolution(part, W, b, stride=stride, pad=pad) for part in np.split(x, groups)])
    x_tensor, W_tensor = _tensor(x), _tensor(W)
    images = _images(W, stride, pad, x_tensor)
    y = torch.conv2d(_cut(x_tensor, images), W_tensor, None if b is None else _tensor(b), stride, pad)
    return _cut(y, len(x)).numpy()


def in_order(W: np.ndarray) -> np.ndarray:
    """The weights with channels last, as PyTorch reads them: reordered once, they need no copy in later calls."""
    return _tensor(W).numpy()


def convolution_data(
    gy: np.ndarray, W: np.ndarray, *, size: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    if groups > 1:
        return _joined([convolution_data(part, W, size=size, stride=stride, pad=pad) for part in np.split(gy, groups)])
    gy_tensor = _tensor(gy)
    # Of the input only shape and order are read.
    x = torch.empty((len(gy), W.shape[1], *size), dtype=gy_tensor.dtype, memory_format=_LAST)
    images = _images(W, stride, pad, x)
    gx = _backward(_cut(gy_tensor, images), _cut(x, images), _tensor(W), stride, pad, [True, False, False])[0]
    return _cut(gx, len(gy)).numpy()


def convolution_weights(
    x: np.ndarray, gy: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, groups: int = 1
) -> np.ndarray:
    """See `trainers.kernels.cpu.convolution`."""
    if groups > 1:
        how = {"kernel": kernel, "stride": stride, "pad": pad}
        return tree_sum([convolution_weights(*parts, **how) for parts in _split(groups, x, gy)])
    x_tensor = _tensor(x)
    W = torch.empty((gy.shape[1], x.shape[1], *kernel), dtype=x_tensor.dtype, memory_format=_LAST)
    images = _images(W, stride, pad, x_tensor)
    gW = _backward(_cut(_tensor(gy), images), _cut(x_tensor, images), W, stride, pad, [False, True, False])[1]
    return gW.contiguous().numpy()


def convolution_gradients(
    x: np.ndarray, W: np.ndarray, gy: np.ndarray, *, stride: Pair, pad: Pair, groups: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """What `convolution_data` and `convolution_weights` return, by one call."""
    x_tensor, W_tensor, gy_tensor = map(_tensor, (x, W, gy))
    of_x, of_W = [], []
    for gy_part, x_part in zip(gy_tensor.chunk(groups), x_tensor.chunk(groups), strict=True):
        images = _images(W, stride, pad, x_part)
        given = (_cut(gy_part, images), _cut(x_part, images), W_tensor)
        gx, gW, _ = _backward(*given, stride, pad, [True, True, False])
        of_x.append(_cut(gx, len(x_part)))
        of_W.append(gW)
    gx = of_x[0] if groups == 1 else torch.cat([part.permute(0, 2, 3, 1) for part in of_x]).permute(0, 3, 1, 2)
    return gx.numpy(), tree_sum(of_W).contiguous().numpy()


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


def max_pooling(x: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> tuple[np.ndarray, np.ndarray]:
    """See `trainers.kernels.cpu.pooling`; places are int64 indexes of pixels unless NumPy computed them."""
    sizes = list(zip(x.shape[2:], kernel, stride, pad, out, strict=True))
    if any(2 * p > k or (o - 1) * step >= size + p for size, k, step, p, o in sizes):
        return pooling.max_pooling(x, kernel=kernel, stride=stride, pad=pad, out=out)
    over = any(o > (size + 2 * p - k) // step + 1 for size, k, step, p, o in sizes)
    y, places = _aten.max_pool2d_with_indices(_tensor(x), kernel, stride, pad, (1, 1), over)
    return y.numpy(), places.numpy()


def max_pooling_gradient(
    gy: np.ndarray, places: np.ndarray, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair
) -> np.ndarray:
    """See `trainers.kernels.cpu.pooling`."""
    if places.dtype != np.int64:
        how = {"size": size, "kernel": kernel, "stride": stride, "pad": pad}
        return pooling.max_pooling_gradient(gy, places, **how)
    gy_tensor = _tensor(gy)
    x = torch.empty((*gy.shape[:2], *size), dtype=gy_tensor.dtype, memory_format=_LAST)  # only its shape is read
    sizes = zip(size, kernel, stride, pad, gy.shape[2:], strict=True)
    over = any(o > (s + 2 * p - k) // step + 1 for s, k, step, p, o in sizes)
    given = (gy_tensor, x, kernel, stride, pad, (1, 1), over, _tensor(places))
    return _aten.max_pool2d_with_indices_backward(*given).numpy()


def max_pooled_at(x: np.ndarray, places: np.ndarray, *, kernel: Pair, stride: Pair, pad: Pair) -> np.ndarray:
    """See `trainers.kernels.cpu.pooling`."""
    if places.dtype != np.int64:
        return pooling.max_pooled_at(x, places, kernel=kernel, stride=stride, pad=pad)
    planes, chosen = (array.reshape(*array.shape[:2], -1) for array in (x, places))
    return np.take_along_axis(planes, chosen, axis=2).reshape(places.shape)


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


def _split(groups: int, *arrays: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    return zip(*(np.split(array, groups) for array in arrays), strict=True)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Images of several groups, NCHW with channels last in memory, as one array."""
    return np.concatenate([part.transpose(0, 2, 3, 1) for part in parts]).transpose(0, 3, 1, 2)


def _backward(gy, x, W, stride, pad, wanted):
    return _aten.convolution_backward(gy, x, W, None, stride, pad, (1, 1), False, (0, 0), 1, wanted)


def _images(W: Any, stride: Pair, pad: Pair, x: torch.Tensor) -> int:
    """Number of images that a convolution's input is cut into.

    A 1x1 convolution gives the same for any number. With one thread and fewer than 16 images PyTorch does not use
    oneDNN, which takes half as long.
    """
    count, _, height, _ = x.shape
    if W.shape[2:] != (1, 1) or stride != (1, 1) or pad != (0, 0) or torch.get_num_threads() > 1:
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
    return tensor.contiguous(memory_format=order) if order is not None and array.ndim == 4 else tensor
