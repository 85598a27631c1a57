"""An optimizer's step: for all parameters at once where the kernels have it, else parameter by parameter."""

from __future__ import annotations

from typing import Any

import chainer

from trainers.kernels import seams
from trainers.step_forms import StepDecay


def step(optimizer: chainer.Optimizer, component: Any) -> None:
    """Move the weights of an optimizer's model by its gradients: what `optimizer.update()` does.

    Args:
        optimizer: its hyperparameters are set for this update.
        component: the recipe's optimizer; all at once where it has a `step_form`.
    """
    parameters = list(optimizer.target.params())
    rules = [parameter.update_rule for parameter in parameters]
    if not _covered(optimizer, component, parameters):
        optimizer.update()
        return
    form = component.step_form(optimizer.hyperparam, rules[0].t + 1)
    optimizer.t += 1
    for rule, parameter in zip(rules, parameters, strict=True):
        rule.t += 1
        if not _has_states(rule, parameter):
            rule._init_states(parameter)
    states = [[rule.state[name] for rule in rules] for name in form.states]
    arrays = ([getattr(parameter, name) for parameter in parameters] for name in ("array", "grad"))
    serving = seams.serving(parameters[0].array)
    serving.optimizer_step(form, _decay(optimizer.hyperparam, component, rules), *arrays, states)


def _has_states(rule: chainer.UpdateRule, parameter: chainer.Parameter) -> bool:
    """Whether they are where the parameter is; sending them there, each by itself, takes Chainer long even so."""
    kind = type(parameter.array)
    return rule.state is not None and all(type(value) is kind for value in rule.state.values())


def _decay(hyperparam: Any, component: Any, rules: list[chainer.UpdateRule]) -> StepDecay:
    decay, rate = getattr(component, "decay", "coupled"), getattr(hyperparam, component.rate_attribute)
    shrink = {"coupled": 0.0, "times_rate": rate, "times_relative_rate": getattr(hyperparam, "relative_rate", 0.0)}
    lambdas = (-1.0 if getattr(rule.hyperparam, "exempt", False) else component.weight_decay for rule in rules)
    return StepDecay(coupled=decay == "coupled", shrink=shrink[decay], lambdas=tuple(lambdas))


def _covered(optimizer: chainer.Optimizer, component: Any, parameters: list[chainer.Parameter]) -> bool:
    """Whether the kernels have this step, of arrays that lie as they want them, and no hook is left out."""
    types = getattr(seams.serving(parameters[0].array), "STEPS", "")
    if not hasattr(component, "step_form") or parameters[0].dtype.char not in [*types]:
        return False
    if any(parameter.grad is None for parameter in parameters):
        return False
    rules = [parameter.update_rule for parameter in parameters]
    if any(rule is None for rule in rules) or len({*map(id, parameters)}) < len(parameters):
        return False
    plain = all(rule.enabled and set(_hooks(rule)) <= {"WeightDecay"} for rule in rules)
    return (
        plain
        and not _hooks(optimizer)
        and all(rule.t == rules[0].t for rule in rules)
        and seams.serving(*(array for parameter in parameters for array in (parameter.array, parameter.grad)))
        is not None
        and all(_fit(rule, parameter, parameters[0].dtype) for rule, parameter in zip(rules, parameters, strict=True))
    )


def _fit(rule: chainer.UpdateRule, parameter: chainer.Parameter, dtype: Any) -> bool:
    """Whether kernels can read and write what belongs to a parameter: they would not notice if they cannot."""
    kind = type(parameter.array)
    states = [value for value in (rule.state or {}).values() if type(value) is kind]
    return all(
        each.shape == parameter.shape
        and each.dtype == dtype
        and each.flags.c_contiguous
        and getattr(each.flags, "writeable", True)
        for each in (parameter.array, parameter.grad, *states)
    )


def _hooks(of: Any) -> list[str]:
    """Names of what is called before or after an update."""
    return [*of._hookable._pre_update_hooks, *of._hookable._post_update_hooks]
