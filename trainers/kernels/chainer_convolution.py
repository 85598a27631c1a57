"""Where Chainer's convolutions, and their two gradients, pass their arrays to our kernels."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from trainers.kernels import by_group
from trainers.kernels.chainer_hooks import operators_for

Pair = tuple[int, int]
_CORES = ("_forward_cpu_core", "_forward_gpu_core")


def hook_convolution(module: ModuleType) -> None:
    """`Convolution2DFunction` and its gradients."""
    for core in _CORES:
        _convolution_core(module, core)
    _convolution_apply(module)
    _convolution_backward(module)


def ordered(ours: Any, W: Any) -> Any:
    """The weights in the order that the kernels read, where they have one of their own."""
    return ours.in_order(W) if hasattr(ours, "in_order") else W


def options_of(node: Any) -> dict[str, Pair]:
    """Stride and padding of a convolution's node."""
    return {"stride": (node.sy, node.sx), "pad": (node.ph, node.pw)}


def _fitting(x: Any, W: Any, *b: Any, stride: Pair, pad: Pair) -> Any | None:
    """Our kernels, where they serve and Chainer's checks would pass; None for Chainer's own `apply`."""
    ours = operators_for(x, W, *b)
    if ours is None or not x.ndim == W.ndim == 4 or x.shape[1] != W.shape[1]:
        return None
    if any(each.shape != W.shape[:1] for each in b):
        return None
    (_, _, height, width), (_, _, kh, kw) = x.shape, W.shape
    return ours if height + 2 * pad[0] >= kh and width + 2 * pad[1] >= kw else None


def _convolution_apply(module: ModuleType) -> None:
    """Make `apply` the short version (see `applied`) where our kernels serve; else Chainer's."""
    from trainers.kernels.chainer_nodes import allows_short_apply, arrays_of, output_of, variables_of

    convolution = module.Convolution2DFunction
    original, convolution.ordered_weights = convolution.apply, None

    def apply(self, inputs):
        variables = variables_of(inputs)
        if allows_short_apply(variables):
            x, W, *b = arrays_of(variables)
            how = options_of(self)
            ours = None if _is_special(self) or self.cudnn_fast else _fitting(x, W, *b, **how)
            if ours is not None:
                W = ordered(ours, W)
                y = ours.convolution(x, W, *(b or (None,)), **how, **by_group.options())
                if y is not None:
                    self.ordered_weights = W
                    self.retain_inputs((0, 1))
                    return output_of(self, variables, y)
        return original(self, inputs)

    convolution.apply = apply


def _is_special(node: Any) -> bool:
    return node.groups > 1 or node.cover_all or not node.dy == node.dx == 1


def gradients(
    indexes: Sequence[int], x: Any, W: Any, gy: Any, *, plus: Any = None, **how: Pair
) -> tuple[Any, Any] | None:
    """The gradients of a convolution's x and W, () for one not in `indexes`; None where our kernels do not serve.

    Args:
        plus: added to the gradient of x: what the other branch of a residual block gave; None for nothing.
    """
    ours = operators_for(x, W, gy)
    if ours is None:
        return None
    how |= by_group.options()
    gx, fused = (), None if plus is None else getattr(ours, "convolution_data_plus", None)
    if 0 in indexes:
        gx = fused and fused(gy, W, plus, size=x.shape[2:], **how)
        if gx is None:
            gx = ours.convolution_data(gy, W, size=x.shape[2:], **how)
            if gx is not None and plus is not None:
                add_to(gx, plus)
    gW = ours.convolution_weights(x, gy, kernel=W.shape[2:], **how) if 1 in indexes else ()
    if gx is None or gW is None:
        return None
    if 1 in indexes and W.flags.c_contiguous:  # others are no parameters, whose gradients are averaged
        gW = _in_order(gW)
    return gx, gW


def _bias_gradient(gy: Any) -> Any:
    """gy summed over samples, lines and columns."""
    ours = operators_for(gy)
    if hasattr(ours, "row_sums"):
        rows = gy.transpose(0, 2, 3, 1).reshape(by_group.count or 1, -1, gy.shape[1])
        if (sums := ours.row_sums(rows)) is not None:
            return by_group.sum_of_groups(sums)
    return by_group.sum_over_samples(gy, (0, 2, 3))


def array_of(variable: Any) -> Any:
    """The array of a variable; None of None."""
    return None if variable is None else variable.array


def add_to(new: Any, before: Any) -> None:
    """new += before, where nothing else refers to `new` yet."""
    ours = operators_for(new, before)
    if not hasattr(ours, "add_to") or not ours.add_to(new, before):
        new += before


