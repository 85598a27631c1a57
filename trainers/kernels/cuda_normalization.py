"""Batch normalisation on a GPU, of (groups, rows, channels) one after the other in memory, with ReLU where asked.

Statistics are float64 sums over rows of any type; a group is never looped over in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainers.kernels import cuda_launch
from trainers.kernels.cuda_launch import THREADS

_BLOCKS = 2048  # some two rounds of all that a large GPU runs at once
_LANES = 32  # threads beside each other, at most
_ROWS = 4  # of a thread, at least


def mean_and_variance(x: Any) -> tuple[Any, Any]:
    """Mean and biased variance of each group and channel, float64 (groups, channels)."""
    spread = _Spread(x)
    parts = spread.launch_sums("moments", x)
    return tuple(_totals(parts, values=x.shape[1]))


def normalized(x: Any, mean: Any, inv_std: Any, gamma: Any, beta: Any, *, relu: bool = False, plus: Any = None) -> Any:
    """(x - mean) * inv_std * gamma + beta + plus, with `relu` what of it is above 0; the vectors (groups, channels)."""
    y = cuda_launch.device.xp.empty(x.shape, x.dtype)
    vectors = _vectors(x, mean, gamma * inv_std, beta)
    _Spread(x).launch("normalized", x, plus, y, *vectors, int(relu))
    return y


def normalization_gradient(
    gy: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, *, whole: Callable[..., Any] | None = None
) -> tuple[Any, Any, Any]:
    """See `trainers.kernels.numpy_normalization`."""
    return activated_gradient(gy, x, mean, inv_std, gamma, gamma, whole=whole)[:3]


def activated_gradient(
    gy: Any,
    x: Any,
    mean: Any,
    inv_std: Any,
    gamma: Any,
    beta: Any,
    *,
    relu: bool = False,
    y: Any = None,
    whole: Callable[..., Any] | None = None,
) -> tuple[Any, Any, Any, Any]:
    """The gradients of `normalized`'s x, gamma, beta and plus.

    Args:
        relu: as it was given.
        y: what came out, where there was a `plus`.
        whole: see `trainers.kernels.numpy_normalization`.
    """
    xp, spread, times = cuda_launch.device.xp, _Spread(x), gamma * inv_std
    counted = gy if y is None else xp.empty(gy.shape, gy.dtype)
    vectors = _vectors(x, mean, times, beta)
    parts = spread.launch_sums("gradient_sums", gy, x, y, counted, *vectors, relu=relu)
    gbeta, ggamma = _totals(parts)
    ggamma *= inv_std
    whole_ggamma, whole_gbeta, count = (ggamma, gbeta, x.shape[1])
    if whole is not None:
        *sums, count = whole(ggamma, gbeta, x.shape[1])
        whole_ggamma, whole_gbeta = map(xp.asarray, sums)
    slopes = _vectors(x, times * inv_std * whole_ggamma / count, times * whole_gbeta / count)
    gx = xp.empty(x.shape, x.dtype)
    spread.launch("input_gradient", counted, x, gx, *vectors, *slopes, int(relu and y is None))
    return gx, ggamma, gbeta, counted


class _Spread:
    """How the blocks and threads of a kernel share (groups, rows, channels)."""

    def __init__(self, x: Any) -> None:
        self._groups, self._rows, self._channels = x.shape
        self._kind, self._width = x.dtype.char, cuda_launch.width_of(x, self._channels)
        vectors = -(-self._channels // self._width)
        self._lanes = min(_LANES, 1 << (vectors - 1).bit_length())
        across, most = -(-vectors // self._lanes), -(-self._rows * self._lanes // (_ROWS * THREADS))
        self._grid = (across, max(1, min(_BLOCKS // (across * self._groups), most)), self._groups)

    def launch(self, name: str, *arguments: Any) -> None:
        sizes = (self._rows, self._channels, self._lanes)
        cuda_launch.device.launch(name, self._kind, self._width, self._grid, (*arguments, *sizes))

    def launch_sums(self, name: str, *arguments: Any, relu: bool | None = None) -> Any:
        """What the blocks of a kernel add up, float64 (groups, blocks, 2, channels)."""
        shape = (self._groups, self._grid[1], 2, self._channels)
        parts = cuda_launch.device.xp.empty(shape, "d")
        self.launch(name, *arguments, parts, *([] if relu is None else [int(relu)]))
        return parts


def _totals(parts: Any, *, values: int = 0) -> Any:
    """(2, groups, channels): the sums, or of so many values mean and variance."""
    groups, count, _, channels = parts.shape
    total = cuda_launch.device.xp.empty((2, groups, channels), "d")
    arguments = (parts, total, count, channels, groups, float(values))
    cuda_launch.device.launch("totals", "d", 1, (-(-channels // 8), groups), arguments)
    return total


def _vectors(x: Any, *vectors: Any) -> list[Any]:
    dtype = cuda_launch.vector_type(x)
    return [cuda_launch.device.xp.ascontiguousarray(vector, dtype=dtype) for vector in vectors]
