"""SGD, and SGD with momentum or Nesterov momentum: the rate inside the buffer or, `Corrected`, outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from recipes.arguments import require_share
from trainers.kernels.optimizer_steps import MomentumStep
from trainers.optimizers.hyperparameters import build_from_formula
from trainers.optimizers.weight_decay import RATE_NOT_SET, Decay, NoDecay, require_weight_decay

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
    rate_rule: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        require_share("CorrectedMomentumSGD.momentum", self.momentum)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumStep(momentum=self.momentum, gradient_scale=-1.0, step_scale=-hyperparam.lr)

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.CorrectedMomentumSGD(lr=RATE_NOT_SET, momentum=self.momentum)


@dataclass(frozen=True, kw_only=True)
class CorrectedNesterovAG:
    """Nesterov momentum; the rate is outside the buffer.

        v <- m v + g
        w <- w - eta (g + m v)                            # v is the new one

    Notation: w weights, g gradient (with the coupled decay), eta the rate of this update, v starts at 0.

    A change of eta scales the whole buffer at once, as in `CorrectedMomentumSGD`. At a constant rate this is the update
    of Bengio et al., with v in units of -eta.

    Args:
        momentum: m, in [0, 1).
        weight_decay: lambda, at least 0.
        decay: `coupled`: lambda * w is part of the gradient; `times_rate`: w <- (1 - eta lambda) w before the step;
            `times_relative_rate`: the same with eta / the full rate (without warmup and schedule) for eta.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `momentum` is outside [0, 1); `weight_decay` is negative; `decay` is another word;
            `no_decay` holds another word or one twice.

    Source: PyTorch's documentation of torch.optim.SGD with `nesterov=True, dampening=0` (fb.resnet.torch sets both in
        Torch's SGD). Bengio et al. 2012, arXiv 1212.0901, eq. (7), as quoted in chainer issue 4274; the paper itself
        not checked. Chainer has no such optimizer.
    """

    momentum: float = 0.9
    weight_decay: float = 0.0
    decay: Decay = "coupled"
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    states: ClassVar[tuple[str, ...]] = ("v",)
    elementwise: ClassVar[bool] = True
    rate_rule: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        require_share("CorrectedNesterovAG.momentum", self.momentum)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumStep(momentum=self.momentum, gradient_scale=1.0, step_scale=hyperparam.lr, nesterov=True)

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above."""
        v = state["v"]
        v *= self.momentum
        v += g
        w -= hyperparam.lr * (g + self.momentum * v)

    build = build_from_formula


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
    rate_rule: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        require_share("MomentumSGD.momentum", self.momentum)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumStep(momentum=self.momentum, gradient_scale=-hyperparam.lr, step_scale=-1.0)

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.MomentumSGD(lr=RATE_NOT_SET, momentum=self.momentum)


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
    states: ClassVar[tuple[str, ...]] = ("v",)
    elementwise: ClassVar[bool] = True
    rate_rule: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        require_share("NesterovAG.momentum", self.momentum)
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumStep(momentum=self.momentum, gradient_scale=hyperparam.lr, step_scale=1.0, nesterov=True)

    def update(self, w: Any, g: Any, state: Any, hyperparam: Any, *, t: int, xp: Any) -> None:
        """One update of a parameter in place: weights w, gradient g and the state; see the formula above."""
        v, step = state["v"], hyperparam.lr * g
        v *= self.momentum
        v += step
        step += self.momentum * v
        w -= step

    build = build_from_formula


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
    rate_rule: ClassVar[str] = "linear"

    def __post_init__(self) -> None:
        require_weight_decay(self)

    def fused_step(self, hyperparam: Any, t: int) -> MomentumStep:
        """The step of the t-th update at these hyperparameters, without the decay."""
        return MomentumStep(momentum=0.0, gradient_scale=1.0, step_scale=hyperparam.lr, states=())

    def build(self) -> chainer.Optimizer:
        """Chainer's optimizer; the updater sets its `lr`."""
        import chainer

        return chainer.optimizers.SGD(lr=RATE_NOT_SET)
