"""Batch normalisation of norm groups with the convolution before it, a sum and ReLU behind it, in one node.

A model is written in Chainer's own terms, `F.relu(bn(conv(x)) + shortcut)`. The normalisation returns a `Pending`
variable, which is not computed yet: `+` and `F.relu` become part of its pass, anything else computes it.

Imports Chainer.
"""

from __future__ import annotations

import copy
import sys
import weakref
from dataclasses import dataclass
from typing import Any

import chainer
import chainer.functions as F
from chainer.functions.activation.relu import ReLUGrad2
from chainer.functions.normalization.batch_normalization import BatchNormalizationGrad

from trainers.kernels import chainer_convolution, chainer_hooks
from trainers.kernels.chainer_nodes import allows_short_apply, arrays_of, output_of, variable_of, variables_of


class Normalization(chainer.FunctionNode):
    """(x - mean) / deviation * gamma + beta + plus, then ReLU with `relu`.

    Each group of samples has a mean and a deviation of its own. Forward reads x and writes once; backward reads gy and
    x twice and writes gx, and with a `plus` before ReLU also reads the output once and writes the gradient of `plus`;
    on a CPU without compiled passes it does so with any ReLU.

    Args:
        scales: mean, 1 / deviation, gamma and beta of each group, (groups, channels).
        relu: apply ReLU after the sum.
        eps: was added to the variance.
        statistics: the `trainers.models.batch_norm_statistics.GroupStatistics` that computed the scales.
    """

    def __init__(self, scales: Any, *, relu: bool, eps: float, statistics: Any) -> None:
        self._scales, self._groups, self._relu = scales, len(scales[0]), relu
        self._eps, self._statistics = eps, statistics

    def apply(self, inputs: tuple[Any, ...]) -> tuple[chainer.Variable]:
        """What Chainer's `apply` does, by the short version where it serves."""
        variables = variables_of(inputs)
        if not allows_short_apply(variables):
            return super().apply(inputs)
        return output_of(self, variables, *self.forward(arrays_of(variables)))

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any]:
        x, _, _, *plus = inputs
        ours = chainer_hooks.operators_for(x)
        self._masked = self._relu and (bool(plus) or not ours.COMPUTES_MASK)  # backward masks by the retained output
        self.retain_inputs((0, 1))
        if self._masked:
            self.retain_outputs((0,))
        more = self._rows(plus[0]) if plus else None
        return (_from_rows(ours.normalized_by(self._rows(x), self._scales, relu=self._relu, plus=more), x),)

    def backward(self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable]) -> tuple[Any, ...]:
        (gy,), y = grad_outputs, self._out
        if chainer.config.enable_backprop:  # gradients of gradients are asked for: by nodes that have them
            grads = self._nodes(gy, *self.get_retained_inputs(), y)
            return tuple(grads[index] for index in indexes)
        grads = self._gradients(gy.array, self.inputs[0].data, self.inputs[1].data, y)
        return tuple([variable_of(grads[index]) for index in indexes])

    @property
    def _out(self) -> Any:
        """The output, where it was retained."""
        return self._retained_output_data[0] if self._masked else None

    def _gradients(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[Any, ...]:
        out, whole = None if y is None else self._rows(y), self._statistics.whole_sums
        given = (self._rows(gy), self._rows(x), self._scales)
        gx, parameters, counted = chainer_hooks.operators_for(x).gradient_by(
            *given, relu=self._relu, y=out, whole=whole
        )
        ggamma, gbeta = (part.astype(gamma.dtype, copy=False) for part in parameters)
        return _from_rows(gx, x), ggamma, gbeta, _from_rows(counted, x)

    def _nodes(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[chainer.Variable, ...]:
        if self._relu:
            if y is None:
                rows = self._rows(x.array)
                y = _from_rows(chainer_hooks.operators_for(rows).normalized_by(rows, self._scales, relu=True), x)
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
        return as_rows(x, self._groups)


def as_rows(x: Any, groups: int) -> Any:
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


def covers(x: Any, gamma: Any) -> bool:
    """Whether `Normalization` computes with such arrays."""
    if x.ndim not in (2, 4) or gamma.shape != x.shape[1:2]:
        return False
    if not hasattr(chainer_hooks.operators_for(x, gamma), "gradient_by"):
        return False
    return (x if x.ndim == 2 else x.transpose(0, 2, 3, 1)).flags.c_contiguous


class ConvolutionNormalization(Normalization):
    """`Normalization` of x convolved with W: half as many nodes, and less Python between operators.

    Args:
        convolution: Chainer's node, done by our kernels.
        h: its output.
        scales, how: see `Normalization`.
    """

    def __init__(self, convolution: chainer.FunctionNode, h: Any, scales: Any, **how: Any) -> None:
        super().__init__(scales, **how)
        self._how = chainer_convolution.options_of(convolution)
        self._kept_data = (convolution.ordered_weights, h)  # until backward, where the reordered weights save a copy

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any]:
        outputs = super().forward((self._kept_data[1], *inputs[2:]))
        self.retain_inputs((0, 1, 2))
        return outputs

    def backward(self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable]) -> tuple[Any, ...]:
        if not chainer.config.enable_backprop:
            return self.backward_accumulate(indexes, grad_outputs, (None,) * len(indexes))
        x, W, gamma = self.get_retained_inputs()
        h = F.convolution_2d(x, W, **self._how)  # the same bits, in a graph
        gh, *rest = self._nodes(grad_outputs[0], h, gamma, self._out)
        wanted = tuple([index for index in indexes if index < 2])
        of_convolution = h.creator_node.backward(wanted, (gh,)) if wanted else ()
        return (*of_convolution, *(rest[index - 2] for index in indexes if index >= 2))

    def backward_accumulate(
        self,
        indexes: tuple[int, ...],
        grad_outputs: tuple[chainer.Variable],
        grad_inputs: tuple[chainer.Variable | None, ...],
    ) -> tuple[chainer.Variable, ...]:
        """As Chainer's, but gradients that x and W already have are added to the new arrays in place."""
        if chainer.config.enable_backprop:  # gradients of gradients are asked for
            return super().backward_accumulate(indexes, grad_outputs, grad_inputs)
        x, gamma = self.inputs[0].data, self.inputs[2].data
        if self._kept_data is None:  # a second backward
            ours = chainer_hooks.operators_for(x)
            W = chainer_convolution.ordered(ours, self.inputs[1].data)
            self._kept_data = W, ours.convolution(x, W, None, **self._how)
        W, h = self._kept_data
        self._kept_data = None
        gh, *rest = self._gradients(grad_outputs[0].array, h, gamma, self._out)
        del h, rest[len(self.inputs) - 2 :]  # freed now: the next array reuses memory that is still in the caches
        before_of = dict(zip(indexes, map(chainer_convolution.array_of, grad_inputs), strict=True))
        ours = chainer_convolution.gradients(indexes, x, W, gh, plus=before_of.get(0), **self._how)
        if ours is not None:
            before_of[0] = None  # is in it
        grads = [*(ours or self._by_nodes(x, W, gh)), *rest]
        for index, before in before_of.items():
            if before is not None and index < 2:
                chainer_convolution.add_to(grads[index], before)
            elif before is not None:
                grads[index] = chainer_convolution.added(grads[index], before)
        return tuple([variable_of(grads[index]) for index in indexes])

    def _by_nodes(self, x: Any, W: Any, gh: Any) -> tuple[Any, ...]:
        """The gradients of x and W by Chainer's nodes, where the kernels have only the convolution itself."""
        with chainer.using_config("enable_backprop", True):
            h = F.convolution_2d(chainer.Variable(x), chainer.Variable(W), **self._how)
        return tuple([each.array for each in h.creator_node.backward((0, 1), (variable_of(gh),))])


