"""The kernels called `torch` on a GPU: PyTorch's operators on CuPy's arrays by DLPack, without copies.

A second, independent set beside `cudnn`, to compare with and to stand on. PyTorch works on CuPy's current stream, and
CuPy takes its memory from PyTorch's allocator, so that there is one pool. Statistics of normalisation are float64 means
over PyTorch's float32 ones. What has no operator here (the loss, steps of all parameters at once) Chainer computes.

The operators take NumPy's arrays as well, on which the tests run them.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from trainers.kernels.cpu.convolution import Pair

COMPUTES_MASK = True
_aten = torch.ops.aten
_LAST = torch.channels_last


def share_memory() -> None:
    """From now on CuPy allocates from PyTorch's caching allocator."""
    import cupy

    cupy.cuda.set_allocator(cupy.cuda.PythonFunctionAllocator(_allocate, _free).malloc)


def _allocate(num_bytes: int, device: int) -> int:
    import cupy

    return torch.cuda.caching_allocator_alloc(num_bytes, device, cupy.cuda.get_current_stream().ptr)


def _free(address: int, device: int) -> None:
    torch.cuda.caching_allocator_delete(address)


def _operator(function: Callable[..., Any]) -> Callable[..., Any]:
    """Runs on CuPy's current stream, without PyTorch's graph of gradients; tensors in its result become arrays."""

    @functools.wraps(function)
    def call(first: Any, *given: Any, **how: Any) -> Any:
        on_stream = contextlib.nullcontext()
        if not isinstance(first, np.ndarray):
            import cupy

            address = cupy.cuda.get_current_stream().ptr  # 0: the default stream, but ExternalStream(0) is a new one
            stream = torch.cuda.ExternalStream(address) if address else torch.cuda.default_stream()
            on_stream = torch.cuda.stream(stream)
        with on_stream, torch.no_grad():
            return _arrays(function(first, *given, **how), type(first))

    return call


@_operator
def convolution(x: Any, W: Any, b: Any, *, stride: Pair, pad: Pair) -> Any:
    """See `trainers.kernels.cpu.convolution`."""
    with _rounding():
        return torch.conv2d(_tensor(x), _tensor(W), None if b is None else _tensor(b), stride, pad)


@_operator
def convolution_data(gy: Any, W: Any, *, size: Pair, stride: Pair, pad: Pair) -> Any:
    """See `convolution`."""
    gy, W = _tensor(gy), _tensor(W)
    x = torch.empty((len(gy), W.shape[1], *size), dtype=gy.dtype, device=gy.device, memory_format=_LAST)
    return _backward(gy, x, W, stride, pad, [True, False, False])[0]


