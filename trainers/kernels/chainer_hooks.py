"""Where Chainer's function nodes pass their arrays to our kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from trainers.kernels import by_group

operators: Any = None  # the module of our kernels on the CPU; None: Chainer's own serve
gpu_operators: Any = None  # the same on a GPU

_FORWARDS = ("forward_cpu", "forward_gpu")


def hook_gradient_check(module: ModuleType) -> None:
    """Chainer's check of each gradient that a backward gives: in three comparisons where the gradient fits."""
    original = module._check_grad_type

    def check(func, x, is_node_x, gx):
        fits = type(x) is module.VariableNode and x._layout is None and gx.dtype == x.dtype and gx.shape == x.shape
        if not fits or type(x._data) not in (type(gx), type(None)):
            original(func, x, is_node_x, gx)

    module._check_grad_type = check


def hook_linear(module: ModuleType) -> None:
    """`LinearFunction` and its gradients, where the kernels have a product of their own or compute groups apart."""
    _linear_backward(module)
    for node, factors_of in (
        (module.LinearFunction, lambda x, W, b=None: (x, W.T)),
        (module.LinearGradData, lambda W, gy: (gy, W)),
        (module.LinearGradWeight, lambda x, gy: (gy.T, x)),
    ):
        _linear_forward(module, node, factors_of)


def _linear_forward(module: ModuleType, node: Any, factors_of: Callable[..., tuple[Any, Any]]) -> None:
    original = node.forward

    def forward(self, inputs):
        if by_group.count and len({each.dtype for each in inputs}) == 1:
            self._config_use_ideep = module.chainer.config.use_ideep
            self.retain_inputs((0, 1))
            return (by_group.product(*factors_of(*inputs), of_weights=node is module.LinearGradWeight, b=inputs[2:]),)
        ours, kind = operators_for(*inputs), getattr(self, "_w_dtype", inputs[0].dtype)
        if kind != inputs[0].dtype or not hasattr(ours, "product"):
            return original(self, inputs)
        y = ours.product(*factors_of(*inputs))
        if y is None:
            return original(self, inputs)
        self._config_use_ideep = module.chainer.config.use_ideep
        self.retain_inputs((0, 1))
        return (y + inputs[2] if len(inputs) == 3 else y,)

    node.forward = forward


def _linear_backward(module: ModuleType) -> None:
    original = module.LinearFunction.backward

    def backward(self, indexes, grad_outputs):
        if not by_group.count or module.chainer.config.enable_backprop:  # for gradients of gradients
            return original(self, indexes, grad_outputs)
        apart = by_group.sum_over_samples(grad_outputs[0].array, (0,)) if 2 in indexes else None
        others = iter(original(self, tuple(index for index in indexes if index < 2), grad_outputs))
        return tuple(module.chainer.Variable(apart) if index == 2 else next(others) for index in indexes)

    module.LinearFunction.backward = backward


def hook_max_pooling(module: ModuleType) -> None:
    """`MaxPoolingND` over two axes, its gradient and the gradient of that."""
    module.MaxPoolingND._operators = None
    for forward in _FORWARDS:
        _max_pooling_forward(module, forward)


def _max_pooling_forward(module: ModuleType, name: str) -> None:
    pooling, gradient, again = module.MaxPoolingND, module.MaxPoolingNDGrad, module.MaxPoolingNDWithIndexes
    original, original_gradient, original_again = (getattr(node, name) for node in (pooling, gradient, again))

    def forward(self, inputs):
        (x,) = inputs
        places = self.ksize[0] * self.ksize[-1]
        ours = operators_for(x)
        if ours is None or self.ndim != 2 or self.return_indices or places > 255:
            return original(self, inputs)
        out = _pooled_size(module, self, x)
        if min(out) < 1:
            return original(self, inputs)  # refuses it
        self._how = {"kernel": self.ksize, "stride": self.stride, "pad": self.pad}
        self._operators = ours  # the gradient needs the same kernels: they differ in what `indexes` holds
        y, self.indexes = ours.max_pooling(x, out=out, **self._how)
        self._in_shape, self._in_dtype = x.shape, x.dtype
        return (y,)

    def gradient_forward(self, inputs):
        (gy,), func = inputs, self.func
        if func._operators is None:
            return original_gradient(self, inputs)
        return (func._operators.max_pooling_gradient(gy, func.indexes, size=func._in_shape[2:], **func._how),)

    def again_forward(self, inputs):
        (x,), func = inputs, self.func
        if func._operators is None:
            return original_again(self, inputs)
        if not hasattr(func._operators, "max_pooled_at"):
            raise NotImplementedError("gradients of gradients of max pooling on a GPU need --kernels chainer")
        return (func._operators.max_pooled_at(x, func.indexes, **func._how),)

    for node, ours in ((pooling, forward), (gradient, gradient_forward), (again, again_forward)):
        setattr(node, name, ours)


