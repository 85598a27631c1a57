"""Nesterov momentum, the rate inside the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.arguments import require_share
from trainers.optimizers.weight_decay import Decay, NoDecay, require_weight_decay
from trainers.step_forms import MomentumForm

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class NesterovAG:
    """Nesterov momentum, a gradient step looked ahead; the rate is inside the buffer.

        v <- m v + eta g
        w <- w - (m v + eta g)                            # v is the new one

    Notation: w weights, g gradient (with the coupled decay), eta the rate of this update, v starts at 0.

    Args:
        momentum: m, in [0, 1).
        weight_decay: lambda, at least 0.
        decay: `coupled`: lambda * w is part of the gradient; `times_rate`: w <- (1 - eta lambda) w before the step;
            `times_relative_rate`: the same with eta / the full rate (without warmup and schedule) for eta.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `momentum` is outside [0, 1); `weight_decay` is negative; `decay` is another word;
            `no_decay` holds another word or one twice.

    Source: Bengio et al. 2012, arXiv 1212.0901, eq. (7), with v in units of -1, as quoted in chainer issue 4274; the
        paper itself not checked.
    Differs: Chainer's own NesterovAG puts the new v where eq. (7) has the old one (that issue, closed without a
        change), so that the newest gradient weighs 1 + m + m^2 instead of 1 + m; no publication at hand does.
        `CorrectedNesterovAG` has the rate outside, as PyTorch has; at a constant rate both are equal.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    num_state_values: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_share("NesterovAG.momentum", self.momentum)
        require_weight_decay(self)

    def step_form(self, hyperparam: Any, t: int) -> MomentumForm:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumForm(momentum=self.momentum, within=hyperparam.lr, beside=1.0, nesterov=True)

    def build(self) -> chainer.Optimizer:
        """The optimizer; the updater sets its `lr`."""
        from trainers.optimizers.nesterov_rule import NesterovInsideRule
        from trainers.optimizers.rule_method import RuleMethod

        return RuleMethod(NesterovInsideRule, self)
