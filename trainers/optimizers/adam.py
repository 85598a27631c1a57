"""Adam."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from lr_schedules.units import require_number
from recipes.arguments import require_share
from trainers.kernels.optimizer_steps import AdamStep
from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; with `decay: times_rate` it is AdamW.

        m <- beta1 m + (1 - beta1) g
        v <- beta2 v + (1 - beta2) g^2
        w <- w - alpha sqrt(1 - beta2^t) / (1 - beta1^t) m / (sqrt(v) + eps)

    Notation: w weights, g gradient (with the coupled decay), alpha the rate of this update, t its number from 1, m and
    v start at 0.

    Args:
        beta1: decay factor of the mean of the gradients, in [0, 1).
        beta2: decay factor of the mean of their squares, in [0, 1).
        eps: above 0; added to sqrt(v) before the correction by 1 - beta2^t.
        weight_decay: lambda, at least 0.
        decay: `coupled`: lambda * w is part of the gradient; `times_rate`: w <- (1 - alpha lambda) w before the step;
            `times_relative_rate`: the same with alpha / the full rate (without warmup and schedule) for alpha.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `beta1` or `beta2` is outside [0, 1); `eps` is not above 0; `weight_decay` is negative; `decay`
            is another word; `no_decay` holds another word or one twice.

    Source: chainer.optimizers.Adam, after Kingma and Ba 2014, arXiv 1412.6980 (not checked).
    Differs: PyTorch corrects m and v first, w - alpha m' / (sqrt(v') + eps). Here the same eps has 1 / sqrt(1 -
        beta2^t) times the effect: 32 times in the first update, then less and less.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "alpha"
    num_state_values: ClassVar[int] = 2
    rate_rule: ClassVar[str] = "sqrt"

    def __post_init__(self) -> None:
        require_share("Adam.beta1", self.beta1)
        require_share("Adam.beta2", self.beta2)
        require_number("Adam.eps", self.eps, above=0)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> AdamStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        rate = hyperparam.alpha * math.sqrt(1.0 - self.beta2**t) / (1.0 - self.beta1**t)
        return AdamStep(beta1=self.beta1, beta2=self.beta2, eps=self.eps, rate=rate)

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `alpha`."""
        import chainer

        return chainer.optimizers.Adam(alpha=RATE_NOT_SET, beta1=self.beta1, beta2=self.beta2, eps=self.eps)
