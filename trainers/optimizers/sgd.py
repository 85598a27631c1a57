"""SGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay
from trainers.step_forms import MomentumForm

if TYPE_CHECKING:
    import chainer


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Stochastic gradient descent without momentum.

        w <- w - eta g

    Notation: w weights, g gradient (with the coupled decay), eta the rate of this update.

    Args:
        weight_decay: lambda, at least 0.
        decay: `coupled`: lambda * w is part of the gradient; `times_rate`: w <- (1 - eta lambda) w before the step;
            `times_relative_rate`: the same with eta / the full rate (without warmup and schedule) for eta.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `weight_decay` is negative; `decay` is another word; `no_decay` holds another word or
            one twice.

    Source: chainer.optimizers.SGD.
    """

    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    num_state_values: ClassVar[int] = 0

    def __post_init__(self) -> None:
        require_weight_decay(self)

    def step_form(self, hyperparam: Any, t: int) -> MomentumForm:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumForm(momentum=0.0, within=1.0, beside=hyperparam.lr, states=())

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.SGD(lr=RATE_NOT_SET)
