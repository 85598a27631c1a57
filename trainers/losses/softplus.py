"""log(1 + exp z) with a gradient that holds for every z."""

from __future__ import annotations

from typing import Any

import chainer


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
        z = self.get_retained_inputs()[0].array
        xp = chainer.backend.get_array_module(z)
        return (grads[0] * xp.exp(-xp.logaddexp(-z, z.dtype.type(0))),)