@_operator
def convolution_weights(x: Any, gy: Any, *, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """See `convolution`."""
    x, gy = _tensor(x), _tensor(gy)
    W = torch.empty((gy.shape[1], x.shape[1], *kernel), dtype=x.dtype, device=x.device, memory_format=_LAST)
    return _backward(gy, x, W, stride, pad, [False, True, False])[1]


@_operator
def relu(x: Any) -> Any:
    """max(x, 0)"""
    return torch.relu(_tensor(x))


@_operator
def relu_gradient(y: Any, gy: Any) -> Any:
    """gy where y > 0, else 0."""
    return _aten.threshold_backward(_tensor(gy), _tensor(y), 0)


@_operator
def add(x: Any, y: Any) -> Any:
    """x + y"""
    return _tensor(x) + _tensor(y)


@_operator
def add_to(x: Any, y: Any) -> bool:
    """x += y, in place; returns whether it was done: not where x would have to be copied."""
    into = _shared(x)
    into.add_(_shared(y))
    return True


@_operator
def max_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> Any:
    """The largest value of each window, and its place in the plane, int64; windows may extend beyond the border."""
    (top, left), (height, width) = pad, x.shape[2:]
    reach = [(o - 1) * step + k for o, step, k in zip(out, stride, kernel, strict=True)]
    sides = (left, max(0, reach[1] - left - width), top, max(0, reach[0] - top - height))
    padded = torch.nn.functional.pad(_tensor(x), sides, value=-np.inf)
    padded = padded[:, :, : reach[0], : reach[1]].contiguous(memory_format=_LAST)
    return _aten.max_pool2d_with_indices(padded, kernel, stride)


@_operator
def max_pooling_gradient(gy: Any, places: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """The gradient of `max_pooling`'s input, of height and width `size`."""
    gy, places, (top, left) = _tensor(gy), _tensor(places), pad
    reach = [(o - 1) * step + k for o, step, k in zip(gy.shape[2:], stride, kernel, strict=True)]
    padded = torch.empty((*gy.shape[:2], *reach), dtype=gy.dtype, device=gy.device, memory_format=_LAST)
    gx = _aten.max_pool2d_with_indices_backward(gy, padded, kernel, stride, (0, 0), (1, 1), False, places)
    within = gx[:, :, top : top + size[0], left : left + size[1]]
    beyond = (0, size[1] - within.shape[3], 0, size[0] - within.shape[2])  # pixels in no window
    return torch.nn.functional.pad(within, beyond)


@_operator
def average_pooling(x: Any, *, kernel: Pair, stride: Pair, pad: Pair, out: Pair) -> Any:
    """The mean of each window, zeros beyond the border."""
    return torch.nn.functional.avg_pool2d(_tensor(x), kernel, stride, pad)


@_operator
def average_pooling_gradient(gy: Any, *, size: Pair, kernel: Pair, stride: Pair, pad: Pair) -> Any:
    """The gradient of `average_pooling`'s input, of height and width `size`."""
    gy = _tensor(gy)
    x = torch.empty((*gy.shape[:2], *size), dtype=gy.dtype, device=gy.device, memory_format=_LAST)
    return _aten.avg_pool2d_backward(gy, x, kernel, stride, pad, False, True, None)


@_operator
def mean_and_variance(x: Any) -> Any:
    """Mean and biased variance of each group and channel, float64 (groups, channels)."""
    var, mean = torch.var_mean(_wide(x), dim=1, correction=0)
    return mean.double(), var.double()


@_operator
def _scales(mean: Any, var: Any, gamma: Any, beta: Any, eps: float) -> Any:
    gamma, beta = (_tensor(each).expand(mean.shape) for each in (gamma, beta))
    inverse = torch.rsqrt(_tensor(var).double() + eps)
    return tuple(each.to(gamma.dtype).contiguous() for each in (_tensor(mean), inverse, gamma, beta))


def scales(x: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: float) -> tuple[Any, ...]:
    """Mean, 1 / deviation, gamma and beta of each group, (groups, channels), in the type of gamma."""
    return _scales(mean, var, gamma, beta, eps)


@_operator
def normalized_by(x: Any, scales: Any, *, relu: bool, plus: Any = None) -> Any:
    """(x - mean) * gamma / deviation + beta + plus, then ReLU with `relu`; x is (groups, rows, channels)."""
    mean, inverse, gamma, beta = (_tensor(each)[:, None] for each in scales)
    y = torch.addcmul(beta, _wide(x) - mean, gamma * inverse)
    if plus is not None:
        y += _tensor(plus)
    return (y.relu_() if relu else y).to(_tensor(x).dtype)


@_operator
def gradient_by(gy: Any, x: Any, scales: Any, *, relu: bool, y: Any = None, whole: Any = None) -> Any:
    """The gradients of `normalized_by`'s x, of gamma and beta, and of plus."""
    mean, inverse, gamma, beta = (_tensor(each)[:, None] for each in scales)
    counted, x_hat = _tensor(gy), (_wide(x) - mean) * inverse
    if relu:
        counted = torch.where((x_hat * gamma + beta if y is None else _tensor(y)) > 0, counted, 0)
    slopes, count = counted.to(x_hat.dtype), x.shape[1]
    ggamma, gbeta = (part.sum(dim=1, dtype=torch.float64) for part in (slopes * x_hat, slopes))
    of_gamma, of_beta = ggamma, gbeta
    if whole is not None:
        *sums, count = whole(*_arrays((ggamma, gbeta), type(x)), count)
        of_gamma, of_beta = (torch.as_tensor(each, device=ggamma.device) for each in sums)
    about, tilt = (each[:, None].to(x_hat.dtype) / count for each in (of_beta, of_gamma))
    gx = gamma * inverse * (slopes - about - x_hat * tilt)
    parameters = [part.sum(dim=0).to(gamma.dtype) for part in (ggamma, gbeta)]
    return gx.to(_tensor(x).dtype), parameters, counted


def _backward(gy: Any, x: Any, W: Any, stride: Pair, pad: Pair, wanted: list[bool]) -> Any:
    with _rounding():
        return _aten.convolution_backward(gy, x, W, None, stride, pad, (1, 1), False, (0, 0), 1, wanted)


@contextlib.contextmanager
def _rounding() -> Any:
    """Within, cuDNN rounds float32 to TF32 and takes nondeterministic plans only where Chainer's configuration does."""
    import chainer

    config = chainer.config
    allows, deterministic = config.use_cudnn_tensor_core == "always", bool(config.cudnn_deterministic)
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=not deterministic, deterministic=deterministic, allow_tf32=allows
    ):
        yield


def _wide(x: Any) -> torch.Tensor:
    """A tensor of at least float32."""
    tensor = _tensor(x)
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _tensor(array: Any) -> torch.Tensor:
    """A tensor on the same memory; a copy where four axes are not in the order with channels last."""
    if isinstance(array, torch.Tensor):
        return array
    tensor = _shared(array)
    return tensor.contiguous(memory_format=_LAST) if tensor.ndim == 4 else tensor


def _shared(array: Any) -> torch.Tensor:
    if array.dtype.char == "E":  # of ml_dtypes, which DLPack of NumPy does not know
        return torch.from_dlpack(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_dlpack(array)


def _arrays(result: Any, kind: type) -> Any:
    """Tensors as arrays of NumPy or CuPy, on the same memory; also within tuples and lists."""
    if isinstance(result, (tuple, list)):
        return type(result)(_arrays(each, kind) for each in result)
    if not isinstance(result, torch.Tensor):
        return result
    if kind is np.ndarray:
        xp = np
    else:
        import cupy as xp
    if result.dtype == torch.bfloat16:
        bfloat16 = importlib.import_module("ml_dtypes").bfloat16
        return xp.from_dlpack(result.view(torch.int16)).view(bfloat16)
    return xp.from_dlpack(result)
