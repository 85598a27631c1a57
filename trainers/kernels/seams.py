"""Where Chainer's function nodes hand their arrays to our kernels."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

operators: Any = None  # the module whose functions serve; None: Chainer's own


def convolution_seam(module: ModuleType) -> None:
    """`Convolution2DFunction` and the gradient of its weights."""
    import numpy as np

    from trainers import kernels

    kernels.in_use()  # settled by the environment, where nobody has said another
    convolution, of_weights = module.Convolution2DFunction, module.Convolution2DGradW
    original, original_of_weights = convolution._forward_cpu_core, of_weights._forward_cpu_core

    def forward(self, x, W, b):
        if not _covered(self, x, W) or self.cover_all:
            return original(self, x, W, b)
        self._get_out_size(x.shape, W.shape)  # refuses what has no output
        return (operators.convolution(x, W, b, stride=(self.sy, self.sx), pad=(self.ph, self.pw)),)

    def weights_forward(self, x, gy):
        if not _covered(self, x, gy) or x.dtype != self.W_dtype or self.cover_all:
            return original_of_weights(self, x, gy)
        kernel = (self.kh, self.kw)
        gW = operators.convolution_weights(x, gy, kernel=kernel, stride=(self.sy, self.sx), pad=(self.ph, self.pw))
        return (np.ascontiguousarray(gW),)  # ChainerMN's naive mean of any other is lost without a word

    convolution._forward_cpu_core, of_weights._forward_cpu_core = forward, weights_forward


def deconvolution_seam(module: ModuleType) -> None:
    """`Deconvolution2DFunction`, which is a convolution's gradient with respect to its input as well."""
    deconvolution = module.Deconvolution2DFunction
    original = deconvolution._forward_cpu_core

    def forward(self, x, W, b):
        size, stride, pad = (self.outh, self.outw), (self.sy, self.sx), (self.ph, self.pw)
        plain = tuple(
            module.conv.get_conv_outsize(*sizes) for sizes in zip(size, W.shape[2:], stride, pad, strict=True)
        )
        if not _covered(self, x, W) or plain != x.shape[2:]:
            return original(self, x, W, b)
        y = operators.convolution_data(x, W, size=size, stride=stride, pad=pad)
        if b is not None:
            y += b.reshape(1, -1, 1, 1)
        return (y,)

    deconvolution._forward_cpu_core = forward


def max_pooling_seam(module: ModuleType) -> None:
    """`MaxPoolingND` over two axes, its gradient and the gradient of that."""
    pooling, gradient, again = module.MaxPoolingND, module.MaxPoolingNDGrad, module.MaxPoolingNDWithIndexes
    original, original_gradient, original_again = (node.forward_cpu for node in (pooling, gradient, again))
    out_size = module.conv_nd.get_conv_outsize

    def forward(self, inputs):
        (x,) = inputs
        places = self.ksize[0] * self.ksize[-1]
        if not served(x) or self.ndim != 2 or self.return_indices or places > 255:
            return original(self, inputs)
        sizes = zip(x.shape[2:], self.ksize, self.stride, self.pad, strict=True)
        out = tuple(out_size(*each, self.cover_all) for each in sizes)
        self._how = {"kernel": self.ksize, "stride": self.stride, "pad": self.pad}
        self._operators = operators  # whose places these are
        y, self.indexes = operators.max_pooling(x, out=out, **self._how)
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
        return (func._operators.max_pooled_at(x, func.indexes, **func._how),)

    pooling._operators = None
    pooling.forward_cpu, gradient.forward_cpu, again.forward_cpu = forward, gradient_forward, again_forward


def relu_seam(module: ModuleType) -> None:
    """`ReLU` and its gradient."""
    relu, gradient = module.ReLU, module.ReLUGrad2
    original, original_gradient = relu.forward_cpu, gradient.forward_cpu

    def forward(self, inputs):
        if not served(*inputs) or (y := operators.relu(*inputs)) is None:
            return original(self, inputs)
        self.retain_outputs((0,))
        return (y,)

    def gradient_forward(self, inputs):
        if not served(self.b, *inputs) or (gx := operators.relu_gradient(self.b, *inputs)) is None:
            return original_gradient(self, inputs)
        return (gx,)

    relu.forward_cpu, gradient.forward_cpu = forward, gradient_forward


def add_seam(module: ModuleType) -> None:
    """`Add` of two arrays: of a branch and its shortcut, and of the gradients that come back through both."""
    original = module.Add.forward

    def forward(self, inputs):
        x, y = inputs
        if x.shape != y.shape or not served(x, y) or (z := operators.add(x, y)) is None:
            return original(self, inputs)
        return (z,)

    module.Add.forward = forward


def batch_normalization_seam(module: ModuleType) -> None:
    """`BatchNormalization`, but for one that was told who computes it.

    Its selector is a default argument, bound when the class was made: the module's name is not read again.
    """
    from trainers.kernels.numpy_batch_normalization import ChannelsLastImpl

    node, selector = module.BatchNormalization, module._impl_selector
    original = node.__init__

    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        if self._impl_selector is selector:
            self._impl_selector = select

    def select(node, inputs):
        return ChannelsLastImpl() if served(*inputs) else selector(node, inputs)

    node.__init__ = init


def _covered(node: Any, *arrays: Any) -> bool:
    """Whether our kernels compute what a convolution's node asks for."""
    return node.dy == node.dx == 1 and served(*arrays)


def served(*arrays: Any) -> bool:
    """Whether arrays are NumPy's, of one type that our kernels compute in, and not empty."""
    import numpy as np

    kind = arrays[0].dtype.char
    return (
        operators is not None
        and kind in "fd"
        and all(type(array) is np.ndarray and array.dtype.char == kind and array.size for array in arrays)
    )


SEAMS: tuple[tuple[str, Callable[[ModuleType], None]], ...] = (
    ("chainer.functions.connection.convolution_2d", convolution_seam),
    ("chainer.functions.connection.deconvolution_2d", deconvolution_seam),
    ("chainer.functions.activation.relu", relu_seam),
    ("chainer.functions.math.basic_math", add_seam),
    ("chainer.functions.pooling.max_pooling_nd", max_pooling_seam),
    ("chainer.functions.normalization.batch_normalization", batch_normalization_seam),
)
