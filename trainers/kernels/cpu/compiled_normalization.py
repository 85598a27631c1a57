"""Batch normalisation's passes over float32 on a CPU, and the sum of rows, compiled: `normalization.c`.

Arrays are as in `trainers.kernels.cpu.normalization`. NumPy and PyTorch make a pass for each operation; here the sum
and ReLU are part of the pass that normalises, and ReLU's gradient is part of the gradient's passes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from trainers.kernels import by_group
from trainers.kernels.cpu.compiled import LIBRARY, Threads, load, place

_PARTS = 16  # of a group, at most
_PART_VALUES = 1 << 15  # of a part, at least
_PLACE, _NUMBER, _FLAG = ctypes.c_void_p, ctypes.c_double, ctypes.c_int
_PASSES = {
    "mean_and_variance": (_PLACE, _PLACE),
    "row_sums": (_PLACE, _PLACE, _PLACE),
    "whole_scales": (_PLACE, _PLACE, _PLACE, _NUMBER, _PLACE, _PLACE, _PLACE, ctypes.c_int64, _NUMBER, _PLACE),
    "normalized": (_PLACE, _PLACE, _PLACE, _FLAG, _PLACE, _PLACE),
    "gradients": (_PLACE, _PLACE, _PLACE, _FLAG, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE),
    "input_gradients": (_PLACE, _PLACE, _FLAG, _PLACE, _NUMBER, _PLACE, _PLACE),
}
Seen = tuple[np.ndarray, np.ndarray, float]  # weights, seen and factor of `trainers.kernels.cuda.normalization.see`


class _Shape(ctypes.Structure):
    """`struct shape` of `normalization.c`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("groups", "rows", "channels", "parts")),
        ("parallel", ctypes.c_void_p),
    )


COMPILED = load(LIBRARY, {name: (ctypes.POINTER(_Shape), ctypes.c_uint, *given) for name, given in _PASSES.items()})


class Passes:
    """The passes on given threads. Each returns None, and has done nothing, where it does not serve the arrays."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._shape = cache(lambda *shape: _shape(*shape, threads.parallel))

    def mean_and_variance(self, x: np.ndarray) -> np.ndarray | None:
        """See `trainers.kernels.cpu.normalization`."""
        if not self._serve(x):
            return None
        shape, memory, threads = self._given(x)
        COMPILED.mean_and_variance(shape, threads, place(x), place(memory))
        return _sums(x, shape, memory).copy()

    def row_sums(self, x: np.ndarray) -> np.ndarray | None:
        """x.sum(axis=1), (groups, channels), with sums in float64."""
        if not self._serve(x):
            return None
        shape, memory, threads = self._given(x)
        sums = np.empty(x.shape[::2], x.dtype)
        COMPILED.row_sums(shape, threads, place(x), place(sums), place(memory))
        return sums

    def whole_scales(
        self, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float, *, seen: Seen | None = None
    ) -> np.ndarray | None:
        """Mean, 1 / deviation, gamma and beta of each group, (4, groups, channels); x holds whole groups.

        Args:
            gamma, beta: (channels,)
            seen: see `trainers.kernels.cuda.normalization`; or with sums of each group, (groups, 1 + 3 * channels).
        """
        weights, sums, factor = seen or (None, None, 0.0)
        fits = gamma.shape == beta.shape == x.shape[2:]
        if sums is not None:
            fits = fits and sums.shape in ((1 + 3 * x.shape[2],), (len(x), 1 + 3 * x.shape[2]))
        if not fits or not self._serve(x, gamma, beta):
            return None
        shape, memory, threads = self._given(x)
        scales = np.empty((4, *x.shape[::2]), x.dtype)
        apart = sums.strides[0] // sums.itemsize if sums is not None and sums.ndim == 2 else 0
        arrays = (place(scales), place(weights), place(sums), apart, factor, place(memory))
        COMPILED.whole_scales(shape, threads, place(x), place(gamma), place(beta), eps, *arrays)
        return scales

    def normalized_by(
        self, x: np.ndarray, scales: Any, *, relu: bool, plus: np.ndarray | None = None
    ) -> np.ndarray | None:
        """See `trainers.kernels.cpu.normalization`."""
        scales = np.ascontiguousarray(scales, np.float32)
        if not self._serve(x, *([] if plus is None else [plus])) or not _fit(x, scales, plus):
            return None
        shape, memory, threads = self._given(x)
        y = np.empty(x.shape, x.dtype)
        arrays = (place(scales), place(plus), relu, place(y), place(memory))
        COMPILED.normalized(shape, threads, place(x), *arrays)
        return y

    def gradient_by(
        self,
        gy: np.ndarray,
        x: np.ndarray,
        scales: Any,
        *,
        relu: bool,
        y: np.ndarray | None = None,
        whole: Callable[..., Any] | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The gradients of x, of gamma and beta together, (2, channels), and of plus.

        Args:
            relu: as in the forward.
            y: output of the forward, where something was added before ReLU; None: ReLU's mask is computed again.
            whole: see `trainers.kernels.cpu.normalization`.
        """
        scales = np.ascontiguousarray(scales, np.float32)
        if not self._serve(x, gy, *([] if y is None else [y])) or not _fit(x, scales, gy, y):
            return None
        shape, memory, threads = self._given(x)
        counted = gy if y is None else np.empty(gy.shape, gy.dtype)
        gx, parameters = np.empty(x.shape, x.dtype), np.empty((len(x), 2, x.shape[2]), x.dtype)
        arrays = (place(counted), place(gx if whole is None else None), place(parameters), place(memory))
        COMPILED.gradients(shape, threads, place(gy), place(x), place(y), relu, place(scales), *arrays)
        if whole is not None:
            sums = _sums(x, shape, memory)
            ggamma, sums[0], rows = whole(sums[1] * scales[1], sums[0], x.shape[1])  # ggamma, as other workers send it
            sums[1] = ggamma / scales[1]
            arrays = (place(scales), rows, place(gx), place(memory))
            COMPILED.input_gradients(shape, threads, place(counted), place(x), relu and y is None, *arrays)
        return gx, by_group.sum_of_groups(parameters), counted

    def _serve(self, *arrays: np.ndarray) -> bool:
        if COMPILED is None or not self._threads.serve:
            return False
        return all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays)

    def _given(self, x: np.ndarray) -> tuple[Any, np.ndarray, int]:
        shape, size = self._shape(*x.shape)
        return shape, np.empty(size), self._threads.on(x.size)


def _fit(x: np.ndarray, scales: np.ndarray, *others: np.ndarray | None) -> bool:
    """Whether the scales fit x's groups and channels, and the others x's shape: the C code does not check."""
    return scales.shape == (4, *x.shape[::2]) and all(other is None or other.shape == x.shape for other in others)


def _sums(x: np.ndarray, shape: Any, memory: np.ndarray) -> np.ndarray:
    """The two sums of each group, (2, groups, channels), a view of the memory that the library wrote."""
    groups, _, channels = x.shape
    sizes = (groups, shape.contents.parts, 2, channels)
    return memory[: math.prod(sizes)].reshape(sizes)[:, 0].swapaxes(0, 1)


def _shape(groups: int, rows: int, channels: int, parallel: int | None) -> tuple[Any, int]:
    """The library's `struct shape` for arrays of this shape, and how many float64 of workspace it needs."""
    parts = min(_PARTS, max(1, rows * channels // _PART_VALUES))
    given = _Shape(groups=groups, rows=rows, channels=channels, parts=parts, parallel=parallel)
    return ctypes.pointer(given), groups * channels * (2 * parts + 2)
