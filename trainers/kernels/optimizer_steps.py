"""An optimizer's step as numbers: the arguments of kernels that update all parameters in one launch.

A component of `trainers.optimizers` gives one of these forms from its `step_form(hyperparam, t)`. Each names the
`kernels` that compute it and has their arguments, in their order, in `numbers`. `states` are the names of an update
rule's state, which are the same with and without these kernels.

Notation: g gradient, w weights, lambda decay of a tensor, ratio its trust ratio (1 without a `trust`). Every form has

    g <- g + coupled lambda w;  w <- w - shrink lambda w             before anything else
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Trust:
    """How a tensor's rate follows the norms of its weights and of its direction.

        ratio = coefficient phi(||w||) / (||direction|| + lambda ||w|| + eps)      lambda: with `decay_in_trust`
        phi(x) = min(max(x, low), high);  ratio = min(ratio / clip_rate, 1)        where clip_rate is above 0

    It is 1 where a norm is 0, and for a tensor that is exempt from decay.

    Args:
        bounds: low and high.
    """

    coefficient: float = 1.0
    decay_in_trust: bool = False
    eps: float = 0.0
    clip_rate: float = 0.0
    bounds: tuple[float, float] = (0.0, math.inf)

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.coefficient, self.decay_in_trust, self.eps, self.clip_rate, *self.bounds


@dataclass(frozen=True, kw_only=True)
class MomentumForm:
    """A step with momentum, one rate for all tensors; the direction in its trust ratio is g without the decay.

        v <- momentum v + within ratio g
        w <- w - beside v, or with `nesterov` w <- w - beside (momentum v + within ratio g)

    Args:
        states: empty for a step that keeps no v.
    """

    momentum: float
    within: float
    beside: float
    nesterov: bool = False
    trust: Trust | None = None
    states: tuple[str, ...] = ("v",)

    kernels: ClassVar[str] = "momentum"

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.momentum, self.within, self.beside, self.nesterov


@dataclass(frozen=True, kw_only=True)
class AdamForm:
    """A step of Adam or LAMB.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        r = m over_m / (sqrt(v over_v) + eps) + inside lambda w
        w <- w - rate ratio r

    Args:
        inside: whether the coupled decay is part of r, the direction, instead of g.
    """

    beta1: float
    beta2: float
    eps: float
    rate: float
    over_m: float = 1.0
    over_v: float = 1.0
    inside: bool = False
    trust: Trust | None = None

    kernels: ClassVar[str] = "adam"
    states: ClassVar[tuple[str, ...]] = ("m", "v")

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.beta1, self.beta2, self.eps, self.rate, self.over_m, self.over_v, self.inside


@dataclass(frozen=True, kw_only=True)
class RmspropForm:
    """A step with momentum along a sum of SGD's and RMSprop's directions.

    m <- mu2 m + (1 - mu2) g^2
    delta <- mu1 delta - (sgd + rmsprop / (sqrt(m) + eps)) g
    w <- w + rate delta
    """

    mu1: float
    mu2: float
    eps: float
    sgd: float
    rmsprop: float
    rate: float

    kernels: ClassVar[str] = "rmsprop"
    states: ClassVar[tuple[str, ...]] = ("m", "delta")
    trust: ClassVar[None] = None

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.mu1, self.mu2, self.eps, self.sgd, self.rmsprop, self.rate


StepForm = MomentumForm | AdamForm | RmspropForm


@dataclass(frozen=True, kw_only=True)
class StepDecay:
    """Where weight decay enters a step.

    Args:
        coupled, shrink: see above.
        lambdas: of each tensor; below 0 for one that is exempt.
    """

    coupled: bool
    shrink: float
    lambdas: tuple[float, ...]
