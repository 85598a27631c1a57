"""The passes of batch normalisation over images whose channels are last in memory.

Arrays are (groups, rows, channels), one after the other in memory: a row is a pixel of an image, a group is normalised
by itself. They are processed in blocks that stay in the cache; a few rows are joined into a long one, because NumPy's
inner loop is as long as a row. Sums are float64 and added block by block in a fixed order, on any number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trainers.kernels.by_group import sum_of_groups
from trainers.kernels.cpu.compiled_normalization import COMPILED, Passes
from trainers.kernels.threads import THREADS, shared

COMPUTES_MASK = COMPILED is not None  # backward computes the mask of a ReLU without a sum again, without its output
_BLOCK_VALUES = 1 << 15  # 128 KiB of float32: what is written once is read again from the cache
_ROW_VALUES = 512
_WORTH_THREADS = 1 << 18
_compiled = Passes(THREADS)
whole_scales, row_sums = _compiled.whole_scales, _compiled.row_sums


def mean_and_variance(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance of each group and channel, float64 (groups, channels).

        mean = m + sum (x - m) / n        var = sum (x - m)^2 / n - (mean - m)^2        m: 0, or in float64 the mean

    Squares of float32 are exact in float64, so one pass over the array loses nothing. In the compiled pass, m is an
    estimate of the mean, and sums of four rows are float32.
    """
    if (result := _compiled.mean_and_variance(x)) is not None:
        return result
    about = np.zeros(x.shape[:3:2])
    if x.dtype == np.float64:
        about = _moments(x, about)[0]
    mean, squares = _moments(x, about)
    return about + mean, np.maximum(squares - mean**2, 0.0)


