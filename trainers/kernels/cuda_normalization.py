"""Batch normalisation on a GPU, of (groups, rows, channels) one after the other in memory, with ReLU where asked.

Statistics are float64 sums over rows of any type; a group is never looped over in Python.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trainers.kernels import cuda_launch
from trainers.kernels.cuda_launch import THREADS

COMPUTES_MASK = True  # of ReLU without a sum, again, rather than read what came out
_BLOCKS = 2048  # some two rounds of all that a large GPU runs at once
_LANES = 32  # threads beside each other, at most
_ROWS = 4  # of a thread, at least


def mean_and_variance(x: Any) -> tuple[Any, Any]:
    """Mean and biased variance of each group and channel, float64 (groups, channels)."""
    spread = _Spread(x)
    parts = spread.launch_sums("moments", x)
    return tuple(_totals(parts, values=x.shape[1]))


def scales(x: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: float) -> Any:
    """Mean, 1 / deviation, gamma / deviation and beta: (4, groups, channels), in the type of gamma.

    Args:
        x: that will be normalised; only its type counts.
        mean, var: float64, (groups, channels).
        gamma, beta: (channels,)
    """
    mean, var = (cuda_launch.device.xp.ascontiguousarray(part) for part in (mean, var))
    found = cuda_launch.device.xp.empty((4, *mean.shape), cuda_launch.vector_type(x))
    vectors = _vectors(x, gamma, beta)
    _each(x, "scales", mean.size, mean, var, *vectors, found, float(eps), mean.shape[1], mean.size)
    return found


def normalized_by(x: Any, scales: Any, *, relu: bool, plus: Any = None) -> Any:
    """(x - mean) * gamma / deviation + beta + plus, with `relu` what of it is above 0.

    Args:
        scales: of x, see there.
        plus: like x; None for nothing.
    """
    y = cuda_launch.device.xp.empty(x.shape, x.dtype)
    _Spread(x).launch("normalized", x, plus, y, scales[0], scales[2], scales[3], int(relu))
    return y


def gradient_by(
    gy: Any, x: Any, scales: Any, *, relu: bool, y: Any = None, whole: Callable[..., Any] | None = None
) -> tuple[Any, Any, Any]:
    """The gradients of `normalized_by`'s x, of gamma and beta together, (2, channels), and of plus.

    Args:
        relu: as it was given.
        y: what came out, where there was a `plus` before ReLU.
        whole: see `trainers.kernels.numpy_normalization`.
    """
    xp, spread = cuda_launch.device.xp, _Spread(x)
    counted = gy if y is None else xp.empty(gy.shape, gy.dtype)
    vectors = (scales[0], scales[2], scales[3])
    sums = _totals(spread.launch_sums("gradient_sums", gy, x, y, counted, *vectors, relu=relu))
    whole_sums, values = sums, x.shape[1]
    if whole is not None:
        of_gamma, of_beta, values = whole(sums[1], sums[0], values)
        whole_sums = xp.stack([xp.asarray(of_beta), xp.asarray(of_gamma)])
    _, groups, channels = sums.shape
    found, gradients = (xp.empty((2, *shape), scales.dtype) for shape in ((groups, channels), (channels,)))
    given = (sums, whole_sums, scales, found, gradients, float(values), channels, groups * channels)
    _each(x, "slopes", channels, *given)
    gx = xp.empty(x.shape, x.dtype)
    spread.launch("input_gradient", counted, x, gx, *vectors, found[0], found[1], int(relu and y is None))
    return gx, gradients, counted


def see(mean: Any, var: Any, weights: Any, seen: Any, *, factor: float) -> None:
    """Add the statistics of groups to those seen, in place.

    Args:
        mean, var: float64, (groups, channels).
        weights: of the groups, float64.
        seen: float64: the sum of the weights, those of weighted means, variances times `factor`, squared means.
    """
    groups, channels = mean.shape
    _each(mean, "see", channels, mean, var, weights, seen, float(factor), channels, groups)


def normalized(x: Any, mean: Any, inv_std: Any, gamma: Any, beta: Any) -> Any:
    """See `trainers.kernels.numpy_normalization`."""
    y = cuda_launch.device.xp.empty(x.shape, x.dtype)
    _Spread(x).launch("normalized", x, None, y, *_vectors(x, mean, gamma * inv_std, beta), 0)
    return y


def normalization_gradient(
    gy: Any, x: Any, mean: Any, inv_std: Any, gamma: Any, *, whole: Callable[..., Any] | None = None
) -> tuple[Any, Any, Any]:
    """See `trainers.kernels.numpy_normalization`."""
    xp, spread, times = cuda_launch.device.xp, _Spread(x), gamma * inv_std
    vectors = _vectors(x, mean, times, times)  # the last counts with ReLU only
    gbeta, ggamma = _totals(spread.launch_sums("gradient_sums", gy, x, None, None, *vectors, relu=False))
    ggamma *= inv_std
    whole_ggamma, whole_gbeta, count = (ggamma, gbeta, x.shape[1])
    if whole is not None:
        *sums, count = whole(ggamma, gbeta, x.shape[1])
        whole_ggamma, whole_gbeta = map(xp.asarray, sums)
    slopes = _vectors(x, times * inv_std * whole_ggamma / count, times * whole_gbeta / count)
    gx = xp.empty(x.shape, x.dtype)
    spread.launch("input_gradient", gy, x, gx, *vectors, *slopes, 0)
    return gx, ggamma, gbeta


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


def _each(x: Any, name: str, count: int, *arguments: Any) -> None:
    """Run a kernel of a thread for each of `count` numbers, for x's type."""
    cuda_launch.device.launch(name, x.dtype.char, 1, (-(-count // THREADS),), arguments)


def _vectors(x: Any, *vectors: Any) -> list[Any]:
    dtype = cuda_launch.vector_type(x)
    return [cuda_launch.device.xp.ascontiguousarray(vector, dtype=dtype) for vector in vectors]
