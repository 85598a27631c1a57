"""LARS: a trust ratio for every tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lr_schedules.units import require_number
from recipes.arguments import require_flag, require_share
from trainers.kernels.optimizer_steps import MomentumStep, Trust
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay


@dataclass(frozen=True, kw_only=True)
class Lars:
    """LARS: SGD with momentum in which every tensor's rate follows the norm of its weights over that of its gradient.

        ratio = trust_coefficient ||w|| / (||g|| + lambda ||w|| + eps)       decay_in_trust: true
        ratio = trust_coefficient ||w|| / (||g|| + eps)                      decay_in_trust: false
        ratio = min(ratio / eta, 1)                                          clip: true, after one of the above
        d     = ratio (g + lambda w)

        v <- m v + eta d;  w <- w - v                                        rate: inside
        v <- m v + d;      w <- w - eta v                                    rate: outside
        w <- w - (m v + eta d),  w <- w - eta (m v + d)                      nesterov: true; v is the new one

    The ratio is 1 where ||w|| or ||g|| is 0, clipped or not. Parameters that `no_decay` names have no decay and the
    ratio 1: plain momentum at the rate eta, which stands in the same place.

    Notation: w weights of one tensor, g its mean gradient over the global batch (loss scale divided out, no decay), eta
    the rate of this update, lambda `weight_decay`, m `momentum`, v starts at 0. Norms are Euclidean, summed in float64.

    Args:
        momentum: m, in [0, 1).
        trust_coefficient: above 0; the paper's eta.
        decay_in_trust: whether the ratio's denominator includes the decay.
        rate: `inside` or `outside` of the buffer; the two differ while the rate changes.
        nesterov: whether to use Nesterov momentum.
        eps: added to the denominator, at least 0.
        clip: whether a tensor's rate is limited to eta; if so, its ratio is divided by eta before.
        weight_decay: lambda, at least 0; coupled, there is no other form here.
        no_decay: parameters without decay and trust ratio: `norm` (scales and shifts of normalisation), `bias`, both or
            neither.
    Raises:
        ValueError: `momentum` is outside [0, 1); `trust_coefficient` is not above 0; `eps` or `weight_decay` is
            negative; `decay_in_trust`, `nesterov` or `clip` is no flag; `rate` is another word; `no_decay` holds
            another word or one twice.

    Source: You, Gitman, Ginsburg 2017, arXiv 1708.03888: ratio with the decay, rate inside, no clipping; parameters of
        normalisation and biases skipped. MLPerf's rules: eps 0, trust_coefficient 0.001. Clipping as in NVIDIA's LARC.
    Differs: the authors' nvcaffe has the decay's term in the ratio commented out (`decay_in_trust: false`); timm's Lars
        has the rate outside, and where it clips it divides the ratio 1 of an empty norm by eta too.
    """

    momentum: float = 0.9
    trust_coefficient: float = 0.001
    decay_in_trust: bool = True
    rate: Literal["inside", "outside"] = "inside"
    nesterov: bool = False
    eps: float = 0.0
    clip: bool = False
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ("norm", "bias")

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("v",)
    elementwise: ClassVar[bool] = False
    layerwise: ClassVar[bool] = True
    decays_itself: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("Lars.momentum", self.momentum)
        require_number("Lars.trust_coefficient", self.trust_coefficient, above=0)
        require_flag("Lars.decay_in_trust", self.decay_in_trust)
        if self.rate not in ("inside", "outside"):
            raise ValueError(f"Lars.rate must be inside or outside, got {self.rate!r}")
        require_flag("Lars.nesterov", self.nesterov)
        require_number("Lars.eps", self.eps, at_least=0)
        require_flag("Lars.clip", self.clip)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        rate, trust = hyperparam.lr, None
        gradient_scale, step_scale = (rate, 1.0) if self.rate == "inside" else (1.0, rate)
        if rate or not self.clip:
            trust = Trust(
                coefficient=self.trust_coefficient,
                decay_in_trust=self.decay_in_trust,
                eps=self.eps,
                clip_rate=rate if self.clip else 0.0,
            )
        return MomentumStep(
            momentum=self.momentum,
            gradient_scale=gradient_scale,
            step_scale=step_scale,
            nesterov=self.nesterov,
            trust=trust,
        )

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above."""
        rate, v = hyperparam.lr, state["v"]
        gradient_scale, step_scale = (rate, 1.0) if self.rate == "inside" else (1.0, rate)
        if not hyperparam.exempt:
            g = self._trust_ratio(xp, w, g, rate).astype(w.dtype) * (g + self.weight_decay * w)
        d = gradient_scale * g
        v *= self.momentum
        v += d
        w -= step_scale * (self.momentum * v + d if self.nesterov else v)

    def _trust_ratio(self, xp: Any, w: Any, g: Any, rate: float) -> Any:
        """A float64 array of shape () on the device: reading it here would wait for every tensor."""
        weights, gradient = norm(xp, w), norm(xp, g)
        against = gradient + (self.weight_decay * weights if self.decay_in_trust else 0.0) + self.eps
        ratio = self.trust_coefficient * weights / xp.where(against == 0, 1.0, against)
        if self.clip:
            ratio = xp.minimum(ratio / rate, 1.0) if rate else xp.ones_like(ratio)
        return one_where_a_norm_is_0(xp, ratio, weights, gradient)

    build = build_from_formula


def norm(xp: Any, array: Any) -> Any:
    """Euclidean norm as a float64 array of shape (), on the device of `array`; `xp` is its array module.

    Squares are taken in float64 too: in float32 those of numbers below 1e-23 are 0.
    """
    values = array.astype(xp.float64)
    return xp.asarray(xp.sqrt((values * values).sum()))


def one_where_a_norm_is_0(xp: Any, ratio: Any, *norms: Any) -> Any:
    """`ratio`, or 1 where one of the norms is 0; a norm of NaN leaves `ratio` as it is."""
    for each in norms:
        ratio = xp.where(each == 0, 1.0, ratio)
    return ratio