def _moments(x: np.ndarray, about: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The means of x - about and of its square, float64 (groups, channels)."""
    wide = _wide(x)
    sums = _Sums(wide)
    (about_wide,) = _tiled(wide, about)
    moves = bool(about.any())

    def task(start: int, stop: int) -> None:
        memory = np.empty(_BLOCK_VALUES + wide.shape[2])
        for groups, rows, number in sums.blocks[start:stop]:
            block = wide[groups, rows]
            values = memory[: block.size].reshape(block.shape)
            if moves:
                np.subtract(block, about_wide[groups], out=values)
            else:
                np.copyto(values, block)
            sums.parts[0, groups, number] = np.add.reduce(values, axis=1)
            np.multiply(values, values, out=values)
            sums.parts[1, groups, number] = np.add.reduce(values, axis=1)

    _work(task, sums.blocks, x)
    return tuple(sums.total(x.shape[2]) / x.shape[1])


def scales(
    x: np.ndarray, mean: np.ndarray, var: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float
) -> tuple[np.ndarray, ...]:
    """Mean, 1 / deviation, gamma and beta of each group, (groups, channels), in the type of gamma.

    Args:
        x: that will be normalised; not used here.
        mean, var: float64 or the type of gamma, (groups, channels).
        gamma, beta: (channels,)
    """
    mean, var = (part.astype(gamma.dtype, copy=False) for part in (mean, var))
    inv_std = np.reciprocal(np.sqrt(var + gamma.dtype.type(eps)))
    return mean, inv_std, np.array([gamma] * len(mean)), np.array([beta] * len(mean))


def normalized_by(
    x: np.ndarray, scales: tuple[np.ndarray, ...], *, relu: bool, plus: np.ndarray | None = None
) -> np.ndarray:
    """(x - mean) * gamma / deviation + beta + plus, then ReLU with `relu`.

    Args:
        scales: of x, as `scales` returns them.
        plus: of x's shape; None for nothing.
    """
    y = _compiled.normalized_by(x, scales, relu=relu, plus=plus)
    return normalized(x, *scales, relu=relu, plus=plus) if y is None else y


def normalized(
    x: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
    gamma: np.ndarray,
    beta: np.ndarray,
    *,
    relu: bool = False,
    plus: np.ndarray | None = None,
) -> np.ndarray:
    """(x - mean) * inv_std * gamma + beta, the vectors (groups, channels); then `plus`, then ReLU."""
    wide, more = _wide(x), None if plus is None else _wide(plus)
    out_wide = np.empty(wide.shape, wide.dtype)
    vectors = _tiled(wide, mean, gamma * inv_std, beta)
    blocks, _ = _blocks(wide)

    def task(start: int, stop: int) -> None:
        for groups, rows, _ in blocks[start:stop]:
            about, times, shift = (vector[groups] for vector in vectors)
            y = np.subtract(wide[groups, rows], about, out=out_wide[groups, rows])
            y *= times
            y += shift
            if more is not None:
                y += more[groups, rows]
            if relu:
                np.maximum(y, 0, out=y)

    _work(task, blocks, x)
    return out_wide.reshape(x.shape)


def gradient_by(
    gy: np.ndarray,
    x: np.ndarray,
    scales: tuple[np.ndarray, ...],
    *,
    relu: bool,
    y: np.ndarray | None = None,
    whole: Callable[..., Any] | None = None,
) -> tuple[np.ndarray, list[np.ndarray], np.ndarray]:
    """The gradients of `normalized_by`'s x, of gamma and beta together, (2, channels), and of plus.

    Args:
        relu: as in the forward.
        y: output of the forward, where ReLU was applied and the output was retained.
        whole: see `normalization_gradient`.
    """
    if (result := _compiled.gradient_by(gy, x, scales, relu=relu, y=y, whole=whole)) is not None:
        return result
    if relu and y is None:
        y = normalized_by(x, scales, relu=True)
    counted, (mean, inv_std, gamma, _) = np.empty(gy.shape, gy.dtype) if relu else gy, scales
    gx, *parts = normalization_gradient(gy, x, mean, inv_std, gamma, whole=whole, y=y, counted=counted)
    return gx, sums_of_groups(parts, like=gamma), counted


def sums_of_groups(parts: Sequence[np.ndarray], *, like: np.ndarray) -> list[np.ndarray]:
    """Gradients of each group's vectors, (groups, channels), summed over the groups, in the type of `like`."""
    return [sum_of_groups(part.astype(like.dtype, copy=False)) for part in parts]


def normalization_gradient(
    gy: np.ndarray,
    x: np.ndarray,
    mean: np.ndarray,
    inv_std: np.ndarray,
    gamma: np.ndarray,
    *,
    whole: Callable[..., Any] | None = None,
    y: np.ndarray | None = None,
    counted: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The gradients of x, of gamma and of beta.

        gx = gamma inv_std (gy - (x_hat ggamma + gbeta) / n)        x_hat = (x - mean) inv_std

    Args:
        gy, x: (groups, rows, channels); the vectors are (groups, channels).
        whole: (ggamma, gbeta, n) -> the same of whole groups, where x holds parts of groups.
        y: mask of ReLU: only gy where y > 0 counts; None: all of it.
        counted: with y, written: gy where y > 0, else 0.
    """
    gbeta, ggamma = _gradient_sums(gy, x, mean, y, counted)
    gy = gy if y is None else counted
    ggamma *= inv_std
    whole_ggamma, whole_gbeta, count = (
        (ggamma, gbeta, x.shape[1]) if whole is None else whole(ggamma, gbeta, x.shape[1])
    )
    times = gamma * inv_std
    vectors = (mean, times, times * inv_std * whole_ggamma / count, times * whole_gbeta / count)
    gx = _input_gradient(gy, x, *(vector.astype(x.dtype, copy=False) for vector in vectors))
    return gx, ggamma, gbeta


def _gradient_sums(
    gy: np.ndarray, x: np.ndarray, mean: np.ndarray, y: np.ndarray | None, counted: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """sum gy and sum gy * (x - mean), float64 (groups, channels), of the gy that `normalization_gradient` counts."""
    wide, gy_wide, y_wide, counted_wide = (None if each is None else _wide(each) for each in (x, gy, y, counted))
    (about,) = _tiled(wide, mean)
    sums = _Sums(wide)

    def task(start: int, stop: int) -> None:
        memory = np.empty(_BLOCK_VALUES + wide.shape[2], x.dtype)
        for groups, rows, number in sums.blocks[start:stop]:
            block, gy_block = wide[groups, rows], gy_wide[groups, rows]
            if y is not None:
                gy_block = np.multiply(gy_block, y_wide[groups, rows] > 0, out=counted_wide[groups, rows])
            values = np.subtract(block, about[groups], out=memory[: block.size].reshape(block.shape))
            values *= gy_block
            sums.parts[0, groups, number] = np.add.reduce(gy_block, axis=1)
            sums.parts[1, groups, number] = np.add.reduce(values, axis=1)

    _work(task, sums.blocks, x)
    return tuple(sums.total(x.shape[2]))


def _input_gradient(
    gy: np.ndarray, x: np.ndarray, mean: np.ndarray, times: np.ndarray, slope: np.ndarray, shift: np.ndarray
) -> np.ndarray:
    """gy * times - ((x - mean) * slope + shift), the vectors (groups, channels)."""
    wide, gy_wide = _wide(x), _wide(gy)
    out_wide = np.empty(wide.shape, wide.dtype)
    vectors = _tiled(wide, mean, times, slope, shift)
    blocks, _ = _blocks(wide)

    def task(start: int, stop: int) -> None:
        memory = np.empty(_BLOCK_VALUES + wide.shape[2], x.dtype)
        for groups, rows, _ in blocks[start:stop]:
            about, factor, incline, plus = (vector[groups] for vector in vectors)
            block = wide[groups, rows]
            away = np.subtract(block, about, out=memory[: block.size].reshape(block.shape))
            away *= incline
            away += plus
            gx = np.multiply(gy_wide[groups, rows], factor, out=out_wide[groups, rows])
            gx -= away

    _work(task, blocks, x)
    return out_wide.reshape(x.shape)


class _Sums:
    """Two sums over the rows of each group: its blocks' sums are kept apart until all are done, then added in order."""

    def __init__(self, wide: np.ndarray) -> None:
        self.blocks, blocks_of_group = _blocks(wide)
        self.parts = np.empty((2, len(wide), blocks_of_group, wide.shape[2]))

    def total(self, channels: int) -> np.ndarray:
        """(2, groups, channels)"""
        return self.parts.reshape(2, self.parts.shape[1], -1, channels).sum(axis=2)


def _work(task: Callable[[int, int], None], blocks: list[Any], x: np.ndarray) -> None:
    shared(task, len(blocks), worth=x.size >= _WORTH_THREADS)


def _wide(x: np.ndarray) -> np.ndarray:
    """A view with as many rows joined into one as fit into `_ROW_VALUES`."""
    groups, rows, channels = x.shape
    together = 1
    while rows % (2 * together) == 0 and 2 * together * channels <= _ROW_VALUES:
        together *= 2
    return x.reshape(groups, rows // together, together * channels)


def _tiled(wide: np.ndarray, *vectors: np.ndarray) -> list[np.ndarray]:
    """Vectors (groups, channels) repeated to (groups, 1, values of a long row)."""
    return [np.tile(vector, wide.shape[2] // vector.shape[1])[:, np.newaxis] for vector in vectors]


def _blocks(wide: np.ndarray) -> tuple[list[tuple[slice, slice, int]], int]:
    """(groups, rows, number within its group) of each block, which is several groups or part of one; blocks a group."""
    groups, rows, values = wide.shape
    if rows * values <= _BLOCK_VALUES:
        together = max(1, _BLOCK_VALUES // (rows * values))
        return [(slice(start, start + together), slice(None), 0) for start in range(0, groups, together)], 1
    step = max(1, _BLOCK_VALUES // values)
    starts = range(0, rows, step)
    return [
        (slice(group, group + 1), slice(start, start + step), number)
        for group in range(groups)
        for number, start in enumerate(starts)
    ], len(starts)
