"""The Chainer side of `Lars`. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

from typing import Any

import chainer
from chainer import optimizer

from trainers.optimizers.tensor_norm import norm, one_where_a_norm_is_0


class LarsRule(optimizer.UpdateRule):
    """The update of one parameter, on any device; formula and names: `Lars`."""

    def init_state(self, param: chainer.Parameter) -> None:
        """The buffer, zero, beside the weights."""
        with chainer.using_device(param.device):
            self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place; nothing where there is no gradient."""
        if param.grad is None:
            return
        rate, of = self.hyperparam.lr, self.hyperparam.component
        within, beside = (rate, 1.0) if of.rate == "inside" else (1.0, rate)
        with chainer.using_device(param.device):
            v = self.state["v"]
            d = within * self._direction(param)
            v *= of.momentum
            v += d
            param.array -= beside * (of.momentum * v + d if of.nesterov else v)

    def _direction(self, param: chainer.Parameter) -> Any:
        """d of the formula: the gradient with the decay, times the ratio; of an exempt parameter the gradient."""
        of = self.hyperparam.component
        if self.hyperparam.exempt:
            return param.grad
        decayed = param.grad + of.weight_decay * param.array
        return self._ratio(param).astype(param.dtype) * decayed

    def _ratio(self, param: chainer.Parameter) -> Any:
        """The trust ratio, a float64 array of shape () on the device: reading it here would wait for every tensor."""
        xp, rate, of = param.device.xp, self.hyperparam.lr, self.hyperparam.component
        weights, gradient = norm(xp, param.array), norm(xp, param.grad)
        against = gradient + (of.weight_decay * weights if of.decay_in_trust else 0.0) + of.eps
        ratio = of.trust_coefficient * weights / xp.where(against == 0, 1.0, against)
        if of.clip:
            ratio = xp.minimum(ratio / rate, 1.0) if rate else xp.ones_like(ratio)
        return one_where_a_norm_is_0(xp, ratio, weights, gradient)
