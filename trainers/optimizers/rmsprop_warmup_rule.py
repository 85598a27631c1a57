"""The Chainer side of `RmspropWarmup`. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
from chainer import optimizer


class RmspropWarmupRule(optimizer.UpdateRule):
    """One parameter on any device; formula and names: `RmspropWarmup`."""

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
        sgd, rmsprop = self._weights()
        with chainer.using_device(param.device):
            xp, g, m, delta = param.device.xp, param.grad, self.state["m"], self.state["delta"]
            m *= of.mu2
            m += (1.0 - of.mu2) * (g * g)
            delta *= of.mu1
            delta -= (sgd + rmsprop / (xp.sqrt(m) + of.eps)) * g
            param.array += rate * delta

    def _weights(self) -> tuple[float, float]:
        rate, epoch, of = self.hyperparam.lr, self.hyperparam.epoch, self.hyperparam.component
        sgd = of.sgd_weight(epoch)
        if rate == 0 and sgd < 1:
            raise ValueError(
                f"RmspropWarmup divides its RMSprop rate by the learning rate, which is 0 at epoch {epoch:g}; "
                "it is a warmup of its own, so give the recipe a rate above 0 until it is over"
            )
        return sgd, (1.0 - sgd) * of.rmsprop_learning_rate / rate if sgd < 1 else 0.0
