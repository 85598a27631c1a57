"""Batch normalisation of norm groups, a sum and ReLU in one node. Imports Chainer."""

from __future__ import annotations

from typing import Any

import chainer
import chainer.functions as F
from chainer.functions.activation.relu import ReLUGrad2
from chainer.functions.normalization.batch_normalization import BatchNormalizationGrad

from trainers.kernels import seams
from trainers.kernels.applied import is_plain, linked, variable_of, variables_of


class Normalized(chainer.FunctionNode):
    """(x - mean) / deviation * gamma + beta + plus, then ReLU with `relu`.

    Each group of samples has a mean and a deviation of its own. Forward reads x twice and writes once; backward reads
    gy and x twice and writes gx, and with a `plus` before ReLU also reads the output once and writes the gradient of
    `plus`; on a CPU without compiled passes it does so with any ReLU.

    Args:
        eps: added to the variance.
        groups: number of groups that x, (samples, channels, ...), is cut into.
        relu: apply ReLU after the sum.
        statistics: a `trainers.norm_statistics.GroupStatistics`, which computes mean and deviation.
    """

    def __init__(self, eps: float, groups: int, *, relu: bool, statistics: Any) -> None:
        self._eps, self._groups, self._relu, self._statistics = eps, groups, relu, statistics

    def apply(self, inputs: tuple[Any, ...]) -> tuple[chainer.Variable]:
        """What Chainer's `apply` does, by the short version where it serves."""
        variables = variables_of(inputs)
        if not is_plain(variables):
            return super().apply(inputs)
        return linked(self, variables, *self.forward([each.array for each in variables]))

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any]:
        x, gamma, beta, *plus = inputs
        ours, rows = seams.serving(x), self._rows(x)
        self._masked = self._relu and (bool(plus) or not ours.COMPUTES_MASK)  # backward masks by the retained output
        self.retain_inputs((0, 1))
        if self._masked:
            self.retain_outputs((0,))
        self._scales = self._statistics.scales(rows, gamma, beta, self._eps)
        more = self._rows(plus[0]) if plus else None
        return (_from_rows(ours.normalized_by(rows, self._scales, relu=self._relu, plus=more), x),)

    def backward(self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable]) -> tuple[Any, ...]:
        (gy,), y = grad_outputs, self._out
        if chainer.config.enable_backprop:  # gradients of gradients are asked for: by nodes that have them
            found = self._nodes(gy, *self.get_retained_inputs(), y)
            return tuple(found[index] for index in indexes)
        found = self._gradients(gy.array, self.inputs[0].data, self.inputs[1].data, y)
        return tuple([variable_of(found[index]) for index in indexes])

    @property
    def _out(self) -> Any:
        """The output, where it was retained."""
        return self._retained_output_data[0] if self._masked else None

    def _gradients(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[Any, ...]:
        out, whole = None if y is None else self._rows(y), self._statistics.whole_sums
        given = (self._rows(gy), self._rows(x), self._scales)
        gx, parameters, counted = seams.serving(x).gradient_by(*given, relu=self._relu, y=out, whole=whole)
        ggamma, gbeta = (part.astype(gamma.dtype, copy=False) for part in parameters)
        return _from_rows(gx, x), ggamma, gbeta, _from_rows(counted, x)

    def _nodes(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[chainer.Variable, ...]:
        if self._relu:
            if y is None:
                rows = self._rows(x.array)
                y = _from_rows(seams.serving(rows).normalized_by(rows, self._scales, relu=True), x)
            (gy,) = ReLUGrad2(y).apply((gy,))
        grouped, kept = (self._groups, len(x) // self._groups, *x.shape[1:]), (0, 2)
        axis = tuple(number for number in range(len(grouped)) if number not in kept)
        expander = tuple(slice(None) if number in kept else None for number in range(len(grouped)))
        mean, inv_std = self._scales[:2]
        given = (self._eps, expander, axis, mean, None, inv_std, kept, self._statistics, None)
        inputs = (F.reshape(x, grouped), F.broadcast_to(gamma, mean.shape), F.reshape(gy, grouped))
        gx, ggamma, gbeta = BatchNormalizationGrad(*given).apply(inputs)
        return F.reshape(gx, x.shape), F.sum(ggamma, axis=0), F.sum(gbeta, axis=0), gy

    def _rows(self, x: Any) -> Any:
        return _as_rows(x, self._groups)


def normalized_by_averages(
    x: Any, mean: Any, var: Any, parameters: tuple[Any, Any], eps: float, *, relu: bool, plus: Any = None
) -> Any:
    """(x - mean) / deviation * gamma + beta + plus, then ReLU with `relu`, in one pass, without a node.

    Args:
        x: an array that `covers` accepts, as is `plus`.
        mean, var: (channels,)
        parameters: gamma and beta, (channels,).
        eps: added to the variance.
    """
    ours, rows = seams.serving(x), _as_rows(x, 1)
    scales = ours.scales(rows, mean[None], var[None], *parameters, eps)
    more = None if plus is None else _as_rows(plus, 1)
    return _from_rows(ours.normalized_by(rows, scales, relu=relu, plus=more), x)


def _as_rows(x: Any, groups: int) -> Any:
    """(groups, rows, channels), on the same memory where channels are last."""
    last = x if x.ndim == 2 else x.transpose(0, 2, 3, 1)
    last = last if last.flags.c_contiguous else last.copy()
    return last.reshape(groups, -1, last.shape[-1])


def _from_rows(rows: Any, x: Any) -> Any:
    """Rows in the shape of x, on the same memory."""
    if x.ndim == 2:
        return rows.reshape(x.shape)
    count, channels, *size = x.shape
    return rows.reshape(count, *size, channels).transpose(0, 3, 1, 2)


def covers(x: Any, gamma: Any, plus: Any = None) -> bool:
    """Whether `Normalized` computes with such arrays."""
    alike = plus is None or (plus.dtype == x.dtype and plus.shape == x.shape)
    if (
        not alike
        or x.ndim not in (2, 4)
        or gamma.shape != x.shape[1:2]
        or not hasattr(seams.serving(x, gamma), "gradient_by")
    ):
        return False
    return (x if x.ndim == 2 else x.transpose(0, 2, 3, 1)).flags.c_contiguous
