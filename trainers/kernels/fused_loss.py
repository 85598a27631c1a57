"""Losses in one node: softmax cross entropy where the kernels have it, and log(1 + exp z) with its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import chainer
import chainer.functions as F
import numpy as np

from trainers.kernels import chainer_hooks


def fused_cross_entropy(
    logits: Any, targets: Any, *, label_smoothing: float, soft_targets: Callable[[], Any], groups: int = 1
) -> chainer.Variable | None:
    """`trainers.losses.SoftmaxCrossEntropy` of logits and targets; None where Chainer's nodes must serve.

    On a GPU logits of 16 bits are read as they are, computed with in float32, and give a loss in float32. Forward reads
    them twice and keeps three numbers a sample, backward reads them once more.

    Args:
        logits: (samples, classes).
        targets: int (samples,), labels, or float32 (samples, classes). A label of no class makes the loss NaN on a GPU,
            and is a ValueError on a CPU.
        label_smoothing: in [0, 1).
        soft_targets: gives them as a float array like the logits, smoothed; asked for gradients of gradients only.
        groups: norm groups that have a mean each, on a CPU; the loss is then (groups,).
    """
    x = getattr(logits, "array", logits)
    if not _covers(x, targets):
        return None
    options = {"label_smoothing": label_smoothing} | ({"groups": groups} if groups > 1 else {})
    (loss,) = _SoftmaxCrossEntropy(targets, soft_targets, options).apply((logits,))
    return loss


class _SoftmaxCrossEntropy(chainer.FunctionNode):
    """Mean over samples of -sum over k of q_k log p_k, p being the softmax of the logits; one for each group."""

    def __init__(self, targets: Any, soft_targets: Callable[[], Any], options: dict[str, Any]) -> None:
        self._targets, self._soft_targets, self._options = targets, soft_targets, options

    def forward(self, inputs: tuple[Any]) -> tuple[Any]:
        (x,) = inputs
        self.retain_inputs((0,))
        self._operators = chainer_hooks.operators_for(x)  # the gradient needs the same kernels
        loss, self._kept = self._operators.cross_entropy(x, self._targets, **self._options)
        return (loss,)

    def backward(self, indexes: tuple[int, ...], grad_outputs: tuple[chainer.Variable]) -> tuple[chainer.Variable]:
        (gy,), (x,) = grad_outputs, self.get_retained_inputs()
        if chainer.config.enable_backprop:  # gradients of gradients are asked for: by nodes that have them
            return (self._nodes(x, gy),)
        given = x.array, self._targets, self._kept, gy.array
        return (chainer.as_variable(self._operators.cross_entropy_gradient(*given, **self._options)),)

    def _nodes(self, x: chainer.Variable, gy: chainer.Variable) -> chainer.Variable:
        q = self._soft_targets()
        p, total = F.softmax(F.cast(x, q.dtype)), q.sum(axis=1, keepdims=True)
        slopes = p * p.xp.broadcast_to(total, p.shape) - q
        span = len(q) // gy.size
        factors = F.broadcast_to(F.reshape(gy / span, (-1, 1, 1)), (gy.size, span, q.shape[1]))
        return F.cast(F.reshape(factors, p.shape) * slopes, x.dtype)


def _covers(x: Any, targets: Any) -> bool:
    """Whether the kernels compute with such arrays."""
    if type(targets) is not type(x) or x.ndim != 2 or not hasattr(chainer_hooks.operators_for(x), "cross_entropy"):
        return False
    shape = x.shape if targets.dtype == np.float32 else x.shape[:1]
    return targets.dtype in (np.float32, np.int32, np.int64) and targets.shape == shape


class Softplus(chainer.FunctionNode):
    """log(1 + exp z), element by element; its gradient is sigmoid z.

    Differs: the gradient of Chainer's `F.softplus` overflows in exp z for large z and is rounded to 0 for small ones;
        relu(z) + log(1 + exp(-|z|)) in Chainer's functions has the gradient 0 at z = 0, where it should be 1/2.
    """

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """The softplus of the one input array."""
        self.retain_inputs((0,))
        (z,) = inputs
        xp = chainer.backend.get_array_module(z)
        return (xp.logaddexp(z, z.dtype.type(0)),)

    def backward(self, indexes: tuple[int, ...], grads: tuple[Any, ...]) -> tuple[Any, ...]:
        """The gradient times sigmoid z = exp(-log(1 + exp(-z))), precise at both ends."""
        (variable,) = self.get_retained_inputs()
        if chainer.config.enable_backprop:  # gradients of gradients are asked for
            return (grads[0] * F.sigmoid(variable),)
        z = variable.array
        xp = chainer.backend.get_array_module(z)
        return (grads[0] * xp.exp(-xp.logaddexp(-z, z.dtype.type(0))),)
