"""The Chainer side of `Lamb`. Imports Chainer: only for use inside `build`.

The Chainer side of `Lars`. Imports Chainer: only for use inside `build`.

The Chainer side of `NesterovAG` and `CorrectedNesterovAG`. Imports Chainer: only for use inside `build`.

The Chainer side of `RmspropWarmup`. Imports Chainer: only for use inside `build`.

The Chainer optimizer for our own update rules. Imports Chainer: only for use inside `build`.

Norms of one tensor for optimizers with a trust ratio; `xp` is the array module of the parameter's device.
"""

from __future__ import annotations

from typing import Any

import chainer
from chainer import optimizer

from trainers.optimizers.weight_decay import RATE_NOT_SET


def norm(xp: Any, array: Any) -> Any:
    """Euclidean norm as a float64 array of shape (), on the device of `array`.

    Squares are taken in float64 too: in float32 those of numbers below 1e-23 are 0.
    """
    values = array.astype(xp.float64)
    return xp.asarray(xp.sqrt((values * values).sum()))


def one_where_a_norm_is_0(xp: Any, ratio: Any, *norms: Any) -> Any:
    """`ratio`, or 1 where one of the norms is 0; a norm of NaN leaves `ratio` as it is."""
    for each in norms:
        ratio = xp.where(each == 0, 1.0, ratio)
    return ratio


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
