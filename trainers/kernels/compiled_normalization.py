"""Batch normalisation's passes over float32 on a CPU, compiled: `normalization.c`, built by kilobatch's installation.

Arrays are as in `trainers.kernels.numpy_normalization`. NumPy and PyTorch go over them once for each operation: here
sum and ReLU are part of the pass that normalises, and what ReLU lets back is part of the passes of the gradient.
"""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

_PARTS = 16  # of a group, at most
_PART_VALUES = 1 << 15  # of a part, at least
_PLACE, _NUMBER, _FLAG = ctypes.c_void_p, ctypes.c_double, ctypes.c_int
_PASSES = {
    "whole_scales": (_PLACE, _PLACE, _PLACE, _NUMBER, _PLACE, _PLACE, _PLACE, _NUMBER, _PLACE),
    "normalized": (_PLACE, _PLACE, _PLACE, _FLAG, _PLACE, _PLACE),
    "gradients": (_PLACE, _PLACE, _PLACE, _FLAG, _PLACE, _PLACE, _PLACE, _PLACE, _PLACE),
}
Seen = tuple[np.ndarray, np.ndarray, float]  # weights, seen and factor of `trainers.kernels.cuda_normalization.see`


class _Shape(ctypes.Structure):
    """`struct shape` of `normalization.c`."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("groups", "rows", "channels", "parts")),
        ("parallel", ctypes.c_void_p),
    )


def load(library: ctypes.CDLL | None) -> ctypes.CDLL | None:
    """The library, ready; None where it is of another `normalization.c`, or this processor lacks AVX2 or FMA."""
    try:
        for name, arguments in _PASSES.items():
            getattr(library, name).argtypes = (ctypes.POINTER(_Shape), ctypes.c_uint, *arguments)
            getattr(library, name).restype = None
    except AttributeError:  # it has no such pass
        return None
    return library if library.serves() else None


def _built() -> ctypes.CDLL | None:
    found = importlib.util.find_spec("trainers.kernels._normalization")
    return None if found is None or found.origin is None else ctypes.CDLL(found.origin)


COMPILED = load(_built())


class Passes:
    """The passes on somebody's threads. Each gives None where it does not serve such arrays: nothing has been done.

    Args:
        num_threads: how many there are now.
        parallel: address of a function like OpenMP's GOMP_parallel, (work, data, threads, flags), that calls work(data)
            on so many threads at once and waits for all; None: they serve where there is one thread.
        worth: values of an array from which on threads are worth it.
    """

    def __init__(self, num_threads: Callable[[], int], parallel: int | None, *, worth: int = 0) -> None:
        self._num_threads, self._parallel, self._worth = num_threads, parallel, worth
        self._shape = cache(lambda *shape: _shape(*shape, parallel))

    def whole_scales(
        self, x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, eps: float, *, seen: Seen | None = None
    ) -> np.ndarray | None:
        """Mean, 1 / deviation, gamma and beta of each group that is whole in x, (4, groups, channels).

        Args:
            gamma, beta: (channels,)
            seen: see `trainers.kernels.cuda_normalization`.
        """
        if not self._serve(x, gamma, beta):
            return None
        shape, memory, threads = self._given(x)
        scales, (weights, sums, factor) = np.empty((4, *x.shape[::2]), x.dtype), seen or (None, None, 0.0)
        arrays = (_place(scales), _place(weights), _place(sums), factor, _place(memory))
        COMPILED.whole_scales(shape, threads, _place(x), _place(gamma), _place(beta), eps, *arrays)
        return scales

    def normalized_by(
        self, x: np.ndarray, scales: Any, *, relu: bool, plus: np.ndarray | None = None
    ) -> np.ndarray | None:
        """See `trainers.kernels.numpy_normalization`."""
        if not self._serve(x):
            return None
        shape, memory, threads = self._given(x)
        scales, y = np.asarray(scales), np.empty(x.shape, x.dtype)
        arrays = (_place(scales), _place(plus), relu, _place(y), _place(memory))
        COMPILED.normalized(shape, threads, _place(x), *arrays)
        return y

    def gradient_by(
        self, gy: np.ndarray, x: np.ndarray, scales: Any, *, relu: bool, y: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The gradients of x, of gamma and beta together, (2, channels), and of plus, of whole groups.

        Args:
            relu: as it was given.
            y: what came out, where something was added before ReLU; None: whether it was above 0 is computed again.
        """
        if not self._serve(x, gy):
            return None
        shape, memory, threads = self._given(x)
        counted = gy if y is None else np.empty(gy.shape, gy.dtype)
        scales, gx, parameters = np.asarray(scales), np.empty(x.shape, x.dtype), np.empty((2, x.shape[2]), x.dtype)
        arrays = (_place(scales), _place(counted), _place(gx), _place(parameters), _place(memory))
        COMPILED.gradients(shape, threads, _place(gy), _place(x), _place(y), relu, *arrays)
        return gx, parameters, counted

    def _serve(self, *arrays: np.ndarray) -> bool:
        if COMPILED is None or (self._parallel is None and self._num_threads() > 1):
            return False
        return all(array.dtype == np.float32 and array.flags.c_contiguous for array in arrays)

    def _given(self, x: np.ndarray) -> tuple[Any, np.ndarray, int]:
        shape, size = self._shape(*x.shape)
        return shape, np.empty(size), self._num_threads() if x.size >= self._worth else 1


def _shape(groups: int, rows: int, channels: int, parallel: int | None) -> tuple[Any, int]:
    """What the library is told of arrays of a shape, and how many float64 of memory it needs for them."""
    parts = min(_PARTS, max(1, rows * channels // _PART_VALUES))
    given = _Shape(groups=groups, rows=rows, channels=channels, parts=parts, parallel=parallel)
    return ctypes.pointer(given), groups * channels * (2 * parts + 2)


def _place(array: np.ndarray | None) -> int | None:
    """Where an array's numbers begin."""
    return None if array is None else array.__array_interface__["data"][0]
