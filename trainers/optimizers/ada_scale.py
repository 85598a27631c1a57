"""AdaScale SGD: the rate follows the batch as far as the gradient's noise lets it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from recipes.arguments import require_share
from trainers.optimizers.sgd import CorrectedMomentumSGD
from trainers.optimizers.weight_decay import NoDecay, require_weight_decay


@dataclass(frozen=True, kw_only=True)
class AdaScale:
    """SGD with momentum, its rate times a gain between 1 and B / per that the gradients themselves give.

        gain = (noise / per + signal) / (noise / B + signal)
        v <- m v + g
        w <- w - gain eta v

    `per` is `learning_rate.per`, the batch whose rate is known. If the gradients are all noise the gain is B / per,
    which is the linear rule; if they agree it is 1. noise and signal are moving averages, over updates, of the
    estimates by `noise_scale.Norms` from the gradients of single norm groups. So every norm group is a separate
    micro-batch here, whole on one worker, and the gain does not depend on the number of workers. The averages start at
    0 without a correction, because only their ratio counts.

    Give it the unscaled rate, `learning_rate: {rule: none}`: the gain does the scaling, warmup included.

    Notation: B global batch, w weights, g mean gradient (with the decay), eta the rate of the recipe, v starts at 0.

    Args:
        momentum: m, in [0, 1).
        smoothing: decay factor of the moving averages an update, in [0, 1); null for max(1 - B / per / 1000, 0).
        clock: the time at which the schedule is read: `samples` as with other optimizers, or `gain`: an update counts
            as gain * per samples, so that a run whose gain stays below B / per goes through its schedule more slowly
            and must be given more epochs.
        weight_decay: lambda, at least 0; added to the gradient as lambda * w, after the norms were taken.
        no_decay: parameters that are not decayed: `norm` (scales and shifts of normalisation), `bias`, both or neither.
    Raises:
        ValueError: `momentum` or `smoothing` is outside [0, 1); `clock` is another word; `weight_decay` is negative;
            `no_decay` holds another word or one twice.

    Source: Johnson et al. 2020, arXiv 2007.05105, the gain and its clock; momentum with the rate outside and the
        default of `smoothing`: fairscale's AdaScale, which cites the paper's supplement. Neither was at hand to be
        checked line by line.
    Differs: the paper compares the gradients of workers, here of norm groups; its runs end when the clock has reached
        the length of the reference run, here after `epochs`.
    """

    momentum: float = 0.9
    smoothing: float | None = None
    clock: Literal["samples", "gain"] = "samples"
    weight_decay: float = 0.0
    no_decay: tuple[NoDecay, ...] = ()

    rate_attribute: ClassVar[str] = "lr"
    num_state_values: ClassVar[int] = 1
    needs_group_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_share("AdaScale.momentum", self.momentum)
        if self.smoothing is not None:
            require_share("AdaScale.smoothing", self.smoothing)
        if self.clock not in ("samples", "gain"):
            raise ValueError(f"AdaScale.clock must be samples or gain, got {self.clock!r}")
        require_weight_decay(self)

    fused_step = CorrectedMomentumSGD.fused_step  # at a rate that the updater has multiplied by the gain
    build = CorrectedMomentumSGD.build

    def gain(self, *, per: int) -> Gain:
        """The gain of a run, before its first update.

        Args:
            per: the batch whose rate is known, samples.
        """
        return Gain(per=per, smoothing=self.smoothing, clock=self.clock)


class Gain:
    """Computes the gain of each update, and keeps the run's moving averages for it.

    Args:
        per: samples of the reference batch.
        smoothing, clock: see `AdaScale`.
    """

    def __init__(self, *, per: int, smoothing: float | None, clock: str) -> None:
        self._per, self._smoothing, self._clock = per, smoothing, clock
        self._noise = self._signal = self._samples = 0.0

    def observe(self, *, noise: float, signal: float, global_batch_size: int) -> float:
        """Add the estimates of one update to the averages; returns its gain, between 1 and B / per.

        Args:
            noise, signal: of `recipes.planning.noise_scale.Norms`; an average below 0 counts as 0.
            global_batch_size: B.
        """
        scale = global_batch_size / self._per
        keep = max(1.0 - scale / 1000.0, 0.0) if self._smoothing is None else self._smoothing
        self._noise = keep * self._noise + (1.0 - keep) * noise
        self._signal = keep * self._signal + (1.0 - keep) * signal
        known, signal = max(self._noise, 0.0), max(self._signal, 0.0)  # estimates may be below 0
        below = known / global_batch_size + signal
        gain = (known / self._per + signal) / below if below > 0 else 1.0
        self._samples += gain * self._per
        return gain

    def pass_reference(self) -> float:
        """Count an update of one norm group of `per` samples, which gives no estimates; returns its gain, 1."""
        self._samples += self._per
        return 1.0

    def epoch(self, epoch: float, *, num_train: int) -> float:
        """The epoch at which to read the schedule in the update that starts at `epoch`; call it before `observe`."""
        return self._samples / num_train if self._clock == "gain" else epoch

    @property
    def state(self) -> dict[str, float]:
        """The averages and the clock, for a checkpoint."""
        return {"noise": self._noise, "signal": self._signal, "samples": self._samples}

    @state.setter
    def state(self, kept: dict[str, float]) -> None:
        self._noise, self._signal, self._samples = kept["noise"], kept["signal"], kept["samples"]
