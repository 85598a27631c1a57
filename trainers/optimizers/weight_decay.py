"""Weight decay in its three forms; it skips what `no_decay` names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, get_args

from lr_schedules.units import require_number

if TYPE_CHECKING:
    import chainer

# What weight decay may skip: scales and shifts of normalisation, or biases.
NoDecay = Literal["norm", "bias"]

# Where weight decay enters: into the gradient, or into the weights beside the step.
Decay = Literal["coupled", "times_rate", "times_relative_rate"]

# If the updater failed to set the rate, the first update gives NaN instead of silently using Chainer's default rate.
RATE_NOT_SET = float("nan")


def require_weight_decay(optimizer: Any) -> None:
    """Refuse a weight decay that is negative, a `decay` or a `no_decay` of other words.

    Args:
        optimizer: component with the fields `weight_decay`, `no_decay` and, where there is a choice, `decay`.
    Raises:
        ValueError: `weight_decay` is no number of at least 0; `decay` is none of the three forms; `no_decay` is no
            tuple of `norm` and `bias`.
    """
    name = type(optimizer).__name__
    require_number(f"{name}.weight_decay", optimizer.weight_decay, at_least=0)
    form = getattr(optimizer, "decay", "coupled")
    if form not in get_args(Decay):
        raise ValueError(f"{name}.decay must be coupled, times_rate or times_relative_rate, got {form!r}")
    words = optimizer.no_decay
    if not isinstance(words, tuple) or not set(words) <= {"norm", "bias"} or len(set(words)) < len(words):
        raise ValueError(f"{name}.no_decay must be a tuple of 'norm' and 'bias', each at most once, got {words!r}")


def says_who_decays(component: Any) -> bool:
    """Whether a component says who applies its `weight_decay`, by `decays_itself`, `no_decay` or a form as `decay`."""
    return any(hasattr(component, name) for name in ("decays_itself", "no_decay")) or decay_form(component) is not None


def decay_form(component: Any) -> str | None:
    """The field `decay` where it is text; a number there is another decay, such as that of an average of squares."""
    form = getattr(component, "decay", None)
    return form if isinstance(form, str) else None


def parameters_without_decay(model: chainer.Link, no_decay: Sequence[NoDecay]) -> set[str]:
    """The paths of the parameters that `no_decay` names, as `model.namedparams()` gives them.

    Args:
        model: any link.
        no_decay: `norm` for gamma and beta of batch, group and layer normalisation and of links derived from them;
            `bias` for every parameter called b, which is what Chainer calls the bias of a linear layer or convolution.
    """
    import chainer.links as L

    links = dict(model.namedlinks())
    paths = set()
    for path, _ in model.namedparams():
        parent, _, name = path.rpartition("/")
        link = links[parent or "/"]
        # avg_mean: ChainerMN's MultiNodeBatchNormalization shares no class with Chainer's.
        is_normalisation = isinstance(
            link, L.BatchNormalization | L.GroupNormalization | L.LayerNormalization
        ) or hasattr(link, "avg_mean")
        is_scale_or_shift = is_normalisation and name in ("gamma", "beta")
        if ("norm" in no_decay and is_scale_or_shift) or ("bias" in no_decay and name == "b"):
            paths.add(path)
    return paths


def decay_parameters(optimizer: chainer.Optimizer, component: Any) -> None:
    """Add the hook for the component's form of weight decay to every parameter that decays.

        coupled              g <- g + lambda w                                   goes through momentum and rate ("L2")
        times_rate           w <- w - eta lambda w                               before the step
        times_relative_rate  w <- w - (eta / full rate) lambda w                 before the step

    Gradients are summed over the workers before, so each parameter decays once, whatever the number of workers. Chainer
    adds the coupled form in place: the gradient that is left after an update contains it. An optimizer whose
    `decays_itself` is true gets no hook: its rules read from `hyperparam.exempt` whether `no_decay` names their
    parameter, and from `hyperparam.path` which it is.

    Notation: g gradient, w weights, lambda `weight_decay`, eta the rate of this update; the full rate is the one that
    warmup and schedule are factors of.

    Args:
        optimizer: already set up with its model, all links of which are in place: one replaced later is not decayed.
        component: the recipe's optimizer: `weight_decay` (with 0 or None, or without it, there is no hook), `no_decay`
            (see `parameters_without_decay`) and `decay`, coupled where it has no such field or a number there.

    Source: times_rate is what PyTorch's AdamW documents; times_relative_rate what Composer's DecoupledSGDW does.
    """
    optimizer.hyperparam.component = component
    exempt = parameters_without_decay(optimizer.target, getattr(component, "no_decay", ()))
    decays = not getattr(component, "decays_itself", False) and (getattr(component, "weight_decay", None) or 0) > 0
    for path, parameter in optimizer.target.namedparams():
        parameter.update_rule.hyperparam.path = path
        parameter.update_rule.hyperparam.exempt = path in exempt
        if decays and path not in exempt:
            parameter.update_rule.add_hook(_hook(component), name="WeightDecay", timing="pre")


def _hook(component: Any) -> Callable[[chainer.UpdateRule, chainer.Parameter], None]:
    """What Chainer calls with a rule and its parameter before each of its updates."""
    import chainer.optimizer_hooks

    form = decay_form(component) or "coupled"
    rate_attribute = component.rate_attribute if form == "times_rate" else "relative_rate"

    def couple(rule: chainer.UpdateRule, param: chainer.Parameter) -> None:
        chainer.optimizer_hooks.WeightDecay(rule.hyperparam.component.weight_decay)(rule, param)

    def shrink(rule: chainer.UpdateRule, param: chainer.Parameter) -> None:
        if param.grad is not None:
            weight_decay = rule.hyperparam.component.weight_decay
            # Not `*= 1 - x`: in float32 that rounds x itself, by up to 0.3 % where x is 1e-5.
            param.array -= (getattr(rule.hyperparam, rate_attribute) * weight_decay) * param.array

    return couple if form == "coupled" else shrink
