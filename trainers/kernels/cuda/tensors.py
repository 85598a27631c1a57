"""Kernels over many tensors in one launch: optimizer steps, running statistics, casts, gathering, finite checks.

Tables say which block works where. Trust ratios take two launches more.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.kernels.cuda import launcher
from trainers.kernels.cuda.launcher import THREADS, address
from trainers.kernels.optimizer_steps import OptimizerStep, StepDecay, Trust


def move_averages(sums: Any, places: Any, averages: Any, keep: float, *, pooled: bool) -> None:
    """What `trainers.models.batch_norm.moved_statistics` computes, in place.

    Args:
        sums: float64, what the layers have seen.
        places: int64 (4, channels), where in `sums` a channel's weight, mean, variance and squared mean are.
        averages: (2, channels)
        keep: what is kept of them, in [0, 1].
        pooled: whether the variance of the groups' means is added.
    """
    channels = averages.shape[1]
    arguments = (sums, places, averages, float(keep), int(pooled), channels)
    launcher.device.launch("moved_averages", averages.dtype.char, 1, (-(-channels // THREADS),), arguments)


_CHUNK = 1 << 14  # values of a block: CHUNK in the source
_ADDRESSES = 240  # of tensors in a launch of `gathered`: ADDRESSES in the source
_MOST = (1 << 32) - (1 << 14)  # values of a tensor that is narrowed or gathered: the kernels index it in 32 bits
_ALIGNED = 256  # values: alignment of narrowed tensors in their common memory


def finite(tensors: Sequence[Any]) -> Any:
    """Whether each of these arrays of one type holds only finite numbers: uint8, on the device."""
    flags = launcher.device.xp.ones(len(tensors), "B")
    launch("not_finite", tensors[0], table(tensors), addresses(tensors), flags)
    return flags


def narrowed(tensors: Sequence[Any], dtype: Any) -> list[Any] | None:
    """Copies of float32 tensors in a type of 16 bits or float32, made in one launch; channels last in memory where they
    have four axes, as convolutions need their weights. None for other types, and for tensors not in C order.
    """
    if np.dtype(dtype).char not in "eEf" or not tensors:
        return None
    if any(tensor.dtype != np.float32 or not tensor.flags.c_contiguous or tensor.size > _MOST for tensor in tensors):
        return None
    xp = launcher.device.xp
    of_all, fields, ends = _layout(tuple(tensor.shape for tensor in tensors), tuple(map(address, tensors)), xp)
    out = xp.empty(ends[-1], dtype)
    launch("narrowed", out, of_all, *fields, out)
    placed = zip(tensors, ends[:-1], strict=True)
    return [_channels_first(out[start : start + tensor.size], tensor.shape) for tensor, start in placed]


def gather(
    tensors: Sequence[Any], out: Any, *, starts: Sequence[int], adds: Sequence[bool], found: Any, numbers: Sequence[int]
) -> bool:
    """Write gradients to one array, each in C order, or add them to it: a launch for each of their types.

    Args:
        tensors: the gradients, which must not overlap in `out`.
        out: one-dimensional; float32, or float64 where all are.
        starts: where each begins in `out`.
        adds: of each, whether it is added.
        found: uint8, set to 1 at the `numbers` of those that hold an infinity or a NaN; None for no check.
    Returns:
        whether it was done: not for types without kernels, nor for tensors of 2^32 values.
    """
    kinds = {tensor.dtype.char for tensor in tensors}
    if not kinds <= set("d" if out.dtype.char == "d" else "eEf") or out.dtype.char not in "fd":
        return False
    if any(tensor.size > _MOST for tensor in tensors):
        return False
    given = [each for each in zip(tensors, starts, adds, numbers, strict=True) if each[0].size]
    for kind in sorted(kinds):
        alike = [each for each in given if each[0].dtype.char == kind]
        for first in range(0, len(alike), _ADDRESSES):
            _gather(alike[first : first + _ADDRESSES], out, found)
    return True


def _gather(given: list[tuple[Any, int, bool, int]], out: Any, found: Any) -> None:
    """Launch for at most `_ADDRESSES` tensors of one type, each with its start, whether it adds, and its number."""
    tensors, *rest = zip(*given, strict=True)
    tensors, windows = zip(*map(_in_rows, tensors), strict=True)
    places = np.zeros(_ADDRESSES, "q")
    places[: len(tensors)] = [*map(address, tensors)]
    fields_of = _kept_fields if launcher.device.rehearses else _recent_fields
    of_all, fields = fields_of(tuple(tensor.size for tensor in tensors), windows, *rest, xp=launcher.device.xp)
    launch("gathered", tensors[0], of_all, launcher.ByValue(places), *fields, out, found)


def _in_rows(tensor: Any) -> tuple[Any, tuple[int, int]]:
    """The tensor, copied if it has gaps; its channels and window where channels are last in memory, else ones."""
    if tensor.flags.c_contiguous:
        return tensor, (1, 1)
    if tensor.ndim == 4 and tensor.transpose(0, 2, 3, 1).flags.c_contiguous:
        return tensor, (tensor.shape[1], math.prod(tensor.shape[2:]))
    return tensor.copy(order="C"), (1, 1)


def _fields(
    sizes: tuple[int, ...],
    windows: tuple[tuple[int, int], ...],
    starts: tuple[int, ...],
    adds: tuple[bool, ...],
    numbers: tuple[int, ...],
    *,
    xp: Any,
) -> tuple[Table, list[Any]]:
    """The arguments of the kernel `gathered`, except for addresses."""
    fields = (*zip(*windows, strict=True), starts, numbers, adds)
    return _table_of(sizes, xp), [xp.asarray(np.array(each, "q")) for each in fields]


_recent_fields = functools.lru_cache(maxsize=1024)(_fields)  # bounded: stochastic depth gives ever new combinations
_kept_fields = functools.cache(_fields)  # unbounded: CUDA graphs read these arrays again at each replay


@functools.cache  # unbounded: CUDA graphs read these arrays again at each replay
def _layout(
    shapes: tuple[tuple[int, ...], ...], places: tuple[int, ...], xp: Any
) -> tuple[Table, tuple[Any, ...], list[int]]:
    """Arguments of the kernel `narrowed` for tensors at these addresses; where each begins in `out`, and the end."""
    sizes = tuple(map(math.prod, shapes))
    ends = np.cumsum([0, *(-(-size // _ALIGNED) * _ALIGNED for size in sizes)])
    windows = [shape[1:] if len(shape) == 4 else (1, 1, 1) for shape in shapes]
    numbers = (places, [window[0] for window in windows], [math.prod(window[1:]) for window in windows], ends[:-1])
    return _table_of(sizes, xp), tuple(xp.asarray(np.array(each, "q")) for each in numbers), ends.tolist()


def _channels_first(values: Any, shape: tuple[int, ...]) -> Any:
    """Values with channels last in memory, as an array of `shape`."""
    if len(shape) != 4:
        return values.reshape(shape)
    count, channels, *window = shape
    return values.reshape(count, *window, channels).transpose(0, 3, 1, 2)


@dataclass(frozen=True)
class Table:
    """Which block of a launch works on which values.

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
    """The table for all values of these tensors."""
    return _table_of(tuple(tensor.size for tensor in tensors), launcher.device.xp)


