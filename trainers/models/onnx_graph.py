"""A model as ONNX: the functions of Chainer that one evaluation calls, each as an operator.

`onnx_model` runs the model on two images and notes every function with its inputs and outputs, so that it follows any
Python within `forward`. It runs it on three others too: what differs between the two is no constant of a graph.
`_OPERATORS` has the operator of each function: to add one, add a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import chainer
import numpy as np
import onnx
from chainer.utils import get_conv_outsize
from onnx import helper, numpy_helper

from recipes.errors import InputRefused
from trainers.runs.checkpoint import weights_of

_OPSET, _IR = 17, 8  # of 2022, which onnxruntime 1.12 and later read
_IMAGES = 2, 3  # in the calls that are followed
_END = 2**63 - 1  # the end of a slice that has none

# An operator: its name, constants among its inputs behind those of the function, and attributes.
Operator = tuple[str, Sequence[np.ndarray], Mapping[str, Any]]
# One of several operators of a function: its inputs are constants, or numbers, first those of the function's inputs and
# then those of the operators before it.
Step = tuple[str, Sequence[int | np.ndarray], Mapping[str, Any]]

Call = tuple[Any, tuple[Any, ...], tuple[Any, ...]]  # a function, its inputs and its outputs, as arrays


def onnx_model(model: chainer.Chain, shape: tuple[int, int, int], *, facts: Mapping[str, str]) -> onnx.ModelProto:
    """A model in evaluation, from `images_NCHW`, float32 of any number of images, to `logits`.

    Args:
        model: on the CPU.
        shape: channels, height and width of an image.
        facts: for the metadata of the file.
    Raises:
        InputRefused: the model calls a function that has no operator here, depends on the number of images, or on the
            images otherwise than by Chainer's functions.
    """
    (images_NCHW, calls, logits), (other_images, other_calls, other_logits) = (
        _followed(model, (number, *shape)) for number in _IMAGES
    )
    graph = _Graph({id(array): path for path, array in weights_of(model).items()}, images_NCHW, other_images)
    for call, twin in zip_longest(calls, other_calls):
        graph.add(call, twin)
    graph.end(logits, other_logits)
    sizes = {"images_NCHW": ("N", *shape), "logits": ("N", *logits.shape[1:])}
    ends = {name: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, size) for name, size in sizes.items()}
    made = helper.make_graph(
        graph.nodes, type(model).__name__, [ends["images_NCHW"]], [ends["logits"]], [*graph.constants.values()]
    )
    whole = helper.make_model(
        made, producer_name="kilobatch", opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR
    )
    helper.set_model_props(whole, dict(facts))
    onnx.checker.check_model(whole)
    return whole


def _followed(model: chainer.Chain, shape: tuple[int, ...]) -> tuple[np.ndarray, list[Call], np.ndarray]:
    """Random images of a shape, the calls of a model's evaluation of them, and the logits."""
    images_NCHW = np.random.default_rng(shape[0]).standard_normal(shape).astype(np.float32)
    with chainer.using_config("train", False), chainer.no_backprop_mode(), _Followed() as followed:
        logits = chainer.as_array(model(images_NCHW))
    return images_NCHW, followed.calls, logits


