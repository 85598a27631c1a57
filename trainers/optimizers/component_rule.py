"""A Chainer optimizer from the formula of a component. Imports Chainer: only for use inside `build`.

A component has `update(w, g, state, hyperparam, *, t, xp)`, which moves weights and state of one parameter in place. It
may have the names of its state in `states`, of state that is one float64 for the whole parameter in `numbers`, and
whether the formula is one of single numbers in `elementwise`.
"""

from __future__ import annotations

from typing import Any

import chainer
from chainer import optimizer

from trainers.optimizers.weight_decay import RATE_NOT_SET


class ComponentRule(optimizer.UpdateRule):
    """The update of one parameter by its component, on any device; nothing where there is no gradient."""

    def __init__(self, hyperparam: Any) -> None:
        super().__init__(hyperparam)
        self.is_elementwise = getattr(hyperparam.component, "elementwise", False)

    def init_state(self, param: chainer.Parameter) -> None:
        """The state, zero, beside the weights."""
        component, xp = self.hyperparam.component, param.device.xp
        with chainer.using_device(param.device):
            self.state.update({name: xp.zeros_like(param.array) for name in getattr(component, "states", ())})
            self.state.update({name: xp.zeros(()) for name in getattr(component, "numbers", ())})

    def update_core(self, param: chainer.Parameter) -> None:
        """One update in place."""
        if param.grad is None:
            return
        with chainer.using_device(param.device):
            self.hyperparam.component.update(
                param.array, param.grad, self.state, self.hyperparam, t=self.t, xp=param.device.xp
            )


class ComponentOptimizer(optimizer.GradientMethod):
    """Chainer optimizer whose rules read, in `hyperparam`, the rate `lr` and all else from `component`."""

    lr = optimizer.HyperparameterProxy("lr")

    def __init__(self, component: Any) -> None:
        super().__init__()
        self.hyperparam.lr = RATE_NOT_SET
        self.hyperparam.component = component

    def create_update_rule(self) -> optimizer.UpdateRule:
        """A rule that reads this optimizer's hyperparameters."""
        return ComponentRule(self.hyperparam)
