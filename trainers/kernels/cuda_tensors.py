"""Many tensors at once on a GPU, wherever they lie: which block works where, and the search for infinities."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.kernels import cuda_launch

_CHUNK = 1 << 14  # values of a block, as in the source
_ALIGNED = 256  # values: of tensors that lie behind each other, each begins at a multiple


def finite(tensors: Sequence[Any]) -> list[bool]:
    """Whether each of these arrays of one type holds numbers only."""
    found = cuda_launch.device.xp.zeros(len(tensors), "B")
    launch("not_finite", tensors[0], table(tensors), addresses(tensors), found)
    return [not flag for flag in found.tolist()]


def narrowed(tensors: Sequence[Any], dtype: Any) -> list[Any] | None:
    """Tensors of float32 rounded to a type of 16 bits, all in one launch; channels last in memory where they have four
    axes, as convolutions want their weights. None for others, or for tensors that are not in C order.
    """
    if np.dtype(dtype).char not in "eE" or not tensors:
        return None
    if any(tensor.dtype != np.float32 or not tensor.flags.c_contiguous for tensor in tensors):
        return None
    xp = cuda_launch.device.xp
    of_all, told, ends = _layout(tuple(tensor.shape for tensor in tensors), tuple(map(_address, tensors)), xp)
    out = xp.empty(ends[-1], dtype)
    launch("narrowed", out, of_all, *told, out)
    placed = zip(tensors, ends[:-1], strict=True)
    return [_channels_first(out[start : start + tensor.size], tensor.shape) for tensor, start in placed]


@functools.cache  # not of a few: CUDA graphs read them, and ask for them no more
def _layout(
    shapes: tuple[tuple[int, ...], ...], places: tuple[int, ...], xp: Any
) -> tuple[Table, tuple[Any, ...], list[int]]:
    """What `narrowed` tells its kernel of tensors that lie at these addresses; where each goes, and where all end."""
    sizes = tuple(map(math.prod, shapes))
    ends = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes)])
    windows = [shape[1:] if len(shape) == 4 else (1, 1, 1) for shape in shapes]
    numbers = (places, [window[0] for window in windows], [math.prod(window[1:]) for window in windows], ends[:-1])
    return _table_of(sizes, xp), tuple(xp.asarray(np.array(each, "q")) for each in numbers), ends.tolist()


def _channels_first(values: Any, shape: tuple[int, ...]) -> Any:
    """Values that lie with channels last, as an array of that shape."""
    if len(shape) != 4:
        return values.reshape(shape)
    count, channels, *window = shape
    return values.reshape(count, *window, channels).transpose(0, 3, 1, 2)


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
    return on_device(tuple(map(_address, tensors)), "q")


def _address(tensor: Any) -> int:
    return tensor.data.ptr if hasattr(tensor.data, "ptr") else tensor.ctypes.data


def on_device(values: tuple[float, ...], kind: str) -> Any:
    """An array of these numbers, kept there for the next time."""
    return _kept(values, kind, cuda_launch.device.xp)


@functools.lru_cache(maxsize=64)
def _kept(values: tuple[float, ...], kind: str, xp: Any) -> Any:
    return xp.asarray(np.array(values, kind))


def launch(name: str, like: Any, table: Table, *arguments: Any) -> None:
    """Run a kernel of a block for each chunk."""
    cuda_launch.device.launch(name, like.dtype.char, 1, (table.blocks,), (table.chunks, table.counts, *arguments))
