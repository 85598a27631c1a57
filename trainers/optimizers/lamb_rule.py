"""The Chainer side of `Lamb`. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

from typing import Any

import chainer
from chainer import optimizer

from trainers.optimizers.tensor_norm import norm, one_where_a_norm_is_0


class LambRule(optimizer.UpdateRule):
    """The update of one parameter, on any device; formula and names: `Lamb`."""

    def init_state(self, param: chainer.Parameter) -> None:
        """Mean and mean of squares, zero, beside the weights."""
        with chainer.using_device(param.device):
            self.state["m"] = param.device.xp.zeros_like(param.array)
            self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place; nothing where there is no gradient."""
        if param.grad is None:
            return
        rate, of, g = self.hyperparam.lr, self.hyperparam.component, param.grad
        with chainer.using_device(param.device):
            m, v = self.state["m"], self.state["v"]
            m *= of.beta1
            m += (1.0 - of.beta1) * g
            v *= of.beta2
            v += (1.0 - of.beta2) * (g * g)
            r = self._adam_direction(param)
            if self.hyperparam.exempt:
                param.array -= rate * r
            else:
                r += of.weight_decay * param.array
                param.array -= rate * (self._ratio(param, r).astype(param.dtype) * r)

    def _adam_direction(self, param: chainer.Parameter) -> Any:
        """m' / (sqrt(v') + eps); a new array."""
        of, m, v = self.hyperparam.component, self.state["m"], self.state["v"]
        of_m, of_v = of.share_seen(self.t)
        return (m / of_m) / (param.device.xp.sqrt(v / of_v) + of.eps)

    def _ratio(self, param: chainer.Parameter, r: Any) -> Any:
        """The trust ratio, a float64 array of shape () on the device: reading it here would wait for every tensor."""
        xp, bounds = param.device.xp, self.hyperparam.component.trust_bounds
        weights, direction = norm(xp, param.array), norm(xp, r)
        phi = weights if bounds is None else xp.clip(weights, *bounds)
        return one_where_a_norm_is_0(xp, phi / xp.where(direction == 0, 1.0, direction), weights, direction)
