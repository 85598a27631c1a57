"""Chainer's nodes with less Python between operators, and its batch normalisation by our kernels. Imports Chainer.

`FunctionNode.apply` makes some thirty checks before and after `forward`: of hooks, devices, layouts, ChainerX and
debugging. Each is a cache miss after an operator that has filled the caches, and a GPU may wait meanwhile. The
functions here are a short version of it for nodes of ours on NumPy's and CuPy's arrays. They read the attributes behind
Chainer's properties.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer.functions.normalization import batch_normalization
from chainer.variable import Variable, VariableNode, as_variable  # works while Chainer itself is still being imported

from trainers.kernels import chainer_hooks


def allows_short_apply(variables: Sequence[chainer.Variable]) -> bool:
    """Whether the short version serves: no hooks, debugging or schedule functions, this device, standard layouts."""
    config = chainer.config
    if config.debug or config.schedule_func is not None or chainer.get_function_hooks():
        return False
    for each in variables:  # faster than `all`: this runs for every node
        if each._layout is not None:
            return False
    return _is_here(variables[0]._data[0])


def _is_here(array: Any) -> bool:
    """Whether an array is in host memory or on this thread's current GPU."""
    cuda = chainer.backends.cuda
    return type(array) is np.ndarray or (
        cuda.available and type(array) is cuda.ndarray and array.data.device_id == cuda.cupy.cuda.get_device_id()
    )


def variables_of(inputs: Sequence[Any]) -> list[chainer.Variable]:
    """The inputs of a node, as `apply` takes them, all as variables."""
    return [as_variable(each) for each in inputs]


def arrays_of(variables: Sequence[chainer.Variable]) -> list[Any]:
    """The arrays of variables for which `allows_short_apply` is true, without Chainer's checks of their layout."""
    return [each._data[0] for each in variables]


def variable_of(array: Any, *, requires_grad: bool = False) -> chainer.Variable:
    """The variable of an array that Chainer's constructor makes in a dozen calls: a step makes hundreds."""
    variable, node = Variable.__new__(Variable), VariableNode.__new__(VariableNode)
    variable._requires_grad = node._requires_grad = requires_grad
    variable._device = variable._loss_scale = variable._grad = variable._grad_var = None
    variable._grad_valid, variable._data, variable._node = True, [array], node
    variable._layout = node._layout = node.name = None
    node._variable, node.dtype, node.shape = weakref.ref(variable), array.dtype, array.shape
    return variable


def output_of(node: chainer.FunctionNode, variables: Sequence[chainer.Variable], y: Any) -> tuple[chainer.Variable]:
    """The output of a node that has one, and the edges of the graph: the end of `apply`.

    Args:
        node: whose forward has called `retain_inputs` and `retain_outputs`.
        variables: its inputs.
        y: the array that its forward gave.
    """
    node._input_layouts, node._output_layouts, node._output_count = (None,) * len(variables), (None,), 1
    nodes, rank, requires_grad = [each._node for each in variables], 0, False
    for each in nodes:
        rank = each._rank if each._rank > rank else rank
        requires_grad = requires_grad or each._requires_grad
    out = variable_of(y, requires_grad=requires_grad)
    config = chainer.config
    if not config.enable_backprop:
        return (out,)
    node.rank, node.lazy_grad_sum = rank, config.lazy_grad_sum
    out.creator_node = node
    node.inputs, node.outputs = tuple(nodes), (weakref.ref(out._node),)
    for index in node._input_indexes_to_retain or ():
        variables[index].retain_data()
    if node._output_indexes_to_retain is not None:
        out.retain_data()
        node._retained_output_data = (y,)
    return (out,)


