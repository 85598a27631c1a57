"""An optimizer's step as numbers: the arguments of kernels that update all parameters in one launch.

A component of `trainers.optimizers` gives one of these forms from its `fused_step(hyperparam, t)`. Each names the
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
class MomentumStep:
    """A step with momentum, one rate for all tensors; the direction in its trust ratio is g without the decay.

        v <- momentum v + gradient_scale ratio g
        w <- w - step_scale v, or with `nesterov` w <- w - step_scale (momentum v + gradient_scale ratio g)

    Args:
        states: empty for a step that keeps no v.
    """

    momentum: float
    gradient_scale: float
    step_scale: float
    nesterov: bool = False
    trust: Trust | None = None
    states: tuple[str, ...] = ("v",)

    kernels: ClassVar[str] = "momentum"

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.momentum, self.gradient_scale, self.step_scale, self.nesterov


@dataclass(frozen=True, kw_only=True)
class AdamStep:
    """A step of Adam or LAMB.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        r = m m_scale / (sqrt(v v_scale) + eps) + decay_in_direction lambda w
        w <- w - rate ratio r

    Args:
        decay_in_direction: whether the coupled decay is part of r, the direction, instead of g.
    """

    beta1: float
    beta2: float
    eps: float
    rate: float
    m_scale: float = 1.0
    v_scale: float = 1.0
    decay_in_direction: bool = False
    trust: Trust | None = None

    kernels: ClassVar[str] = "adam"
    states: ClassVar[tuple[str, ...]] = ("m", "v")

    @property
    def numbers(self) -> tuple[float, ...]:
        """The arguments of the kernels."""
        return self.beta1, self.beta2, self.eps, self.rate, self.m_scale, self.v_scale, self.decay_in_direction


@dataclass(frozen=True, kw_only=True)
class RmspropStep:
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


OptimizerStep = MomentumStep | AdamStep | RmspropStep


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
