"""A convolution, batch normalisation of norm groups, a sum and ReLU in one node. Imports Chainer.

Batch normalisation of norm groups, a sum and ReLU in one node. Imports Chainer.
"""

from __future__ import annotations

from typing import Any

import chainer
import chainer.functions as F
from chainer import links as L
from chainer.functions.activation.relu import ReLUGrad2
from chainer.functions.normalization.batch_normalization import BatchNormalizationGrad

from trainers.kernels import chainer_convolution, chainer_hooks
from trainers.kernels.chainer_convolution import deferred, fitting
from trainers.kernels.chainer_nodes import is_plain, linked, variable_of, variables_of
from trainers.kernels.cpu.convolution import Pair, out_size


class Normalized(chainer.FunctionNode):
    """(x - mean) / deviation * gamma + beta + plus, then ReLU with `relu`.

    Each group of samples has a mean and a deviation of its own. Forward reads x twice and writes once; backward reads
    gy and x twice and writes gx, and with a `plus` before ReLU also reads the output once and writes the gradient of
    `plus`; on a CPU without compiled passes it does so with any ReLU.

    Args:
        eps: added to the variance.
        groups: number of groups that x, (samples, channels, ...), is cut into.
        relu: apply ReLU after the sum.
        statistics: a `trainers.models.batch_norm_statistics.GroupStatistics`, which computes mean and deviation.
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
        ours, rows = chainer_hooks.serving(x), self._rows(x)
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
        gx, parameters, counted = chainer_hooks.serving(x).gradient_by(*given, relu=self._relu, y=out, whole=whole)
        ggamma, gbeta = (part.astype(gamma.dtype, copy=False) for part in parameters)
        return _from_rows(gx, x), ggamma, gbeta, _from_rows(counted, x)

    def _nodes(self, gy: Any, x: Any, gamma: Any, y: Any) -> tuple[chainer.Variable, ...]:
        if self._relu:
            if y is None:
                rows = self._rows(x.array)
                y = _from_rows(chainer_hooks.serving(rows).normalized_by(rows, self._scales, relu=True), x)
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
    ours, rows = chainer_hooks.serving(x), _as_rows(x, 1)
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
        or not hasattr(chainer_hooks.serving(x, gamma), "gradient_by")
    ):
        return False
    return (x if x.ndim == 2 else x.transpose(0, 2, 3, 1)).flags.c_contiguous


class ConvolvedNormalized(Normalized):
    """`Normalized` of x convolved with W: half as many nodes, and less Python between operators.

    Args:
        eps, groups, relu, statistics: see `Normalized`.
        stride, pad: of the convolution.
    """

    def __init__(self, eps: float, groups: int, *, stride: Pair, pad: Pair, **how: Any) -> None:
        super().__init__(eps, groups, **how)
        self._how = {"stride": stride, "pad": pad}

    def convolves(self, x: Any, W: Any) -> bool:
        """Compute the convolution, which `forward` goes on from; returns whether the kernels could."""
        self._kept_data = self._convolved(x, W)  # until backward, where the reordered weights save a copy
        return self._kept_data[1] is not None

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any]:
        outputs = super().forward((self._kept_data[1], *inputs[2:]))
        self.retain_inputs((0, 1, 2))
        return outputs

    def _convolved(self, x: Any, W: Any) -> tuple[Any, Any]:
        """The weights in the kernels' order, and the convolution's output; None where the kernels cannot."""
        ours = chainer_hooks.serving(x, W)
        W = ours.in_order(W) if hasattr(ours, "in_order") else W
        return W, ours.convolution(x, W, None, **self._how)

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
        W, h = self._kept_data or self._convolved(x, self.inputs[1].data)  # computed again in a second backward
        self._kept_data = None
        gh, *rest = self._gradients(grad_outputs[0].array, h, gamma, self._out)
        del h, rest[len(self.inputs) - 2 :]  # freed now: the next array reuses memory that is still in the caches
        found = [*(chainer_convolution.gradients(indexes, x, W, gh, **self._how) or self._by_nodes(x, W, gh)), *rest]
        for index, before in zip(indexes, grad_inputs, strict=True):
            if before is not None and index < 2:
                chainer_convolution.add_to(found[index], before.array)
            elif before is not None:
                found[index] = chainer_convolution.added(found[index], before.array)
        return tuple([variable_of(found[index]) for index in indexes])

    def _by_nodes(self, x: Any, W: Any, gh: Any) -> tuple[Any, ...]:
        """The gradients of x and W by Chainer's nodes, where the kernels have only the convolution itself."""
        with chainer.using_config("enable_backprop", True):
            h = F.convolution_2d(chainer.Variable(x), chainer.Variable(W), **self._how)
        return tuple([each.array for each in h.creator_node.backward((0, 1), (variable_of(gh),))])


def convolved_normalized(
    link: L.Convolution2D, x: Any, rest: tuple[Any, ...], **how: Any
) -> tuple[chainer.Variable | None, chainer.Variable | None]:
    """link(x) and None; or None and the output of `ConvolvedNormalized`, where that serves.

    Args:
        link: its hooks are called either way.
        rest: gamma, beta and, where there is one, what is added.
        how: arguments of `ConvolvedNormalized`.
    """
    if type(link) is not L.Convolution2D or link.b is not None or link.groups > 1 or max(link.dilate) > 1:
        return link(x), None
    is_hooked = chainer._get_link_hooks() or link._n_local_link_hooks
    node, inputs = deferred(link, x) if is_hooked else (None, (x, link.W))
    of_link = {"stride": tuple(link.stride), "pad": tuple(link.pad)}
    variables = variables_of((*inputs, *rest))
    arrays = [each.array for each in variables]
    if is_plain(variables) and not link.cudnn_fast and _covers(*arrays, **of_link):
        made = ConvolvedNormalized(**how, **of_link)
        if made.convolves(*arrays[:2]):
            return None, linked(made, variables, *made.forward(arrays))[0]
    return link(x) if node is None else node.apply(inputs)[0], None


def _covers(x: Any, W: Any, gamma: Any, beta: Any, plus: Any = None, **how: Pair) -> bool:
    """Whether `ConvolvedNormalized` computes with such arrays."""
    if not gamma.shape == beta.shape == W.shape[:1] or not hasattr(fitting(x, W, gamma, beta, **how), "gradient_by"):
        return False
    if plus is None:
        return True
    shape = (len(x), len(W), *out_size(x.shape[2:], W.shape[2:], **how))
    return plus.dtype == x.dtype and plus.shape == shape
