"""The Chainer side of `RmspropWarmup`. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
from chainer import optimizer


class RmspropWarmupRule(optimizer.UpdateRule):
    """The update of one parameter, on any device; formula and names: `RmspropWarmup`."""

    is_elementwise = True

    def init_state(self, param: chainer.Parameter) -> None:
        """Mean of squares and momentum, zero, beside the weights."""
        with chainer.using_device(param.device):
            self.state["m"] = param.device.xp.zeros_like(param.array)
            self.state["delta"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place; nothing where there is no gradient.

        Raises:
            ValueError: the rate is 0 while the RMSprop term still has a weight.
        """
        if param.grad is None:
            return
        rate, of = self.hyperparam.lr, self.hyperparam.component
        sgd, rmsprop = of.weights(rate, self.hyperparam.epoch)
        with chainer.using_device(param.device):
            xp, g, m, delta = param.device.xp, param.grad, self.state["m"], self.state["delta"]
            m *= of.mu2
            m += (1.0 - of.mu2) * (g * g)
            delta *= of.mu1
            delta -= (sgd + rmsprop / (xp.sqrt(m) + of.eps)) * g
            param.array += rate * delta
