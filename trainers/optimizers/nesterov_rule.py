"""The Chainer side of `NesterovAG` and `CorrectedNesterovAG`. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

import chainer
from chainer import optimizer


class NesterovRule(optimizer.UpdateRule):
    """v <- m v + g; w <- w - eta (g + m v), for one parameter on any device. Formula: `CorrectedNesterovAG`."""

    is_elementwise = True

    def init_state(self, param: chainer.Parameter) -> None:
        """The buffer, zero, beside the weights."""
        with chainer.using_device(param.device):
            self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place; nothing where there is no gradient."""
        if param.grad is None:
            return
        rate, momentum = self.hyperparam.lr, self.hyperparam.component.momentum
        with chainer.using_device(param.device):
            v = self.state["v"]
            v *= momentum
            v += param.grad
            param.array -= rate * (param.grad + momentum * v)


class NesterovInsideRule(optimizer.UpdateRule):
    """v <- m v + eta g; w <- w - (m v + eta g), for one parameter on any device. Formula: `NesterovAG`."""

    is_elementwise = True

    def init_state(self, param: chainer.Parameter) -> None:
        """The buffer, zero, beside the weights."""
        with chainer.using_device(param.device):
            self.state["v"] = param.device.xp.zeros_like(param.array)

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place; nothing where there is no gradient."""
        if param.grad is None:
            return
        rate, momentum = self.hyperparam.lr, self.hyperparam.component.momentum
        with chainer.using_device(param.device):
            v = self.state["v"]
            step = rate * param.grad
            v *= momentum
            v += step
            step += momentum * v
            param.array -= step
