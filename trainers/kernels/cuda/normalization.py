"""Batch normalisation on a GPU, of (groups, rows, channels) one after the other in memory, with ReLU where asked.

Statistics are float64 sums over rows of any type; a group is never looped over in Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import THREADS

COMPUTES_MASK = True  # backward computes the mask of a ReLU without a sum again, without its output
_MULTIPROCESSORS = 132  # (SMs) of an H100 or H200
_AT_ONCE = {"moments": 4, "normalized": 4, "gradient_sums": 3, "input_gradient": 2}  # blocks for one
_FEW = 4  # channels of a block that adds up partial sums: FEW in the source
_LANES = 32  # threads of a block along the channels, at most
_ROWS = 4  # that a thread processes, at least


def mean_and_variance(x: Any) -> tuple[Any, Any]:
    """Mean and biased variance of each group and channel, float64 (groups, channels)."""
    groups, rows, channels = x.shape
    total = launcher.device.xp.empty((groups, 2, channels), "d")
    _add_up(x, _spread(x).launch_sums("moments", x), total=total, values=rows)
    return total[:, 0], total[:, 1]


def scales(x: Any, mean: Any, var: Any, gamma: Any, beta: Any, eps: float) -> Any:
    """Mean, 1 / deviation, gamma / deviation and beta: (4, groups, channels), in the type of gamma.

    Args:
        x: that will be normalised; only its type is used.
        mean, var: float64 or the type of gamma, (groups, channels).
        gamma, beta: (channels,)
    """
    return _scaled(x, _as_parts(mean, var), gamma, beta, eps)


def whole_scales(
    x: Any, gamma: Any, beta: Any, eps: float, *, seen: tuple[Any, Any, float] | None = None
) -> tuple[Any, ...]:
    """`scales` by the mean and variance of x, which holds whole groups: one launch for the sums, one for the rest.

    Args:
        x: that will be normalised.
        gamma, beta: (channels,)
        seen: arguments of `see`, to do that as well: weights, seen and factor.
    """
    parts = _spread(x).launch_sums("moments", x)
    return _scaled(x, parts, gamma, beta, eps, values=x.shape[1], seen=seen)


def normalized_by(x: Any, scales: Any, *, relu: bool, plus: Any = None) -> Any:
    """(x - mean) * gamma / deviation + beta + plus, then ReLU with `relu`.

    Args:
        scales: of x, as `scales` returns them.
        plus: of x's shape; None for nothing.
    """
    y = launcher.device.xp.empty(x.shape, x.dtype)
    _spread(x).launch("normalized", x, plus, y, scales[0], scales[2], scales[3], int(relu))
    return y


def gradient_by(
    gy: Any, x: Any, scales: Any, *, relu: bool, y: Any = None, whole: Callable[..., Any] | None = None
) -> tuple[Any, Any, Any]:
    """The gradients of `normalized_by`'s x, of gamma and beta together, (2, channels), and of plus.

    Args:
        relu: as in the forward.
        y: output of the forward, where there was a `plus` before ReLU.
        whole: see `trainers.kernels.cpu.normalization`.
    """
    xp, spread = launcher.device.xp, _spread(x)
    counted = gy if y is None else xp.empty(gy.shape, gy.dtype)
    vectors = (scales[0], scales[2], scales[3])
    parts = spread.launch_sums("gradient_sums", gy, x, y, counted, *vectors, relu=relu)
    of_all, values, (groups, rows, channels) = None, x.shape[1], x.shape
    if whole is not None:
        sums = xp.empty((groups, 2, channels), "d")
        _add_up(x, parts, total=sums)
        of_gamma, of_beta, values = whole(sums[:, 1] * scales[1], sums[:, 0], rows)
        parts, of_all = sums[:, None], _as_parts(xp.asarray(of_beta), xp.asarray(of_gamma))
    slopes, gradients = (xp.empty((2, *shape), scales.dtype) for shape in ((groups, channels), (channels,)))
    _each_few(x, "slopes", parts, of_all, scales, slopes, gradients, float(values))
    gx = xp.empty(x.shape, x.dtype)
    spread.launch("input_gradient", counted, x, gx, *vectors, slopes[0], slopes[1], int(relu and y is None))
    return gx, gradients, counted


def see(mean: Any, var: Any, weights: Any, seen: Any, *, factor: float) -> None:
    """Add the statistics of groups to those seen, in place.

    Args:
        mean, var: float64, (groups, channels).
        weights: of the groups, float64.
        seen: float64 (1 + 3 * channels,): sum of the weights; weighted sums of means, of variances times `factor`, of
            squared means.
    """
    _add_up(mean, _as_parts(mean, var), seen=(weights, seen, factor))


class _Spread:
    """How the blocks and threads of a kernel share (groups, rows, channels) of a type.

    As many blocks share the rows of a group as lets the blocks of all groups run at once.
    """

    def __init__(self, shape: tuple[int, int, int], kind: str, itemsize: int) -> None:
        groups, rows, channels = shape
        self._kind, self._width = kind, launcher.width_of(itemsize, channels)
        vectors = -(-channels // self._width)
        lanes = min(_LANES, 1 << (vectors - 1).bit_length())
        across, most = -(-vectors // lanes), -(-rows * lanes // (_ROWS * THREADS))
        blocks = {name: _MULTIPROCESSORS * at_once // (across * groups) for name, at_once in _AT_ONCE.items()}
        self._grids = {name: (across, max(1, min(fit, most)), groups) for name, fit in blocks.items()}
        self._shape, self._sizes = shape, (rows, channels, lanes)

    def launch(self, name: str, *arguments: Any) -> None:
        launcher.device.launch(name, self._kind, self._width, self._grids[name], (*arguments, *self._sizes))

    def launch_sums(self, name: str, *arguments: Any, relu: bool | None = None) -> Any:
        """Launch a kernel that sums; returns the partial sums of its blocks, float64 (groups, blocks, 2, channels)."""
        (groups, _, channels), blocks = self._shape, self._grids[name][1]
        parts = launcher.device.xp.empty((groups, blocks, 2, channels), "d")
        self.launch(name, *arguments, parts, *([] if relu is None else [int(relu)]))
        return parts


_spread_of = functools.cache(_Spread)


def _spread(x: Any) -> _Spread:
    return _spread_of(x.shape, x.dtype.char, x.itemsize)


def _scaled(x: Any, parts: Any, gamma: Any, beta: Any, eps: float, **how: Any) -> Any:
    """`scales` from partial sums; see `_add_up`."""
    scales = launcher.device.xp.empty((4, len(parts), parts.shape[3]), launcher.vector_type(x))
    _add_up(x, parts, scaled=(*_vectors(x, gamma, beta), scales), eps=eps, **how)
    return scales


def _add_up(
    x: Any,
    parts: Any,
    *,
    values: int = 0,
    total: Any = None,
    scaled: tuple[Any, Any, Any] | None = None,
    eps: float = 0.0,
    seen: tuple[Any, Any, float] | None = None,
) -> None:
    """Add up partial sums (groups, count, 2, channels) over count and write what is asked for; see the kernel `totals`.

    Args:
        values: where above 0, the sums are of so many values and of their squares, and become mean and variance.
        total: written, (groups, 2, channels): both sums, or mean and variance.
        scaled: gamma, beta, and the array that `scales` are written to.
        seen: weights, seen and factor of `see`.
    """
    *vectors, scales = scaled or (None, None, None)
    weights, sums, factor = seen or (None, None, 1.0)
    numbers = (float(values), float(eps), float(factor))
    _each_few(x, "totals", parts, total, *vectors, scales, weights, sums, *numbers)


def _each_few(x: Any, name: str, parts: Any, *arguments: Any) -> None:
    """Launch a kernel that adds up partial sums, for x's type."""
    groups, count, _, channels = parts.shape
    given = (parts, *arguments, groups, channels, count)
    launcher.device.launch(name, x.dtype.char, 1, (-(-channels // _FEW),), given)


def _as_parts(first: Any, second: Any) -> Any:
    """Numbers (groups, channels) as partial sums of one part."""
    return launcher.device.xp.stack([first, second], axis=1, dtype="d")[:, None]


def _vectors(x: Any, *vectors: Any) -> list[Any]:
    dtype = launcher.vector_type(x)
    return [launcher.device.xp.ascontiguousarray(vector, dtype=dtype) for vector in vectors]
