"""ReLU and sums of large arrays by several threads, in blocks that stay in the cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from trainers.kernels.threads import shared

_BLOCK_VALUES = 1 << 15
WORTH = 1 << 18  # size of an array, in values, from which on this is faster


def relu(x: np.ndarray) -> np.ndarray | None:
    """max(x, 0); None, as from all functions here, where Chainer's own is as fast."""
    return _by_blocks(lambda y, x: np.maximum(x, 0, out=y), x)


def relu_gradient(y: np.ndarray, gy: np.ndarray) -> np.ndarray | None:
    """gy where y > 0, else 0."""
    return _by_blocks(lambda gx, y, gy: np.multiply(gy, y > 0, out=gx), y, gy)


def add(x: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """x + y"""
    return _by_blocks(lambda z, x, y: np.add(x, y, out=z), x, y)


def add_to(x: np.ndarray, y: np.ndarray) -> bool:
    """x += y, where that is faster than NumPy's own; returns whether it was done."""
    return _by_blocks(lambda z, x, y: np.add(x, y, out=z), x, y, out=x) is not None


def _by_blocks(
    function: Callable[..., object], *arrays: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray | None:
    """function(out, *arrays) on blocks of arrays that have one memory layout; None where they have not."""
    first = arrays[0]
    if first.size < WORTH:
        return None
    order = next((o for o in ((0, 2, 3, 1), (0, 1, 2, 3)) if first.ndim == 4 and _dense(first, o)), None)
    if order is None or not all(_dense(a, order) and a.shape == first.shape for a in arrays):
        return None
    out = np.empty([first.shape[number] for number in order], first.dtype) if out is None else out.transpose(order)
    flat = [out.ravel(), *(array.transpose(order).ravel() for array in arrays)]

    def task(start: int, stop: int) -> None:
        for begin in range(start * _BLOCK_VALUES, min(stop * _BLOCK_VALUES, first.size), _BLOCK_VALUES):
            function(*(values[begin : begin + _BLOCK_VALUES] for values in flat))

    shared(task, -(-first.size // _BLOCK_VALUES), worth=True)
    return out.transpose(np.argsort(order))


def _dense(array: np.ndarray, order: tuple[int, ...]) -> bool:
    return array.ndim == 4 and array.transpose(order).flags.c_contiguous
