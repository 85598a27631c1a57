"""An optimizer's step: for all parameters at once where the kernels have it, else parameter by parameter."""

from __future__ import annotations

from typing import Any

import chainer

from trainers.kernels import seams
from trainers.kernels.cuda_tensors import MomentumForm, Trust


def step(optimizer: chainer.Optimizer, component: Any) -> None:
    """Move the weights of an optimizer's model by its gradients: what `optimizer.update()` does.

    Args:
        optimizer: its hyperparameters are set for this update.
        component: the recipe's optimizer.
    """
    parameters = list(optimizer.target.params())
    if not _covered(optimizer, component, parameters):
        optimizer.update()
        return
    optimizer.t += 1
    for parameter in parameters:
        parameter.update_rule.t += 1
        parameter.update_rule._init_states(parameter)
    arrays = [[parameter.array for parameter in parameters], [parameter.grad for parameter in parameters]]
    states = [parameter.update_rule.state["v"] for parameter in parameters]
    decays = [_decay(parameter.update_rule, component) for parameter in parameters]
    seams.serving(arrays[0][0]).momentum_step(_form(optimizer, component), *arrays, states, decays)


def _form(optimizer: chainer.Optimizer, component: Any) -> MomentumForm:
    hyperparam, decay = optimizer.hyperparam, getattr(component, "decay", "coupled")
    words = component.momentum_form(getattr(hyperparam, component.rate_attribute))
    if words.get("trust") is not None:
        words["trust"] = Trust(**words["trust"])
    shrink = {
        "coupled": 0.0,
        "times_rate": getattr(hyperparam, component.rate_attribute),
        "times_relative_rate": getattr(hyperparam, "relative_rate", 0.0),
    }
    return MomentumForm(**words, coupled=decay == "coupled", shrink=shrink[decay])


def _decay(rule: chainer.UpdateRule, component: Any) -> float:
    """Lambda of a parameter; below 0 where `no_decay` names it."""
    return -1.0 if getattr(rule.hyperparam, "exempt", False) else component.weight_decay


def _covered(optimizer: chainer.Optimizer, component: Any, parameters: list[chainer.Parameter]) -> bool:
    """Whether the kernels have this step, of arrays that lie as they want them, and no hook is left out."""
    if not hasattr(component, "momentum_form") or not hasattr(seams.serving(parameters[0].array), "momentum_step"):
        return False
    if any(parameter.grad is None for parameter in parameters):
        return False
    arrays = [array for parameter in parameters for array in (parameter.array, parameter.grad)]
    rules = [parameter.update_rule for parameter in parameters]
    plain = all(rule.enabled and set(rule._hookable._pre_update_hooks) <= {"WeightDecay"} for rule in rules)
    return (
        plain
        and not optimizer._hookable._pre_update_hooks
        and seams.serving(*arrays) is not None
        and all(array.dtype == arrays[0].dtype and array.flags.c_contiguous for array in arrays)
    )
