"""An optimizer's step: for all parameters in one launch where the kernels have it, else parameter by parameter."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from operator import is_
from typing import Any

import chainer

from trainers.kernels import chainer_hooks
from trainers.kernels.optimizer_steps import MomentumStep, StepDecay

_DECAY_HOOK = {"WeightDecay"}
_MAX_REMEMBERED = 2  # sets of arrays remembered: double buffering has gradients in two


class FusedStep:
    """Moves the weights of an optimizer's model by its gradients: what `optimizer.update()` does.

    All parameters at once where the recipe's optimizer has a `fused_step`, and they have one rate.

    Args:
        optimizer: set up; its hyperparameters are set for each update.
    """

    def __init__(self, optimizer: chainer.Optimizer) -> None:
        self._optimizer = optimizer
        self._parameters = list(optimizer.target.params())
        self._check = ArrayCheck()

    def __call__(self) -> None:
        """Do one step."""
        optimizer, parameters = self._optimizer, self._parameters
        component = optimizer.hyperparam.component
        rules = [parameter.update_rule for parameter in parameters]
        factored = getattr(optimizer.hyperparam, "rate_factors", ())
        if not hasattr(component, "fused_step") or factored or _hooks(optimizer) or not _are_plain(rules):
            optimizer.update()
            return
        form = component.fused_step(optimizer.hyperparam, rules[0].t + 1)
        arrays = [[getattr(parameter, name) for parameter in parameters] for name in ("array", "grad")]
        states = _states(form.states, rules)
        if not self._check.covers(*arrays, *states):
            for rule, parameter in zip(rules, parameters, strict=True):
                if not _has_states(rule, parameter):
                    rule._init_states(parameter)
            states = _states(form.states, rules)
            if not self._check.covers(*arrays, *states):
                optimizer.update()
                return
        optimizer.t += 1
        for rule in rules:
            rule.t += 1
        decay = _decay(optimizer.hyperparam, component, rules)
        chainer_hooks.operators_for(arrays[0][0]).optimizer_step(form, decay, *arrays, states)


class ArrayCheck:
    """Checks that the kernels of a step can read and write the given arrays: the kernels themselves do not check.

    A GPU waits while Python checks some hundred tensors. So sets of arrays that passed are remembered.
    """

    def __init__(self) -> None:
        self._known: list[tuple[Any, list[Any]]] = []  # kernels, and arrays that passed with them

    def covers(self, *arrays: list[Any]) -> bool:
        """Whether kernels serve all arrays of these lists, each with one entry a tensor; False if an entry is None."""
        operators, everything = chainer_hooks.operators_for(arrays[0][0]), [*itertools.chain(*arrays)]
        for served, known in self._known:
            if served is operators and len(known) == len(everything) and all(map(is_, known, everything)):
                return True
        self._known = [each for each in self._known if each[1][0] is everything[0]]  # drop those of former weights
        dtype = arrays[0][0].dtype
        if dtype.char not in [*getattr(operators, "STEPS", "")]:
            return False
        if any(each is None or each.dtype != dtype for each in everything):
            return False
        if chainer_hooks.operators_for(*everything) is None or not all(map(_are_alike, *arrays)):
            return False
        self._known = [(operators, everything), *self._known[: _MAX_REMEMBERED - 1]]
        return True


def move_averages(averages: list[Any], arrays: list[Any], share: float) -> None:
    """average <- (1 - share) average + share array, for all at once: a step without momentum, whose decay is `share`.

    Args:
        averages, arrays: for which `ArrayCheck.covers` is true.
        share: in [0, 1].
    """
    form = MomentumStep(momentum=0.0, gradient_scale=1.0, step_scale=-share, states=())
    decay = StepDecay(coupled=False, shrink=share, lambdas=(1.0,) * len(averages))
    chainer_hooks.operators_for(averages[0]).optimizer_step(form, decay, averages, arrays, [])


def _states(names: Sequence[str], rules: list[chainer.UpdateRule]) -> list[list[Any]]:
    """Of each name the state of every rule; None where it has not been made."""
    return [[(rule.state or {}).get(name) for rule in rules] for name in names]


def _are_plain(rules: list[chainer.UpdateRule]) -> bool:
    """Whether every parameter has a rule of its own, all are at the same step, and weight decay is the only hook."""
    return (
        None not in rules
        and len({*map(id, rules)}) == len(rules)
        and all(rule.enabled and rule.t == rules[0].t and _DECAY_HOOK.issuperset(_hooks(rule)) for rule in rules)
    )


def _has_states(rule: chainer.UpdateRule, parameter: chainer.Parameter) -> bool:
    """Whether the rule's state exists, on the parameter's kind of device."""
    kind = type(parameter.array)
    return rule.state is not None and all(type(value) is kind for value in rule.state.values())


def _decay(hyperparam: Any, component: Any, rules: list[chainer.UpdateRule]) -> StepDecay:
    decay, rate = getattr(component, "decay", "coupled"), getattr(hyperparam, component.rate_attribute)
    shrink = {"coupled": 0.0, "times_rate": rate, "times_relative_rate": getattr(hyperparam, "relative_rate", 0.0)}
    lambdas = (-1.0 if getattr(rule.hyperparam, "exempt", False) else component.weight_decay for rule in rules)
    return StepDecay(coupled=decay == "coupled", shrink=shrink[decay], lambdas=tuple(lambdas))


def _are_alike(*arrays: Any) -> bool:
    """Whether arrays have one shape and one type, and are contiguous and writeable as the kernels need."""
    return all(
        each.shape == arrays[0].shape
        and each.dtype == arrays[0].dtype
        and each.flags.c_contiguous
        and getattr(each.flags, "writeable", True)
        for each in arrays
    )


def _hooks(of: Any) -> list[str]:
    """Names of the hooks that are called before or after an update."""
    return [*of._hookable._pre_update_hooks, *of._hookable._post_update_hooks]
