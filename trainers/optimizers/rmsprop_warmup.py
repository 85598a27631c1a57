"""SGD with momentum that starts as RMSprop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from lr_schedules.units import Epochs, require_number
from recipes.arguments import require_share
from trainers.kernels.optimizer_steps import RmspropStep
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay


@dataclass(frozen=True, kw_only=True)
class RmspropWarmup:
    """SGD with momentum that starts as RMSprop and moves over to SGD around an epoch; both terms go into the buffer.

        m     <- mu2 m + (1 - mu2) g^2
        Delta <- mu1 Delta - (a + b / (sqrt(m) + eps)) g
        w     <- w + eta Delta

        a = exp(2 (e - c) / p) / 2                  e < c                 exponentially up to 1/2
        a = 1/2 + s (e - c) / p                     c <= e < c + p / 2    linearly
        a = 1                                       from there on: momentum SGD, the rate outside the buffer
        b = (1 - a) rmsprop_learning_rate / eta     so that eta b is the RMSprop rate, whatever eta is

    `transition: continuous` has s = 1: a and its slope are continuous at c, and a reaches 1 at c + p / 2.
    `transition: printed` has s = 2, as the formula is transcribed: a would pass 1 at c + p / 4 and make b negative; it
    is limited to 1, so the RMSprop term ends a quarter of the period earlier.

    Notation: w weights, g gradient (with the decay), eta the rate of this update, e the epochs at its start (a
    fraction), c `beta_center`, p `beta_period`; m and Delta start at 0, without bias correction.

    Args:
        mu1: the momentum, in [0, 1).
        mu2: decay factor of the mean of the squares, in [0, 1).
        eps: added to the root, above 0.
        rmsprop_learning_rate: rate of the RMSprop term, at least 0.
        beta_center: epoch at which both terms have weight 1/2.
        beta_period: above 0; the transition's length.
        transition: `continuous` or `printed`.
        weight_decay: lambda, at least 0; added to the gradient as lambda * w, before its square is taken.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `mu1` or `mu2` is outside [0, 1); `eps` or `beta_period` is not above 0; `rmsprop_learning_rate` or
            `weight_decay` is negative; `beta_center` is no number; `transition` is another word; `no_decay` holds
            another word or one twice.

    Source: Akiba, Suzuki, Fukuda 2017, arXiv 1711.04325, the update rule as a third party transcribes it; the defaults
        and b are those of three Chainer implementations. The paper itself not checked: it may print either s.
    Differs: those implementations count whole epochs; here e is a fraction that grows with every update.
    """

    mu1: float = 0.9
    mu2: float = 0.99
    eps: float = 1e-8
    rmsprop_learning_rate: float = 3e-4
    beta_center: Epochs = 10.0
    beta_period: Epochs = 5.0
    transition: Literal["continuous", "printed"] = "continuous"
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("m", "delta")
    elementwise: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("RmspropWarmup.mu1", self.mu1)
        require_share("RmspropWarmup.mu2", self.mu2)
        require_number("RmspropWarmup.eps", self.eps, above=0)
        require_number("RmspropWarmup.rmsprop_learning_rate", self.rmsprop_learning_rate, at_least=0)
        require_number("RmspropWarmup.beta_center", self.beta_center)
        require_number("RmspropWarmup.beta_period", self.beta_period, above=0)
        if self.transition not in ("continuous", "printed"):
            raise ValueError(f"RmspropWarmup.transition must be continuous or printed, got {self.transition!r}")
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> RmspropStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        sgd, rmsprop = self.weights(hyperparam.base_rate, hyperparam.epoch)
        return RmspropStep(mu1=self.mu1, mu2=self.mu2, eps=self.eps, sgd=sgd, rmsprop=rmsprop, rate=hyperparam.lr)

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above.

        Raises:
            ValueError: the rate is 0 while the RMSprop term still has a weight.
        """
        rate, m, delta = hyperparam.lr, state["m"], state["delta"]
        sgd, rmsprop = self.weights(hyperparam.base_rate, hyperparam.epoch)  # so that a rate factor scales both terms
        m *= self.mu2
        m += (1.0 - self.mu2) * (g * g)
        delta *= self.mu1
        delta -= (sgd + rmsprop / (xp.sqrt(m) + self.eps)) * g
        w += rate * delta

    build = build_from_formula

    @property
    def slow_until(self) -> float:
        """The epoch at which the transition is over."""
        return self.beta_center + self.beta_period / 2

    def sgd_weight(self, epoch: float) -> float:
        """a, the weight of the SGD term, in (0, 1]; 1 minus it is the RMSprop term's.

        >>> RmspropWarmup().sgd_weight(10.5), RmspropWarmup(transition="printed").sgd_weight(10.5)
        (0.6, 0.7)
        """
        periods = (epoch - self.beta_center) / self.beta_period
        if periods < 0:
            return 0.5 * math.exp(2 * periods)
        slope = 2 if self.transition == "printed" else 1
        return min(0.5 + slope * periods, 1.0)

    def divides_by_rate(self, epoch: float) -> bool:
        """Whether an update at this epoch needs a rate above 0."""
        return self.sgd_weight(epoch) < 1

    def weights(self, rate: float, epoch: float) -> tuple[float, float]:
        """a and b at this rate and epoch.

        Raises:
            ValueError: the rate is 0 while the RMSprop term still has a weight.
        """
        sgd = self.sgd_weight(epoch)
        if rate == 0 and self.divides_by_rate(epoch):
            raise ValueError(
                f"RmspropWarmup divides its RMSprop rate by the learning rate, which is 0 at epoch {epoch:g}; "
                "it is a warmup of its own, so give the recipe a rate above 0 until it is over"
            )
        return sgd, (1.0 - sgd) * self.rmsprop_learning_rate / rate if sgd < 1 else 0.0
