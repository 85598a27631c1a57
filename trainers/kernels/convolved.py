"""A convolution, batch normalisation of norm groups, a sum and ReLU in one node. Imports Chainer."""

from __future__ import annotations

from typing import Any

import chainer
import chainer.functions as F
from chainer import links as L

from trainers.kernels import convolution_seams, seams
from trainers.kernels.applied import is_plain, linked, variable_of, variables_of
from trainers.kernels.convolution_seams import deferred, fitting
from trainers.kernels.normalized import Normalized
from trainers.kernels.numpy_convolution import Pair, out_size


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
        ours = seams.serving(x, W)
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
        found = [*(convolution_seams.gradients(indexes, x, W, gh, **self._how) or self._by_nodes(x, W, gh)), *rest]
        for index, before in zip(indexes, grad_inputs, strict=True):
            if before is not None and index < 2:
                convolution_seams.add_to(found[index], before.array)
            elif before is not None:
                found[index] = convolution_seams.added(found[index], before.array)
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
