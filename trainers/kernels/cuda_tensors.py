"""What is done to all parameters of a model at once on a GPU: an optimizer's step, the search for infinities."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.kernels import cuda_launch
from trainers.kernels.cuda_launch import THREADS

_CHUNK = 1 << 14  # values of a block, as in the source


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How a tensor's rate follows its norms; formula and names: `trainers.optimizers.Lars`.

    Args:
        clip_rate: the rate, where ratio times rate is held at it; else 0.
    """

    coefficient: float
    decay_in_trust: bool
    eps: float
    clip_rate: float


@dataclass(frozen=True, kw_only=True)
class MomentumForm:
    """A step with momentum, of one rate.

        d = ratio (g + coupled lambda w);  w <- w - shrink lambda w;  v <- momentum v + within d
        w <- w - beside v, or with `nesterov` w <- w - beside (momentum v + within d)

    Args:
        trust: where the ratio comes from; None for 1.
    """

    momentum: float
    within: float
    beside: float
    coupled: bool = True
    shrink: float = 0.0
    nesterov: bool = False
    trust: Trust | None = None


def momentum_step(
    form: MomentumForm, weights: Sequence[Any], gradients: Sequence[Any], states: Sequence[Any], decays: Sequence[float]
) -> None:
    """Move weights and states in place.

    Args:
        weights, gradients, states: arrays of one type without gaps, tensor for tensor.
        decays: lambda of each; below 0 for one without decay and ratio.
    """
    table, places, kind = _table(weights), [_addresses(each) for each in (weights, gradients, states)], weights[0]
    lambdas = _on_device(tuple(decays), "d")
    ratios = None if form.trust is None else _ratios(form.trust, table, places, lambdas, kind)
    numbers = (form.momentum, form.within, form.beside, float(form.coupled), form.shrink, int(form.nesterov))
    _launch("momentum_step", kind, table, *places, lambdas, ratios, *numbers)


def finite(tensors: Sequence[Any]) -> list[bool]:
    """Whether each of these arrays of one type holds numbers only."""
    found = cuda_launch.device.xp.zeros(len(tensors), "B")
    _launch("not_finite", tensors[0], _table(tensors), _addresses(tensors), found)
    return [not flag for flag in found.tolist()]


def _ratios(trust: Trust, table: _Table, places: list[Any], lambdas: Any, kind: Any) -> Any:
    xp, count = cuda_launch.device.xp, len(lambdas)
    parts, found = xp.empty((table.blocks, 2), "d"), xp.empty(count, "d")
    _launch("squares", kind, table, *places[:2], parts)
    numbers = (trust.coefficient, float(trust.decay_in_trust), trust.eps, trust.clip_rate, count)
    arguments = (parts, table.firsts, lambdas, found, *map(float, numbers[:4]), count)
    cuda_launch.device.launch("ratios", kind.dtype.char, 1, (-(-count // THREADS),), arguments)
    return found


@dataclass(frozen=True)
class _Table:
    """Which block works where."""

    chunks: Any
    counts: Any
    firsts: Any
    blocks: int


def _table(tensors: Sequence[Any]) -> _Table:
    assert all(tensor.flags.c_contiguous for tensor in tensors)
    return _table_of(tuple(tensor.size for tensor in tensors), cuda_launch.device.xp)


@functools.lru_cache(maxsize=8)
def _table_of(sizes: tuple[int, ...], xp: Any) -> _Table:
    chunks = [(number, start) for number, size in enumerate(sizes) for start in range(0, size, _CHUNK)]
    firsts = np.cumsum([0, *(-(-size // _CHUNK) for size in sizes)])
    return _Table(*(xp.asarray(np.array(each, "q")) for each in (chunks, sizes, firsts)), len(chunks))


def _addresses(tensors: Sequence[Any]) -> Any:
    places = (tensor.data.ptr if hasattr(tensor.data, "ptr") else tensor.ctypes.data for tensor in tensors)
    return _on_device(tuple(places), "q")


@functools.lru_cache(maxsize=64)
def _kept(values: tuple[float, ...], kind: str, xp: Any) -> Any:
    return xp.asarray(np.array(values, kind))


def _on_device(values: tuple[float, ...], kind: str) -> Any:
    return _kept(values, kind, cuda_launch.device.xp)


def _launch(name: str, like: Any, table: _Table, *arguments: Any) -> None:
    cuda_launch.device.launch(name, like.dtype.char, 1, (table.blocks,), (table.chunks, table.counts, *arguments))