class _Followed(chainer.FunctionHook):
    """Within, every call of a function is noted: the function, its inputs and its outputs, as arrays."""

    name = "_Followed"

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def forward_preprocess(self, function: Any, in_data: tuple[Any, ...]) -> None:
        """Note this call, once its outputs are there, which no other method of a hook gets."""

        def noting(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            del function.forward  # the class has its own
            outputs = function.forward(inputs)
            self.calls.append((function, inputs, outputs))
            return outputs

        function.forward = noting


class _Graph:
    """The operators so far, and the name of every array and of its twin in the other call; calls keep them alive."""

    def __init__(self, weights: Mapping[int, str], images_NCHW: np.ndarray, twin: np.ndarray) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self._weights = weights
        self._names = {id(images_NCHW): "images_NCHW", id(twin): "images_NCHW"}
        self._kept: list[np.ndarray] = []

    def add(self, call: Call | None, twin: Call | None) -> None:
        """One call of a function, and the same call for the other images; None where the model has ended."""
        kind = _kind(call or twin)
        if call is None or twin is None or (kind, len(call[1])) != (_kind(twin), len(twin[1])):
            raise _varies(kind)
        if kind not in _OPERATORS:
            what = f"the model calls Chainer's function {kind}, which has no operator of ONNX here"
            raise InputRefused(f"{what}; those that have one: {', '.join(sorted(_OPERATORS))}")
        if kind == "BroadcastTo" and self._expands_for_images(call, twin):
            inputs = [self._name_of(call[1][0], twin[1][0], kind), self._shape_for_images(call[2][0])]
            self._names[id(twin[2][0])] = self._node("Expand", inputs, call[2][0])
            return
        steps = _steps(kind, call)
        for (operator, inputs, attributes), other in zip_longest(steps, _steps(kind, twin), fillvalue=("", (), {})):
            if (operator, attributes) != (other[0], other[2]) or not all(map(np.array_equal, inputs, other[1])):
                raise _varies(kind)
        names = [self._name_of(*arrays, kind) for arrays in zip(call[1], twin[1], strict=True)]
        for number, (operator, inputs, attributes) in enumerate(steps, start=1):
            given = [names[each] if isinstance(each, int) else self._constant(each) for each in inputs]
            outputs = call[2] if number == len(steps) else [np.empty(0)]
            names.append(self._node(operator, given, *outputs, **attributes))
        for ours, theirs in zip(call[2], twin[2], strict=True):
            self._names[id(theirs)] = self._names[id(ours)]

    def end(self, logits: np.ndarray, twin: np.ndarray) -> None:
        """The array that the model returned, and that for the other images."""
        if id(logits) not in self._names:
            raise InputRefused("the model does not compute its logits by functions of Chainer; use chainer.functions")
        name, shapes = self._names[id(logits)], [(number, *logits.shape[1:]) for number in _IMAGES]
        if name != self._names.get(id(twin)) or [logits.shape, twin.shape] != shapes:
            raise _varies("what it returns")
        self.nodes.append(helper.make_node("Identity", [name], ["logits"]))

    def _node(self, operator: str, inputs: list[str], *outputs: np.ndarray, **attributes: Any) -> str:
        name = f"{operator}_{len(self.nodes)}"
        names = [name, *(f"{name}_{number}" for number in range(1, len(outputs)))]
        self._names |= zip(map(id, outputs), names, strict=True)
        self._kept += outputs
        self.nodes.append(helper.make_node(operator, inputs, names, name=name, **attributes))
        return name

    def _name_of(self, array: np.ndarray, twin: np.ndarray, kind: str) -> str:
        name = self._names.get(id(array))
        if name is None and array.shape != twin.shape:
            name = self._for_each_image(array, twin, kind)
        elif name is None and np.array_equal(array, twin):
            name = self._constant(array, self._weights.get(id(array)))
        if name is None or self._names.setdefault(id(twin), name) != name:
            raise _varies(kind)
        return name

    def _constant(self, array: np.ndarray, name: str | None = None) -> str:
        name = name or f"constant_{len(self.constants)}"
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        self._names[id(array)] = name
        self._kept.append(array)
        return name

    def _for_each_image(self, array: np.ndarray, twin: np.ndarray, kind: str) -> str:
        """An array that is the same for each image, such as zeros of new channels, for as many as there are."""
        if [array.shape, twin.shape] != [(number, *array.shape[1:]) for number in _IMAGES]:
            raise _varies(kind)
        if not ((array == array[:1]).all() and (twin == array[:1]).all()):
            what = f"{kind} gets an array that the model computes from its images without functions of Chainer"
            raise InputRefused(f"{what}; use chainer.functions, so that it can be exported")
        shape = self._shape_for_images(array)
        return self._node("Expand", [self._constant(array[:1]), shape], array)

    def _expands_for_images(self, call: Call, twin: Call) -> bool:
        """Whether a function repeats what no image changes, such as a weight, for each image."""
        shapes = [(number, *call[2][0].shape[1:]) for number in _IMAGES]
        return [call[2][0].shape, twin[2][0].shape] == shapes and np.array_equal(call[1][0], twin[1][0])

    def _shape_for_images(self, array: np.ndarray) -> str:
        """The shape of an array whose first axis is that of the images, for as many as there are."""
        images = [self._node("Shape", ["images_NCHW"], np.empty(0), start=0, end=1)]
        inner = self._constant(np.array(array.shape[1:], dtype=np.int64))
        return self._node("Concat", [*images, inner], np.empty(0), axis=0)


def _kind(call: Call) -> str:
    """The name of a function, within Chainer's adapter of old functions too."""
    return type(getattr(call[0], "function", call[0])).__name__


def _steps(kind: str, call: Call) -> list[Step]:
    """The operators of a call, one after the other."""
    function, inputs, outputs = call
    made = _OPERATORS[kind](function, inputs, outputs[0])
    return made if isinstance(made, list) else [(made[0], [*range(len(inputs)), *made[1]], made[2])]


def _varies(what: str) -> InputRefused:
    """The refusal of a model that is another graph for other images."""
    cause = "the model's computation depends on the number of images, or on images without functions of Chainer"
    way_out = "write -1 for their number in a shape, and compute by chainer.functions without len(x)"
    return InputRefused(f"{cause}: {what} differs between {_IMAGES[0]} and {_IMAGES[1]} images; {way_out}")


def _convolution(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    f = function
    pads = _pads(inputs[0].shape[2:], inputs[1].shape[2:], (f.sy, f.sx), (f.ph, f.pw), f.cover_all, (f.dy, f.dx))
    return "Conv", (), {"strides": (f.sy, f.sx), "pads": pads, "dilations": (f.dy, f.dx), "group": f.groups}


def _linear(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    return "Gemm", (), {"transB": 1}


def _normalization(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    if function.axis not in (None, (0, *range(2, y.ndim))):
        raise InputRefused("a BatchNormalization over other axes than those of samples and pixels cannot be exported")
    return "BatchNormalization", (), {"epsilon": float(function.eps)}


def _max_pooling(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    f = function
    pads = _pads(inputs[0].shape[2:], f.ksize, f.stride, f.pad, f.cover_all)
    if any(pad >= size for pad, size in zip(pads, (*f.ksize, *f.ksize), strict=True)):
        what = f"a max pooling of {f.ksize} needs {pads} pixels of padding, and ONNX takes less than a window"
        raise InputRefused(f"{what}; write cover_all=False, or another stride or padding")
    return "MaxPool", (), {"kernel_shape": f.ksize, "strides": f.stride, "pads": pads}


def _average_pooling(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    f, pad = function, (function.ph, function.pw)
    how = {"kernel_shape": (f.kh, f.kw), "strides": (f.sy, f.sx), "pads": (*pad, *pad)}
    return "AveragePool", (), {**how, "count_include_pad": 1}


def _pads(
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    cover_all: bool,
    dilations: Sequence[int] | None = None,
) -> list[int]:
    """Padding before and behind each axis; behind with as much more as the last, partial window needs."""
    behind = list(pads)
    for axis, (size, k, s, p, d) in enumerate(zip(sizes, kernel, strides, pads, dilations or (1, 1), strict=True)):
        if cover_all:
            windows = get_conv_outsize(size, k, s, p, cover_all=True, d=d)
            behind[axis] = max(p, (windows - 1) * s + (k - 1) * d + 1 - size - p)
    return [*pads, *behind]


def _reshape(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    return "Reshape", (np.array([-1, *y.shape[1:]]),), {}  # the first axis is that of the images, or contains it


def _mean(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    return "ReduceMean", (), {"axes": _axes(function, inputs[0]), "keepdims": int(function.keepdims)}


def _sum(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    return "ReduceSum", (np.array(_axes(function, inputs[0])),), {"keepdims": int(function.keepdims)}


def _axes(function: Any, x: np.ndarray) -> list[int]:
    return list(range(x.ndim)) if function.axis is None else list(function.axis)


def _slice(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator | list[Step]:
    slices = function.slices
    if all(
        each is None or each is Ellipsis or (isinstance(each, slice) and each == slice(None)) for each in slices
    ):  # x[:, :, None, None]
        return _reshape(function, inputs, y)
    if all(each is not None for each in slices):
        for at in [at for at, each in enumerate(slices) if each is Ellipsis]:  # at most one
            whole = [slice(None)] * (inputs[0].ndim - len(slices) + 1)
            slices = (*slices[:at], *whole, *slices[at + 1 :])
    if not all(isinstance(each, slice | int | np.integer) for each in slices):
        way_out = "write x[:, :, ::2] or x[:, 0], and x[:, :, None] alone"
        raise InputRefused(f"indexing by arrays, or None beside others, cannot be exported; {way_out}")
    bounds = []
    for s in (each if isinstance(each, slice) else slice(each, each + 1 or None) for each in slices):
        first, last = (_END, -_END) if (step := s.step or 1) < 0 else (0, _END)
        bounds.append((first if s.start is None else s.start, last if s.stop is None else s.stop, step))
    starts, stops, steps = np.array(bounds).T
    taken: list[Step] = [("Slice", [0, starts, stops, np.arange(len(slices)), steps], {})]
    axes = np.array([axis for axis, each in enumerate(slices) if not isinstance(each, slice)], dtype=np.int64)
    return [*taken, ("Squeeze", [1, axes], {})] if len(axes) else taken


def _expanded(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    keeps_first = inputs[0].shape[:1] == y.shape[:1] and inputs[0].ndim == y.ndim  # which may be that of the images
    return "Expand", (np.array([1, *y.shape[1:]] if keeps_first else y.shape),), {}


def _with_value(operator: str) -> Callable[..., Operator]:
    """A function of an array and a number, which is one of its attributes."""
    return lambda function, inputs, y: (operator, (np.asarray(function.value, dtype=inputs[0].dtype),), {})


def _from_value(operator: str) -> Callable[..., list[Step]]:
    """As `_with_value`, with the number first."""
    return lambda function, inputs, y: [(operator, [np.asarray(function.value, dtype=inputs[0].dtype), 0], {})]


def _largest(operator: str) -> Callable[..., Operator]:
    """The largest or smallest number along axes."""
    return lambda f, inputs, y: (operator, (), {"axes": _axes(f, inputs[0]), "keepdims": int(f.keepdims)})


def _clip(least: float | None, most: float | None) -> Operator:
    ends = (-np.inf if least is None else least, np.inf if most is None else most)
    return "Clip", [np.asarray(end, dtype=np.float32) for end in ends], {}


def _matmul(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> list[Step]:
    steps, order = [], [0, 1]
    for number, flipped in enumerate((function.transa, function.transb)):
        if flipped and (axes := inputs[number].ndim) > 1:
            order[number] = len(inputs) + len(steps)
            steps.append(("Transpose", [number], {"perm": [*range(axes - 2), axes - 1, axes - 2]}))
    return [*steps, ("MatMul", order, {})]


def _group_normalization(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> list[Step]:
    ones, channels = np.ones(function.groups, np.float32), np.array([-1, *[1] * (y.ndim - 2)])
    return [
        ("Reshape", [0, np.array([0, function.groups, -1])], {}),
        ("InstanceNormalization", [3, ones, 0 * ones], {"epsilon": float(function.eps)}),
        ("Reshape", [4, np.array([-1, *y.shape[1:]])], {}),
        ("Reshape", [1, channels], {}),
        ("Mul", [5, 6], {}),
        ("Reshape", [2, channels], {}),
        ("Add", [7, 8], {}),
    ]


def _swish(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> list[Step]:
    beta = inputs[1].shape
    shape = np.array([1, *beta, *[1] * (y.ndim - len(beta) - 1)])
    return [("Reshape", [1, shape], {}), ("Mul", [0, 2], {}), ("Sigmoid", [3], {}), ("Mul", [0, 4], {})]


def _split(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    axis = function.axis % inputs[0].ndim
    return "Split", [np.array([shape[axis] for shape in function._shapes])], {"axis": axis}


def _swapped(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    axes = [*range(y.ndim)]
    axes[function.axis1], axes[function.axis2] = axes[function.axis2], axes[function.axis1]
    return "Transpose", (), {"perm": axes}


def _transposed(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
    axes = range(y.ndim)[::-1] if function.axes is None else function.axes
    return "Transpose", (), {"perm": [axis % y.ndim for axis in axes]}


def _plain(operator: str, **attributes: str) -> Callable[..., Operator]:
    """A function whose operator differs in names only: attribute there -> attribute here."""

    def made(function: Any, inputs: Sequence[np.ndarray], y: np.ndarray) -> Operator:
        given = {name: getattr(function, ours) for name, ours in attributes.items()}
        return operator, (), {name: value for name, value in given.items() if value is not None}

    return made


_OPERATORS: Mapping[str, Callable[[Any, Sequence[np.ndarray], np.ndarray], Operator | list[Step]]] = {
    "Absolute": _plain("Abs"),
    "Add": _plain("Add"),
    "AddConstant": _with_value("Add"),
    "AveragePooling2D": _average_pooling,
    "BroadcastTo": _expanded,
    "Clip": lambda function, inputs, y: _clip(function.x_min, function.x_max),
    "ClippedReLU": lambda function, inputs, y: _clip(0, function.cap),
    "Concat": _plain("Concat", axis="axis"),
    "Convolution2DFunction": _convolution,
    "Div": _plain("Div"),
    "DivFromConstant": _from_value("Div"),
    "ELU": _plain("Elu", alpha="alpha"),
    "Erf": _plain("Erf"),
    "Exp": _plain("Exp"),
    "ExpandDims": _reshape,
    "FixedBatchNormalization": _normalization,
    "GetItem": _slice,
    "GroupNormalization": _group_normalization,
    "LayerNormalization": _plain("LayerNormalization", epsilon="eps"),
    "LeakyReLU": _plain("LeakyRelu", alpha="slope"),
    "LinearFunction": _linear,
    "Log": _plain("Log"),
    "LogSoftmax": _plain("LogSoftmax", axis="axis"),
    "MatMul": _matmul,
    "Max": _largest("ReduceMax"),
    "MaxPoolingND": _max_pooling,
    "Maximum": _plain("Max"),
    "Mean": _mean,
    "Min": _largest("ReduceMin"),
    "Minimum": _plain("Min"),
    "Mul": _plain("Mul"),
    "MulConstant": _with_value("Mul"),
    "MultiAdd": _plain("Sum"),
    "Neg": _plain("Neg"),
    "PowVarConst": _with_value("Pow"),
    "ReLU": _plain("Relu"),
    "Reshape": _reshape,
    "Sigmoid": _plain("Sigmoid"),
    "Softmax": _plain("Softmax", axis="axis"),
    "SplitAxis": _split,
    "Sqrt": _plain("Sqrt"),
    "Square": lambda function, inputs, y: [("Mul", [0, 0], {})],
    "Squeeze": _reshape,
    "Sub": _plain("Sub"),
    "SubFromConstant": _from_value("Sub"),
    "Sum": _sum,
    "Swapaxes": _swapped,
    "Swish": _swish,
    "Tanh": _plain("Tanh"),
    "Transpose": _transposed,
}
