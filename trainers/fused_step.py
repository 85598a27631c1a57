"""An optimizer's step: for all parameters at once where the kernels have it, else parameter by parameter."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

import chainer

from trainers.kernels import seams
from trainers.step_forms import StepDecay

_DECAY = {"WeightDecay"}
_MOST = 2  # sets of arrays that are known: double buffering has gradients in two


class FusedStep:
    """Moves the weights of an optimizer's model by its gradients: what `optimizer.update()` does.

    A GPU waits while Python sees whether kernels can read and write all that belongs to some hundred parameters. So
    arrays that they can are known again.

    Args:
        optimizer: set up; its hyperparameters are set for each update.
        component: the recipe's optimizer; all parameters at once where it has a `step_form`.
    """

    def __init__(self, optimizer: chainer.Optimizer, component: Any) -> None:
        self._optimizer, self._component = optimizer, component
        self._parameters = list(optimizer.target.params())
        self._known: list[tuple[Any, list[Any]]] = []  # kernels, and what they can read and write

    def __call__(self) -> None:
        """Do one step."""
        optimizer, parameters = self._optimizer, self._parameters
        rules = [parameter.update_rule for parameter in parameters]
        if not hasattr(self._component, "step_form") or _hooks(optimizer) or not _are_plain(rules):
            optimizer.update()
            return
        form = self._component.step_form(optimizer.hyperparam, rules[0].t + 1)
        arrays = [[getattr(parameter, name) for parameter in parameters] for name in ("array", "grad")]
        states = self._states(form.states, rules, arrays)
        if states is None:
            optimizer.update()
            return
        optimizer.t += 1
        for rule in rules:
            rule.t += 1
        decay = _decay(optimizer.hyperparam, self._component, rules)
        seams.serving(arrays[0][0]).optimizer_step(form, decay, *arrays, states)

    def _states(
        self, names: Sequence[str], rules: list[chainer.UpdateRule], arrays: list[list[Any]]
    ) -> list[list[Any]] | None:
        """Of each name those of all rules, made where there are none yet; None where kernels do not serve.

        Args:
            arrays: weights and gradients.
        """
        ours = seams.serving(arrays[0][0])
        states = [[(rule.state or {}).get(name) for rule in rules] for name in names]
        everything = [*itertools.chain(*arrays, *states)]
        for served, known in self._known:
            if served is ours and len(known) == len(everything) and all(map(operator.is_, known, everything)):
                return states
        self._known = [each for each in self._known if each[1][0] is everything[0]]  # others are weights no longer
        if not _serve(ours, arrays, rules):
            return None
        for rule, parameter in zip(rules, self._parameters, strict=True):
            if not _has_states(rule, parameter):
                rule._init_states(parameter)
        states = [[rule.state[name] for rule in rules] for name in names]
        self._known = [(ours, [*itertools.chain(*arrays, *states)]), *self._known[: _MOST - 1]]
        return states


def _are_plain(rules: list[chainer.UpdateRule]) -> bool:
    """Whether each is of one parameter, all are as far, and no hook is left out."""
    return (
        None not in rules
        and len({*map(id, rules)}) == len(rules)
        and all(rule.enabled and rule.t == rules[0].t and _DECAY.issuperset(_hooks(rule)) for rule in rules)
    )


def _has_states(rule: chainer.UpdateRule, parameter: chainer.Parameter) -> bool:
    """Whether they are where the parameter is."""
    kind = type(parameter.array)
    return rule.state is not None and all(type(value) is kind for value in rule.state.values())


def _decay(hyperparam: Any, component: Any, rules: list[chainer.UpdateRule]) -> StepDecay:
    decay, rate = getattr(component, "decay", "coupled"), getattr(hyperparam, component.rate_attribute)
    shrink = {"coupled": 0.0, "times_rate": rate, "times_relative_rate": getattr(hyperparam, "relative_rate", 0.0)}
    lambdas = (-1.0 if getattr(rule.hyperparam, "exempt", False) else component.weight_decay for rule in rules)
    return StepDecay(coupled=decay == "coupled", shrink=shrink[decay], lambdas=tuple(lambdas))


def _serve(ours: Any, arrays: list[list[Any]], rules: list[chainer.UpdateRule]) -> bool:
    """Whether these kernels have the step, of arrays that lie as they want them."""
    weights, gradients = arrays
    if weights[0].dtype.char not in [*getattr(ours, "STEPS", "")] or any(each is None for each in gradients):
        return False
    if seams.serving(*weights, *gradients) is None:
        return False
    return all(map(_fit, weights, gradients, rules))


def _fit(weights: Any, gradient: Any, rule: chainer.UpdateRule) -> bool:
    """Whether kernels can read and write what belongs to a parameter: they would not notice if they cannot."""
    kind = type(weights)
    states = [value for value in (rule.state or {}).values() if type(value) is kind]
    return all(
        each.shape == weights.shape
        and each.dtype == weights.dtype
        and each.flags.c_contiguous
        and getattr(each.flags, "writeable", True)
        for each in (weights, gradient, *states)
    )


def _hooks(of: Any) -> list[str]:
    """Names of what is called before or after an update."""
    return [*of._hookable._pre_update_hooks, *of._hookable._post_update_hooks]
