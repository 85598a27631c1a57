"""SGD with momentum, the rate inside the buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.arguments import require_share
from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay
from trainers.step_forms import MomentumForm

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class MomentumSGD:
    """SGD with momentum; the rate is inside the buffer.

        v <- m v - eta g
        w <- w + v                                        # eq. (10)

    When eta changes, the steps already in the buffer keep the rate they came with, so the first updates after a rise
    of the rate are shorter than with `CorrectedMomentumSGD`, after a fall longer. At a constant rate both are equal.

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

    Source: Goyal et al. 2017, arXiv 1706.02677, eq. (10), with v of the opposite sign (numbered so in Chainer's
        CorrectedMomentumSGD); chainer.optimizers.MomentumSGD.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    num_state_values: ClassVar[int] = 1

    def __post_init__(self) -> None:
        require_share("MomentumSGD.momentum", self.momentum)
        require_weight_decay(self)

    def step_form(self, hyperparam: Any, t: int) -> MomentumForm:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumForm(momentum=self.momentum, within=-hyperparam.lr, beside=-1.0)

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.MomentumSGD(lr=RATE_NOT_SET, momentum=self.momentum)
