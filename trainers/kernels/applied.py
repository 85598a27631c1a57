"""A short version of `FunctionNode.apply`, for nodes of ours on NumPy's and CuPy's arrays. Imports Chainer.

Chainer's own makes some thirty checks before and after `forward`: of hooks, devices, layouts, ChainerX, debugging.
Each is a cache miss after an operator that has filled the caches, and a GPU may wait meanwhile.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer.variable import Variable, as_variable  # works while Chainer itself is still being imported

_make = Variable._init_unchecked


def is_plain(variables: Sequence[chainer.Variable]) -> bool:
    """Whether the short version serves: no hooks, debugging or schedule functions, this device, standard layouts."""
    config = chainer.config
    if config.debug or config.schedule_func is not None or chainer.get_function_hooks():
        return False
    return all(each.layout is None for each in variables) and _is_here(variables[0].array)


def _is_here(array: Any) -> bool:
    """Whether an array is in host memory or on this thread's current GPU."""
    cuda = chainer.backends.cuda
    return type(array) is np.ndarray or (
        cuda.available and type(array) is cuda.ndarray and array.data.device_id == cuda.cupy.cuda.get_device_id()
    )


def variables_of(inputs: Sequence[Any]) -> list[chainer.Variable]:
    """The inputs of a node, as `apply` takes them, all as variables."""
    return [as_variable(each) for each in inputs]


def variable_of(array: Any) -> chainer.Variable:
    """What `as_variable` makes of an array, without its checks."""
    return _make(array, requires_grad=False, is_chainerx_array=False)


def linked(node: chainer.FunctionNode, variables: Sequence[chainer.Variable], y: Any) -> tuple[chainer.Variable]:
    """The output of a node that has one, and the edges of the graph: the end of `apply`.

    Args:
        node: whose forward has called `retain_inputs` and `retain_outputs`.
        variables: its inputs.
        y: the array that its forward gave.
    """
    node._input_layouts, node._output_layouts, node._output_count = (None,) * len(variables), (None,), 1
    rank, requires_grad = 0, False
    for each in variables:
        rank = max(rank, each.rank)
        requires_grad = requires_grad or each.requires_grad
    out = _make(y, requires_grad=requires_grad, is_chainerx_array=False)
    config = chainer.config
    if not config.enable_backprop:
        return (out,)
    node.rank, node.lazy_grad_sum = rank, config.lazy_grad_sum
    out.creator_node = node
    node.inputs, node.outputs = tuple([each.node for each in variables]), (weakref.ref(out.node),)
    for index in node._input_indexes_to_retain or ():
        variables[index].retain_data()
    if node._output_indexes_to_retain is not None:
        out.retain_data()
        node._retained_output_data = (y,)
    return (out,)
