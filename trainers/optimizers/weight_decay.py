"""Weight decay that skips what `no_decay` names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from lr_schedules.units import require_number

if TYPE_CHECKING:
    import chainer

# What weight decay may skip: scales and shifts of normalisation, or biases.
NoDecay = Literal["norm", "bias"]

# A rate that the updater has not set yet makes the first update visibly wrong instead of silently Chainer's default.
RATE_NOT_SET = float("nan")


def require_weight_decay(optimizer: Any) -> None:
    """Refuse a weight decay that is negative, or a `no_decay` of other words.

    Args:
        optimizer: component with the fields `weight_decay` and `no_decay`.
    Raises:
        ValueError: `weight_decay` is no number of at least 0; `no_decay` is no tuple of `norm` and `bias`.
    """
    name = type(optimizer).__name__
    require_number(f"{name}.weight_decay", optimizer.weight_decay, at_least=0)
    words = optimizer.no_decay
    if not isinstance(words, tuple) or not set(words) <= {"norm", "bias"} or len(set(words)) < len(words):
        raise ValueError(f"{name}.no_decay must be a tuple of 'norm' and 'bias', each at most once, got {words!r}")


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


def decay_parameters(
    optimizer: chainer.Optimizer, *, weight_decay: float, no_decay: Sequence[NoDecay] = ()
) -> None:
    """Give every parameter of the optimizer's model that decays its weight-decay hook.

        g <- g + weight_decay * w             before the rule of the optimizer sees g

    So the decay is part of the gradient ("L2"): it goes through the momentum and is scaled by the rate. The sum over
    the workers comes before it, so each gradient is decayed once, whatever their number. Chainer adds it in place: the
    gradient that is left after an update contains it.

    Args:
        optimizer: already set up with its model, all links of which are in place: one replaced later is not decayed.
        weight_decay: at least 0; with 0 there is no hook.
        no_decay: see `parameters_without_decay`.
    """
    import chainer.optimizer_hooks

    exempt = parameters_without_decay(optimizer.target, no_decay)
    for path, parameter in optimizer.target.namedparams():
        if weight_decay and path not in exempt:
            parameter.update_rule.add_hook(chainer.optimizer_hooks.WeightDecay(weight_decay))
