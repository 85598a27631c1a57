"""Batch normalisation of norm groups, a sum and ReLU in one node. Imports Chainer."""

from __future__ import annotations

from typing import Any

import chainer
import chainer.functions as F
import numpy as np
from chainer.functions.activation.relu import ReLUGrad2
from chainer.functions.normalization.batch_normalization import BatchNormalizationGrad

from trainers.kernels import seams
from trainers.kernels.batch_normalization import ChannelsLastImpl
from trainers.kernels.numpy_normalization import from_rows, rows_of


class Normalized(chainer.FunctionNode):
    """(x - mean) / deviation * gamma + beta + plus, and with `relu` what of it is above 0

    Each group of samples has a mean and a deviation of its own. Forward reads x twice and writes once; backward reads
    gy and x twice and writes gx, and with a `plus` before ReLU reads what came out once and writes that gradient too.
    On the CPU it does so with any ReLU.

    Args:
        eps: added to the variance.
        groups: that x, (samples, channels, ...), is cut into.
        relu: or nothing after the sum.
        statistics: computes them.
    """

    def __init__(self, eps: float, groups: int, *, relu: bool, statistics: ChannelsLastImpl) -> None:
        self._eps, self._groups, self._relu, self._statistics = eps, groups, relu, statistics

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any]:
        x, gamma, beta, *plus = inputs
        ours = seams.serving(x)
        self._masked = self._relu and (bool(plus) or not ours.COMPUTES_MASK)  # by what came out
        self.retain_inputs((0, 1))
        if self._masked:
            self.retain_outputs((0,))
        grouped, axis = self._grouped(x)
        xp = chainer.backend.get_array_module(gamma)
        of_each = xp.broadcast_to(gamma, (self._groups, *gamma.shape))
        mean, var = self._statistics.get_mean_and_var(axis, of_each, grouped, xp, np.float64)
        self._scales = ours.scales(x, mean, var, gamma, beta, self._eps)
        return (self._normalized(x, *plus),)

    def backward(self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable]) -> tuple[Any, ...]:
        (gy,), (x, gamma) = grad_outputs, self.get_retained_inputs()
        y = self.get_retained_outputs()[0].array if self._masked else None
        if chainer.config.enable_backprop:  # gradients of gradients are asked for: by nodes that have them
            found = self._nodes(gy, x, gamma, y)
        else:
            found = tuple(map(chainer.as_variable, self._gradients(gy.array, x.array, gamma.array, y)))
        return tuple(found[index] for index in indexes)

    def _normalized(self, x: Any, plus: Any = None) -> Any:
        (grouped, axis), more = self._grouped(x), None if plus is None else self._rows(plus)
        y = seams.serving(x).normalized_by(self._rows(x), self._scales, relu=self._relu, plus=more)
        return from_rows(y, grouped.shape, axis).reshape(x.shape)

    def _gradients(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[Any, ...]:
        grouped, axis = self._grouped(x)
        out, whole = None if y is None else self._rows(y), self._statistics.whole_sums
        given = (self._rows(gy), self._rows(x), self._scales)
        gx, parameters, counted = seams.serving(x).gradient_by(*given, relu=self._relu, y=out, whole=whole)
        gx, counted = (from_rows(array, grouped.shape, axis).reshape(x.shape) for array in (gx, counted))
        return gx, *(part.astype(gamma.dtype, copy=False) for part in parameters), counted

    def _nodes(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[chainer.Variable, ...]:
        if self._relu:
            y = self._normalized(x.array) if y is None else y
            (gy,) = ReLUGrad2(y).apply((gy,))
        grouped, axis = self._grouped(x.array)
        kept = (0, 2)
        expander = tuple(slice(None) if number in kept else None for number in range(grouped.ndim))
        mean, inv_std = self._scales[:2]
        given = (self._eps, expander, axis, mean, None, inv_std, kept, self._statistics, None)
        inputs = (F.reshape(x, grouped.shape), F.broadcast_to(gamma, mean.shape), F.reshape(gy, grouped.shape))
        gx, ggamma, gbeta = BatchNormalizationGrad(*given).apply(inputs)
        return F.reshape(gx, x.shape), F.sum(ggamma, axis=0), F.sum(gbeta, axis=0), gy

    def _grouped(self, x: Any) -> tuple[Any, tuple[int, ...]]:
        """x as (groups, samples, channels, ...), on the same memory, and the axes that are normalised over."""
        grouped = x.reshape(self._groups, len(x) // self._groups, *x.shape[1:])
        return grouped, (1, *range(3, grouped.ndim))

    def _rows(self, x: Any) -> Any:
        grouped, axis = self._grouped(x)
        return rows_of(grouped, axis, copy=True)


def covers(x: Any, gamma: Any, plus: Any = None) -> bool:
    """Whether `Normalized` computes with such arrays."""
    alike = plus is None or (plus.dtype == x.dtype and plus.shape == x.shape)
    if not alike or x.ndim not in (2, 4) or not hasattr(seams.serving(x, gamma), "gradient_by"):
        return False
    return (x if x.ndim == 2 else x.transpose(0, 2, 3, 1)).flags.c_contiguous
