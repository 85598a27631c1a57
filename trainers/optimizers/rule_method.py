"""The Chainer optimizer for our own update rules. Imports Chainer: only for use inside `build`."""

from __future__ import annotations

from typing import Any

from chainer import optimizer

from trainers.optimizers.weight_decay import RATE_NOT_SET


class RuleMethod(optimizer.GradientMethod):
    """Chainer optimizer whose rules read, in `hyperparam`, the rate `lr` and all else from `component`.

    Args:
        rule: makes the rule of one parameter from the hyperparameters.
        component: the optimizer of the recipe.
    """

    lr = optimizer.HyperparameterProxy("lr")

    def __init__(self, rule: type[optimizer.UpdateRule], component: Any) -> None:
        super().__init__()
        self._rule = rule
        self.hyperparam.lr = RATE_NOT_SET
        self.hyperparam.component = component

    def create_update_rule(self) -> optimizer.UpdateRule:
        """A rule that reads this optimizer's hyperparameters."""
        return self._rule(self.hyperparam)
