"""SGD with momentum, the rate outside the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.arguments import require_share
from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay
from trainers.step_forms import MomentumForm

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class CorrectedMomentumSGD:
    """SGD with momentum; the rate is outside the buffer.

        v <- m v - g
        w <- w + eta v                                    # eq. (9)

    The whole buffer is scaled by the newest rate, as in PyTorch's SGD; the paper calls this momentum correction.

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

    Source: Goyal et al. 2017, arXiv 1706.02677, eq. (9), with v of the opposite sign (numbered so in Chainer's
        CorrectedMomentumSGD, which this is).
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    num_state_values: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_share("CorrectedMomentumSGD.momentum", self.momentum)
        require_weight_decay(self)

    def step_form(self, hyperparam: Any, t: int) -> MomentumForm:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumForm(momentum=self.momentum, within=-1.0, beside=-hyperparam.lr)

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.CorrectedMomentumSGD(lr=RATE_NOT_SET, momentum=self.momentum)