@functools.lru_cache(maxsize=8)
def _table_of(sizes: tuple[int, ...], xp: Any) -> Table:
    chunks = [(number, start) for number, size in enumerate(sizes) for start in range(0, size, _CHUNK)]
    firsts = np.cumsum([0, *(-(-size // _CHUNK) for size in sizes)])
    return Table(*(xp.asarray(np.array(each, "q")) for each in (chunks, sizes, firsts)), len(chunks))


def addresses(tensors: Sequence[Any]) -> Any:
    """Addresses of these tensors, as an array on the device; the caller has checked that they are contiguous."""
    return on_device(tuple(map(address, tensors)), "q")


def on_device(values: tuple[float, ...], kind: str) -> Any:
    """An array of these numbers on the device, cached."""
    return _kept(values, kind, launcher.device.xp)


@functools.lru_cache(maxsize=64)
def _kept(values: tuple[float, ...], kind: str, xp: Any) -> Any:
    return xp.asarray(np.array(values, kind))


def launch(name: str, like: Any, table: Table, *arguments: Any) -> None:
    """Launch a kernel with one block for each chunk."""
    launcher.device.launch(name, like.dtype.char, 1, (table.blocks,), (table.chunks, table.counts, *arguments))


STEPS = "eEfd"  # types of weights that there are steps for
_STATES = 2  # arguments of the kernels


def optimizer_step(
    form: OptimizerStep,
    decay: StepDecay,
    weights: Sequence[Any],
    gradients: Sequence[Any],
    states: Sequence[Sequence[Any]],
) -> None:
    """Move weights and states in place.

    Args:
        weights, gradients: contiguous arrays of one type, one a tensor.
        states: such arrays for each of the form's `states`.
    """
    of_all, like, lambdas = table(weights), weights[0], on_device(decay.lambdas, "d")
    held = [addresses(each) for each in states] + [None] * (_STATES - len(states))
    given = (addresses(weights), addresses(gradients), *held, lambdas, float(decay.coupled), float(decay.shrink))
    numbers, ratios = tuple(map(float, form.numbers)), None  # a component that Python code made may have integers
    if form.trust is not None:
        parts = launcher.device.xp.empty((of_all.blocks, 2), "d")
        launch(f"{form.kernels}_norms", like, of_all, *given, parts, *numbers)
        ratios = _ratios(form.trust, parts, of_all, lambdas, like)
    launch(f"{form.kernels}_step", like, of_all, *given, ratios, *numbers)


def _ratios(trust: Trust, parts: Any, of_all: Table, lambdas: Any, like: Any) -> Any:
    ratios, count = launcher.device.xp.empty(len(lambdas), "d"), len(lambdas)
    arguments = (parts, of_all.firsts, lambdas, ratios, *map(float, trust.numbers), count)
    launcher.device.launch("ratios", like.dtype.char, 1, (-(-count // THREADS),), arguments)
    return ratios
