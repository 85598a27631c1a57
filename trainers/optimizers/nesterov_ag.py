"""Chainer's Nesterov momentum, the rate inside the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from trainers.arguments import require_share
from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class NesterovAG:
    """Nesterov momentum as Chainer computes it; the rate is inside the buffer.

        v <- m v - eta g
        w <- w + m^2 v - (1 + m) eta g                    # v is the new one

    Notation: w weights, g gradient (with the coupled decay), eta the rate of this update, v starts at 0.

    Args:
        momentum: m, in [0, 1).
        weight_decay: lambda, at least 0.
        decay: `coupled`: lambda * w is part of the gradient; `times_rate`: w <- (1 - eta lambda) w before the step;
            `times_relative_rate`: the same with eta over the full rate, that without warmup and schedule.
        no_decay: what is not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `momentum` is outside [0, 1); `weight_decay` is negative; `decay` is another word;
            `no_decay` holds another word or one twice.

    Source: chainer.optimizers.NesterovAG, chainer 7.8.1.
    Differs: eq. (7) of the paper that Chainer names (Bengio et al. 2012, arXiv 1212.0901) has the old v in the second
        line (chainer issue 4274, closed without a change; the paper itself not checked). The new one gives the newest
        gradient the weight 1 + m + m^2 instead of 1 + m and the older ones m^3, m^4, ... instead of m^2, m^3, ...; the
        sum, 1 / (1 - m), is the same. Where a publication says Nesterov momentum, use `CorrectedNesterovAG`.
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

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.NesterovAG(lr=RATE_NOT_SET, momentum=self.momentum)