def added(new: Any, before: Any) -> Any:
    """new + before, with the memory layout of `new`."""
    ours = operators_for(new, before)
    grads = None if ours is None else ours.add(new, before)
    return new + before if grads is None else grads


def _convolution_backward(module: ModuleType) -> None:
    """Compute gradients directly where gradients of gradients are not asked for: two nodes fewer for a convolution.

    A gradient that an input already has is added in place: a node and an array fewer for branches.
    """
    from trainers.kernels.chainer_nodes import variable_of

    convolution = module.Convolution2DFunction
    original, accumulate = convolution.backward, convolution.backward_accumulate

    def arrays(self, indexes, gy, plus=None):
        if module.chainer.config.enable_backprop or _is_special(self):
            return None
        grads = gradients(indexes, self.inputs[0].data, self.inputs[1].data, gy, plus=plus, **options_of(self))
        if grads is None:
            return None
        grads = (*grads, _bias_gradient(gy) if 2 in indexes else ())
        return [grads[index] for index in indexes]

    def backward(self, indexes, grad_outputs):
        grads = arrays(self, indexes, grad_outputs[0].array)
        return original(self, indexes, grad_outputs) if grads is None else tuple(map(variable_of, grads))

    def backward_accumulate(self, indexes, grad_outputs, grad_inputs):
        before_of = dict(zip(indexes, grad_inputs, strict=True))
        grads = arrays(self, indexes, grad_outputs[0].array, plus=array_of(before_of.get(0)))
        if grads is None:
            return accumulate(self, indexes, grad_outputs, grad_inputs)
        for index, new in zip(indexes, grads, strict=True):
            if index and before_of[index] is not None:
                add_to(new, before_of[index].array)
        return tuple(map(variable_of, grads))

    convolution.backward, convolution.backward_accumulate = backward, backward_accumulate


def _convolution_core(module: ModuleType, core: str) -> None:
    convolution, of_weights = module.Convolution2DFunction, module.Convolution2DGradW
    original, original_of_weights = getattr(convolution, core), getattr(of_weights, core)

    def forward(self, x, W, b):
        ours = _covering(self, x, W)
        if ours is None or self.cover_all:
            return original(self, x, W, b)
        self._get_out_size(x.shape, W.shape)  # refuses what has no output
        y = ours.convolution(x, W, b, stride=(self.sy, self.sx), pad=(self.ph, self.pw))
        return original(self, x, W, b) if y is None else (y,)

    def weights_forward(self, x, gy):
        ours = _covering(self, x, gy)
        if ours is None or x.dtype != self.W_dtype or self.cover_all:
            return original_of_weights(self, x, gy)
        kernel = (self.kh, self.kw)
        gW = ours.convolution_weights(x, gy, kernel=kernel, stride=(self.sy, self.sx), pad=(self.ph, self.pw))
        if gW is None:
            return original_of_weights(self, x, gy)
        return (_in_order(gW),)

    setattr(convolution, core, forward)
    setattr(of_weights, core, weights_forward)


def _in_order(gW: Any) -> Any:
    """In C order, as parameters are: ChainerMN's naive communicator silently loses its mean in any other order."""
    return gW if gW.flags.c_contiguous else gW.copy()


def hook_deconvolution(module: ModuleType) -> None:
    """`Deconvolution2DFunction`, which is a convolution's gradient with respect to its input as well."""
    for core in _CORES:
        _deconvolution_core(module, core)


def _deconvolution_core(module: ModuleType, core: str) -> None:
    deconvolution = module.Deconvolution2DFunction
    original = getattr(deconvolution, core)

    def forward(self, x, W, b):
        size, stride, pad = (self.outh, self.outw), (self.sy, self.sx), (self.ph, self.pw)
        plain = tuple(
            module.conv.get_conv_outsize(*sizes) for sizes in zip(size, W.shape[2:], stride, pad, strict=True)
        )
        ours = _covering(self, x, W)
        if ours is None or plain != x.shape[2:]:
            return original(self, x, W, b)
        y = ours.convolution_data(x, W, size=size, stride=stride, pad=pad)
        if y is None:
            return original(self, x, W, b)
        if b is not None:
            y += b.reshape(1, -1, 1, 1)
        return (y,)

    setattr(deconvolution, core, forward)


def _covering(node: Any, *arrays: Any) -> Any | None:
    """Our kernels, where they serve these arrays and the node has no dilation."""
    return operators_for(*arrays) if node.dy == node.dx == 1 else None
