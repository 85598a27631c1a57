"""LAMB: Adam with a trust ratio for every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from lr_schedules.units import require_number
from recipes.arguments import require_flag, require_share
from trainers.kernels.optimizer_steps import AdamStep, Trust
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.lars import norm, one_where_a_norm_is_0
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay


@dataclass(frozen=True, kw_only=True)
class Lamb:
    """LAMB: Adam's direction with the decay, scaled in every tensor to the norm of its weights, times the rate.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        r = m' / (sqrt(v') + eps) + lambda w
        w <- w - eta phi(||w||) / ||r|| r

        m' = m / (1 - beta1^t), v' = v / (1 - beta2^t)        bias_correction: true
        m' = m,                 v' = v                        bias_correction: false
        phi(x) = x                                            trust_bounds: null
        phi(x) = min(max(x, low), high)                       trust_bounds: [low, high]

    The ratio phi(||w||) / ||r|| is 1 where ||w|| or ||r|| is 0, whatever the bounds. Parameters that `no_decay` names
    have no decay and the ratio 1: plain Adam. The decay lambda w is part of r: a larger lambda leaves the step's length
    at eta phi(||w||), and turns it away from the gradient.

    Notation: w weights of one tensor, g its mean gradient over the global batch (loss scale divided out, no decay), eta
    the rate of this update, t its number from 1, lambda `weight_decay`; m and v start at 0. Norms are Euclidean, summed
    in float64.

    Args:
        beta1: decay factor of the mean of the gradients, in [0, 1).
        beta2: decay factor of the mean of their squares, in [0, 1).
        eps: added to the root, above 0.
        bias_correction: whether m and v are corrected for their start at 0.
        trust_bounds: lowest and highest value of phi, numbers with 0 <= low <= high and high above 0; null for none.
        weight_decay: lambda, at least 0.
        no_decay: parameters without decay and trust ratio: `norm` (scales and shifts of normalisation), `bias`, both or
            neither.
    Raises:
        ValueError: `beta1` or `beta2` is outside [0, 1); `eps` is not above 0; `bias_correction` is no flag;
            `trust_bounds` is no such tuple; `weight_decay` is negative; `no_decay` holds another word or one twice.

    Source: You et al. 2019, arXiv 1904.00962, the algorithm called LAMB, phi the identity or clipped (the paper itself
        not checked). beta1, beta2, eps and that parameters of normalisation are skipped: the author's code for
        ResNet-50, which has no bias correction.
    Differs: timm's Lamb first clips the gradient to a global norm of 1 (here `gradient: {clip_norm: 1}`), and by
        default gives a trust ratio only to parameters that decay.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-6
    bias_correction: bool = True
    trust_bounds: tuple[float, float] | None = None
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ("norm", "bias")

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("m", "v")
    elementwise: ClassVar[bool] = False
    rate_rule: ClassVar[str] = "sqrt"
    layerwise: ClassVar[bool] = True
    decays_itself: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("Lamb.beta1", self.beta1)
        require_share("Lamb.beta2", self.beta2)
        require_number("Lamb.eps", self.eps, above=0)
        require_flag("Lamb.bias_correction", self.bias_correction)
        if self.trust_bounds is not None:
            _require_bounds(self.trust_bounds)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> AdamStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        of_m, of_v = self.share_seen(t)
        return AdamStep(
            beta1=self.beta1,
            beta2=self.beta2,
            eps=self.eps,
            rate=hyperparam.lr,
            m_scale=1.0 / of_m,
            v_scale=1.0 / of_v,
            decay_in_direction=True,
            trust=Trust() if self.trust_bounds is None else Trust(bounds=self.trust_bounds),
        )

    def share_seen(self, t: int) -> tuple[float, float]:
        """What m and v are divided by in the t-th update: 1 - beta^t, or 1 without `bias_correction`."""
        return (1.0 - self.beta1**t, 1.0 - self.beta2**t) if self.bias_correction else (1.0, 1.0)

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above."""
        rate, m, v = hyperparam.lr, state["m"], state["v"]
        m *= self.beta1
        m += (1.0 - self.beta1) * g
        v *= self.beta2
        v += (1.0 - self.beta2) * (g * g)
        of_m, of_v = self.share_seen(t)
        r = (m / of_m) / (xp.sqrt(v / of_v) + self.eps)
        if hyperparam.exempt:
            w -= rate * r
        else:
            r += self.weight_decay * w
            w -= rate * (self._trust_ratio(xp, w, r).astype(w.dtype) * r)

    def _trust_ratio(self, xp: Any, w: Any, r: Any) -> Any:
        """A float64 array of shape () on the device: reading it here would wait for every tensor."""
        weights, direction = norm(xp, w), norm(xp, r)
        phi = weights if self.trust_bounds is None else xp.clip(weights, *self.trust_bounds)
        return one_where_a_norm_is_0(xp, phi / xp.where(direction == 0, 1.0, direction), weights, direction)

    build = build_from_formula


def _require_bounds(bounds: object) -> None:
    if not isinstance(bounds, tuple) or len(bounds) != 2:
        raise ValueError(f"Lamb.trust_bounds must be null or two numbers (low, high), got {bounds!r}")
    low, high = bounds
    require_number("Lamb.trust_bounds.0", low, at_least=0)
    require_number("Lamb.trust_bounds.1", high, above=0)
    if low > high:
        raise ValueError(f"Lamb.trust_bounds must be (low, high) with low <= high, got {bounds!r}")