class Pending(chainer.Variable):
    """The output of a normalisation that is computed when it is first used; from then on it is a plain `Variable`.

    `F.relu` and `+` take it into a node with them. Anything else computes the normalisation alone. What uses the
    variable after `F.relu` did gets values that are computed a second time.

    Args:
        x: what is normalised; `covers` accepts it.
        parameters: gamma and beta.
        scales, how: see `Normalization`; without a graph `statistics` may be None.
    """

    def __init__(self, x: Any, parameters: Any, scales: Any, **how: Any) -> None:
        variable = chainer.as_variable(x)
        variable.retain_data()
        given = _Normalization(variable.node, parameters, scales, how, chainer.config.enable_backprop)
        self.__dict__["_normalization"] = given

    def with_relu(self) -> chainer.Variable | None:
        """Its ReLU, in one node; None where ReLU must be a node of its own."""
        return self._normalization.output(relu=True) if self._normalization.is_current else None

    def in_sum(self, inputs: tuple[Any, Any]) -> chainer.Variable | None:
        """The sum of two inputs, one of which it is, pending as well; None where the sum must be a node of its own."""
        (other,) = (each for each in inputs if each is not self) if inputs[0] is not inputs[1] else (None,)
        array = chainer.as_array(other)  # of a sum that this is part of: computes this too
        if other is None or type(self) is not Pending or not self._normalization.is_current:
            return None
        x = self._normalization.x.data
        alike = type(array) is type(x) and (array.shape, array.dtype) == (x.shape, x.dtype)
        return _PendingSum(self, other, inputs) if alike else None

    def _output(self) -> chainer.Variable:
        with chainer.using_config("enable_backprop", self._normalization.has_graph):
            return self._normalization.output(relu=False)

    def __getattr__(self, name: str) -> Any:
        """What a `Variable` has and this has not yet: compute it."""
        _compute(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        _compute(self)
        setattr(self, name, value)

    def __copy__(self) -> chainer.Variable:
        _compute(self)
        return copy.copy(self)


class _PendingSum(Pending):
    """The sum of a `Pending` variable and another one, of which ReLU may make one node."""

    def __init__(self, pending: Pending, other: Any, inputs: tuple[Any, Any]) -> None:
        self.__dict__.update(_pending=pending, _other=other, _inputs=inputs, _has_graph=chainer.config.enable_backprop)

    def with_relu(self) -> chainer.Variable | None:
        pending = self._pending
        if type(pending) is not Pending or not pending._normalization.is_current:
            return None
        return pending._normalization.output(relu=True, plus=self._other)

    def in_sum(self, inputs: tuple[Any, Any]) -> None:
        return None

    def _output(self) -> chainer.Variable:
        if type(self._pending) is Pending:
            _compute(self._pending)
        with chainer.using_config("enable_backprop", self._has_graph):
            return F.add(*self._inputs)


def _compute(pending: Pending) -> None:
    """Make a plain variable of it."""
    output = pending._output()
    object.__setattr__(pending, "__class__", chainer.Variable)
    pending.__dict__.clear()
    pending.__dict__.update(vars(output))
    pending.node._variable = weakref.ref(pending)


@dataclass(frozen=True)
class _Normalization:
    """What is needed to compute a pending normalisation.

    Args:
        x: node of its input: the variable may be freed, which shows that nothing else will use it.
        parameters, scales, how: see `Pending`.
        has_graph: whether backprop was on.
    """

    x: Any
    parameters: tuple[Any, Any]
    scales: Any
    how: dict[str, Any]
    has_graph: bool

    @property
    def is_current(self) -> bool:
        """Whether a node that is made now would have the same part in a graph."""
        return self.has_graph == chainer.config.enable_backprop

    def output(self, *, relu: bool, plus: Any = None) -> chainer.Variable:
        rest = (*self.parameters, *(() if plus is None else (plus,)))
        # Two references, this object's and the argument: nothing else uses the convolution's output, now or later.
        if sys.getrefcount(self.x) == 2 and getattr(self.x.creator_node, "ordered_weights", None) is not None:
            convolution = self.x.creator_node
            variables = variables_of((*[each.get_variable() for each in convolution.inputs], *rest))
            if len(convolution.inputs) == 2 and allows_short_apply(variables):
                node = ConvolutionNormalization(convolution, self.x.data, self.scales, relu=relu, **self.how)
                return node.apply(variables)[0]
        return Normalization(self.scales, relu=relu, **self.how).apply((self.x.get_variable(), *rest))[0]
