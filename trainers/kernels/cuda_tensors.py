"""Many tensors at once on a GPU, wherever they lie: which block works where, and the search for infinities."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.kernels import cuda_launch

_CHUNK = 1 << 14  # values of a block, as in the source


def finite(tensors: Sequence[Any]) -> list[bool]:
    """Whether each of these arrays of one type holds numbers only."""
    found = cuda_launch.device.xp.zeros(len(tensors), "B")
    launch("not_finite", tensors[0], table(tensors), addresses(tensors), found)
    return [not flag for flag in found.tolist()]


@dataclass(frozen=True)
class Table:
    """Which block works where.

    Args:
        chunks: (blocks, 2): number of the tensor, first value.
        counts: values of each tensor.
        firsts: the first block of each tensor, and the number of blocks.
    """

    chunks: Any
    counts: Any
    firsts: Any
    blocks: int


def table(tensors: Sequence[Any]) -> Table:
    """Of all values of these tensors."""
    return _table_of(tuple(tensor.size for tensor in tensors), cuda_launch.device.xp)


@functools.lru_cache(maxsize=8)
def _table_of(sizes: tuple[int, ...], xp: Any) -> Table:
    chunks = [(number, start) for number, size in enumerate(sizes) for start in range(0, size, _CHUNK)]
    firsts = np.cumsum([0, *(-(-size // _CHUNK) for size in sizes)])
    return Table(*(xp.asarray(np.array(each, "q")) for each in (chunks, sizes, firsts)), len(chunks))


def addresses(tensors: Sequence[Any]) -> Any:
    """Where these tensors without gaps lie; who calls this has seen that they have none."""
    places = (tensor.data.ptr if hasattr(tensor.data, "ptr") else tensor.ctypes.data for tensor in tensors)
    return on_device(tuple(places), "q")


def on_device(values: tuple[float, ...], kind: str) -> Any:
    """An array of these numbers, kept there for the next time."""
    return _kept(values, kind, cuda_launch.device.xp)


@functools.lru_cache(maxsize=64)
def _kept(values: tuple[float, ...], kind: str, xp: Any) -> Any:
    return xp.asarray(np.array(values, kind))


def launch(name: str, like: Any, table: Table, *arguments: Any) -> None:
    """Run a kernel of a block for each chunk."""
    cuda_launch.device.launch(name, like.dtype.char, 1, (table.blocks,), (table.chunks, table.counts, *arguments))