class ChannelsLastImpl(batch_normalization.GeneralBatchNormalizationImpl):
    """Chainer's own, except where channels are last in memory; for one group, or several on the first axis."""

    def forward(self, axis, gamma, x, x_layout, xp, expander, beta, eps, decay, running_mean, running_var):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().forward(axis, gamma, x, x_layout, xp, expander, beta, eps, decay, running_mean, running_var)
        scales = None
        if type(self) is ChannelsLastImpl and len(rows) == 1 and type(rows) is np.ndarray:  # no subclass needs more
            scales, mean, var = _of_one_group(rows, gamma, beta, eps)
        if scales is not None:
            y, inv_std = chainer_hooks.operators_for(x).normalized_by(rows, scales, relu=False), scales[1, 0]
        else:
            mean, var = self.get_mean_and_var(axis, gamma, x, xp, gamma.dtype)
            inv_std = np.reciprocal(np.sqrt(var + gamma.dtype.type(eps)))
            vectors = (vector.reshape(len(rows), -1) for vector in (mean, inv_std, gamma, beta))
            y = chainer_hooks.operators_for(x).normalized(rows, *vectors)
        y = from_rows(y, x.shape, axis)
        if running_mean is not None:
            count = x.size // gamma.size
            for running, seen in ((running_mean, mean), (running_var, var * (count / max(count - 1.0, 1.0)))):
                running *= decay
                running += (1 - decay) * seen
        return y, x_layout, running_mean, running_var, mean, var, inv_std, scales

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().get_mean_and_var(axis, gamma, x, xp, interm_dtype)
        result = chainer_hooks.operators_for(x).mean_and_variance(rows)
        return tuple(part.reshape(gamma.shape).astype(interm_dtype) for part in result)

    def backward(self, axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().backward(axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data)
        gy_rows = rows_of(gy, axis, copy=True)
        ours = chainer_hooks.operators_for(x)
        if forward_data is not None:
            gx, parts, _ = ours.gradient_by(gy_rows, rows, forward_data, relu=False)
        else:
            vectors = (vector.reshape(len(rows), -1) for vector in (mean, inv_std, gamma))
            gx, *parts = ours.normalization_gradient(gy_rows, rows, *vectors, whole=self.whole_sums)
        ggamma, gbeta = (part.reshape(gamma.shape).astype(gamma.dtype) for part in parts)
        return from_rows(gx, x.shape, axis), None, ggamma, gbeta

    whole_sums = None  # (ggamma, gbeta, n) -> the same over whole groups, where this worker has parts of groups


def _of_one_group(rows, gamma, beta, eps):
    """Scales, mean and variance by the compiled pass for whole groups; three times None without it."""
    ours, channels = chainer_hooks.operators_for(rows), gamma.size
    if not hasattr(ours, "whole_scales"):
        return None, None, None
    seen = np.zeros(1 + 3 * channels)
    scales = ours.whole_scales(rows, gamma, beta, eps, seen=(np.ones(1), seen, 1.0))
    return scales, *(seen[1:].reshape(3, channels)[:2].astype(gamma.dtype))


def rows_served(x, gamma, axis):
    """x as (groups, rows, channels), where our passes serve it; else None: on a GPU they serve one node only."""
    return rows_of(x, axis) if hasattr(chainer_hooks.operators_for(x, gamma), "normalized") else None


def rows_of(x: np.ndarray, axis: tuple[int, ...], *, copy: bool = False) -> np.ndarray | None:
    """x as (groups, rows, channels).

    Args:
        axis: axes that are normalised over: (0, 2, 3) for one group, or (1, 3, 4) for several.
        copy: whether to copy an array whose channels are not last in memory; else None is returned for it.
    """
    kept = [number for number in range(x.ndim) if number not in axis]
    if len(kept) - 1 != axis[0]:  # neither one group (axis[0] 0) nor one axis of groups (axis[0] 1)
        return None
    last = x.transpose(_channel_last(x.ndim, axis))
    if not last.flags.c_contiguous and not copy:
        return None
    last = last if last.flags.c_contiguous else last.copy()
    return last.reshape(x.shape[0] if axis[0] else 1, -1, last.shape[-1])


def from_rows(rows: np.ndarray, shape: tuple[int, ...], axis: tuple[int, ...]) -> np.ndarray:
    """Rows of `rows_of` as an array of that shape, on the same memory."""
    order = _channel_last(len(shape), axis)
    return rows.reshape([shape[number] for number in order]).transpose(sorted(range(len(order)), key=order.__getitem__))


def _channel_last(ndim: int, axis: tuple[int, ...]) -> list[int]:
    channel = next(number for number in range(axis[0] + 1, ndim) if number not in axis)
    return [*(number for number in range(ndim) if number != channel), channel]