def hook_average_pooling(module: ModuleType) -> None:
    """`AveragePooling2D`, which is a node of its own beside `AveragePoolingND`, and its gradient, on a GPU."""
    pooling, gradient = module.AveragePooling2D, module.AveragePooling2DGrad
    original, original_gradient = pooling.forward_gpu, gradient.forward_gpu
    pooling._operators = None

    def forward(self, inputs):
        (x,) = inputs
        ours = operators_for(x)
        if ours is None:
            return original(self, inputs)
        self._how = {"kernel": (self.kh, self.kw), "stride": (self.sy, self.sx), "pad": (self.ph, self.pw)}
        self._operators, self._in_shape, self._in_dtype = ours, x.shape, x.dtype
        sizes = zip(x.shape[2:], *self._how.values(), strict=True)
        return (ours.average_pooling(x, out=tuple(module.conv.get_conv_outsize(*each) for each in sizes), **self._how),)

    def gradient_forward(self, inputs):
        func = self.apool2d
        if func._operators is None:
            return original_gradient(self, inputs)
        return (func._operators.average_pooling_gradient(inputs[0], size=func._in_shape[2:], **func._how),)

    pooling.forward_gpu, gradient.forward_gpu = forward, gradient_forward


def _pooled_size(module: ModuleType, node: Any, x: Any) -> tuple[int, ...]:
    sizes = zip(x.shape[2:], node.ksize, node.stride, node.pad, strict=True)
    return tuple(module.conv_nd.get_conv_outsize(*each, node.cover_all) for each in sizes)


def hook_relu(module: ModuleType) -> None:
    """`ReLU`, which a normalisation before it may take into its node, and its gradient."""
    for forward in _FORWARDS:
        _relu_forward(module, forward)
    original = module.ReLU.apply

    def apply(self, inputs):
        with_relu = getattr(type(inputs[0]), "with_relu", None)  # of `trainers.kernels.fused_normalization.Pending`
        y = None if with_relu is None else with_relu(inputs[0])
        return original(self, inputs) if y is None else (y,)

    module.ReLU.apply = apply


def _relu_forward(module: ModuleType, name: str) -> None:
    relu, gradient = module.ReLU, module.ReLUGrad2
    original, original_gradient = getattr(relu, name), getattr(gradient, name)

    def forward(self, inputs):
        ours = operators_for(*inputs)
        if ours is None or (y := ours.relu(*inputs)) is None:
            return original(self, inputs)
        self.retain_outputs((0,))
        return (y,)

    def gradient_forward(self, inputs):
        ours = operators_for(self.b, *inputs)
        if ours is None or (gx := ours.relu_gradient(self.b, *inputs)) is None:
            return original_gradient(self, inputs)
        return (gx,)

    setattr(relu, name, forward)
    setattr(gradient, name, gradient_forward)


def hook_add(module: ModuleType) -> None:
    """`Add` of two arrays: of a branch and its shortcut, and of the gradients that come back through both."""
    original, original_apply = module.Add.forward, module.Add.apply

    def apply(self, inputs):
        for each in inputs:
            in_sum = getattr(type(each), "in_sum", None)  # of `trainers.kernels.fused_normalization.Pending`
            if in_sum is not None and (y := in_sum(each, inputs)) is not None:
                return (y,)
        return original_apply(self, inputs)

    def forward(self, inputs):
        x, y = inputs
        ours = operators_for(x, y) if x.shape == y.shape else None
        if ours is None or (z := ours.add(x, y)) is None:
            return original(self, inputs)
        return (z,)

    module.Add.apply, module.Add.forward = apply, forward


def hook_batch_normalization(module: ModuleType, implementation: Callable[[], Any]) -> None:
    """`BatchNormalization`, unless it was given an implementation selector.

    The default selector is a default argument, bound when the class was made, so replacing the module's has no effect.

    Args:
        implementation: makes the object that computes where our kernels serve.
    """
    node, selector = module.BatchNormalization, module._impl_selector
    original = node.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self._impl_selector is selector:
            self._impl_selector = select

    def select(node, inputs):
        return selector(node, inputs) if operators_for(*inputs) is None else implementation()

    node.__init__ = init


def operators_for(*arrays: Any) -> Any | None:
    """Our kernels for these arrays: not empty, all NumPy's or all CuPy's, of one type; None where Chainer's serve.

    On a GPU, arrays after a first one of 16 bits may be float32, as vectors of parameters are.
    """
    kind, place = arrays[0].dtype.char, type(arrays[0])
    if place is sys.modules["numpy"].ndarray:
        ours, kinds, beside = operators, "fd", kind
    elif gpu_operators is not None and place is sys.modules["cupy"].ndarray:
        ours, kinds, beside = gpu_operators, "eEfd", kind + "f" if kind in "eE" else kind
    else:
        return None
    for array in arrays:  # faster than `all`: this runs for every node
        if type(array) is not place or array.dtype.char not in beside or not array.size:
            return None
    return ours if kind in kinds else None
