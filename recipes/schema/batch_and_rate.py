"""How a recipe's batch, learning rate, momentum and weight decay move over time, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

from lr_schedules import BatchRamp, Constant, Joined
from lr_schedules.units import Epochs, Schedule
from recipes.arguments import younger
from recipes.schema.vocabulary import Component

__all__ = ["Batch", "LearningRate", "RampStep", "RateFactor", "Schedules", "Warmup"]

_MOST_STEPS = 256  # of a ramp in a straight line


def require(condition: bool, message: str) -> None:
    """Raise unless a condition holds.

    Raises:
        ValueError: `condition` is false.
    """
    if not condition:
        raise ValueError(message)


def require_least(made: object, **least_of: int) -> None:
    """Raise ValueError unless each of these fields is null or at least its number."""
    for name, least in least_of.items():
        value = getattr(made, name)
        require(value is None or value >= least, f"{type(made).__name__}.{name} must be at least {least}, got {value}")


@dataclass(frozen=True, kw_only=True)
class RampStep:
    """A step of a ramp, or a straight line of steps.

    With `grow_to`, the size grows from `size` at `from` to `grow_to` at `until`, always by `by`, at equal distances in
    samples. The resolved recipe lists these steps.

    Args:
        from_: position from which on the size holds; 0 in the first step.
        size: samples of a batch or a norm group, or pixels of an image's side; at least 1.
        grow_to: the size that the line reaches, more than `size`; null for one step.
        until: position at which it reaches `grow_to`; updates are counted by the steps before this one, so the first
            step takes no `up`.
        by: by how much a step grows; it divides the whole growth into at most 256 steps.
    """

    from_: Epochs
    size: int
    grow_to: int | None = younger(None)
    until: Epochs | None = younger(None)
    by: int | None = younger(None)

    def __post_init__(self) -> None:
        require(self.size >= 1, f"RampStep.size must be at least 1, got {self.size}")
        line = {"grow_to": self.grow_to, "until": self.until, "by": self.by}
        missing = [key for key, value in line.items() if value is None]
        require(len(missing) in (0, 3), f"is a straight line without {' and '.join(missing)}")
        if not missing:
            growth = self.grow_to - self.size
            require(growth > 0, f"RampStep.grow_to must be more than size {self.size}, got {self.grow_to}")
            require(self.until > self.from_, f"RampStep.until must be after from {self.from_:g}, got {self.until:g}")
            fits = self.by >= 1 and growth % self.by == 0 and growth // self.by <= _MOST_STEPS
            require(fits, f"RampStep.by must divide {growth} into at most {_MOST_STEPS} steps, got {self.by}")

    @property
    def steps(self) -> list[tuple[float, int]]:
        """(position, size) of each step of the line; of one step that itself."""
        if self.grow_to is None:
            return [(self.from_, self.size)]
        number = (self.grow_to - self.size) // self.by
        distance = self.until - self.from_
        line = [(self.from_ + distance * step / number, self.size + self.by * step) for step in range(number)]
        return [*line, (self.until, self.grow_to)]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples an update averages.

    Args:
        global_: samples averaged into one update: a number, or a ramp such as
            `[{from: 0, size: 2048}, {from: 30, size: 4096}]`, or in a straight line
            `[{from: 0, size: 256, until: 10, grow_to: 4096, by: 256}]`.
        norm_span: samples whose batch-normalisation statistics are shared: a number or a ramp with the steps of
            `global`. Every batch must be a multiple of its span. Left out: the largest number up to 32 that divides
            every batch.
    """

    global_: BatchRamp
    norm_span: BatchRamp


@dataclass(frozen=True, kw_only=True)
class Warmup:
    """The first epochs of the learning rate.

        rate(t) = target * w(t)        w(0) = start, w(epochs) = 1
        target  = reference * rule(target_batch / per)

    Args:
        joins: `multiply`: times the schedule, whose clock runs from 0 (Goyal et al. 2017); `before`: the schedule's
            clock starts when the warmup ends (MLPerf, torchvision); `over`: the warmup replaces the beginning of a
            schedule that runs from 0 (the code of You et al. 2019).
        target_batch: the global batch whose rate the warmup reaches. Left out: the first batch; required if the rate
            moves with the batch during the warmup.
        shape: the factor w. Its `kind` and keys stand beside `joins`; its `start` is `reference` (the unscaled rate),
            0, `{rate: 0.1}` or `{factor: 0.03125}`.
    """

    joins: Literal["multiply", "before", "over"] = "multiply"
    target_batch: int
    shape: Annotated[object, Component("warmups")]

    def __post_init__(self) -> None:
        require(self.target_batch >= 1, f"Warmup.target_batch must be at least 1, got {self.target_batch}")


@dataclass(frozen=True, kw_only=True)
class RateFactor:
    """Parameters whose rate is another than that of the rest.

        rate of these parameters = factor * rate

    Args:
        parameters: `norm` (scales and shifts of normalisation), `bias`, or patterns of paths such as `/fc/*` (of
            ResNet50 `/fc6/*`), where `*` is any text. Each pattern must name a parameter of the model, and so must the
            list.
        factor: at least 0; 0 leaves them as they are, but for decay that does not follow the rate. It also freezes
            a batch normalisation whose scale and shift it names and `init` has loaded: training normalises by the
            running statistics that were loaded, which stay.
    """

    parameters: tuple[str, ...]
    factor: float

    def __post_init__(self) -> None:
        known = all(name in ("norm", "bias") or name.startswith("/") for name in self.parameters)
        require(
            bool(self.parameters) and known,
            f"RateFactor.parameters must be norm, bias or paths that begin with /, got {list(self.parameters)}",
        )
        require(self.factor >= 0, f"RateFactor.factor must be at least 0, got {self.factor}")


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """How the learning rate follows batch and time.

        rate(t) = reference * rule(B(t) / per) * schedule(t)

    Args:
        reference: the rate at a global batch of `per`, above 0.
        per: the global batch at which `reference` holds, at least 1.
        rule: how the rate follows the batch: `linear`, `sqrt`, `none`, or the power p of (B / per)^p, in [0, 2].
        scale_with: the batch that the rule uses in a batch ramp: the `current` or the `initial` one.
        every: how often warmup and schedule are read: `update`, or a duration such as `1ep`.
        warmup: warmup of the rate; null for none.
        schedule: the factor over time. A required `epochs` that is left out defaults to the rest of the run.
        factors: parameters with another rate, such as `[{parameters: [norm, bias], factor: 2}]`; the first entry that
            names a parameter holds for it.
    """

    reference: float
    per: int
    rule: Literal["linear", "sqrt", "none"] | float = "linear"
    scale_with: Literal["current", "initial"] = "current"
    every: Literal["update"] | Epochs = "update"
    warmup: Warmup | None = None
    schedule: Schedule = Constant()
    factors: tuple[RateFactor, ...] = younger(())

    def __post_init__(self) -> None:
        require(self.reference > 0, f"LearningRate.reference must be above 0, got {self.reference}")
        require(self.per >= 1, f"LearningRate.per must be at least 1, got {self.per}")
        in_range = isinstance(self.rule, str) or 0 <= self.rule <= 2
        require(in_range, f"LearningRate.rule must be linear, sqrt, none or a power from 0 to 2, got {self.rule}")
        require(self.every == "update" or self.every > 0, f"LearningRate.every must be above 0, got {self.every}")

    @cached_property
    def shape(self) -> Schedule:
        """The factor over time, with the warmup; a rate is asked for at thousands of positions."""
        if self.warmup is None:
            return self.schedule
        return Joined(warmup=self.warmup.shape, schedule=self.schedule, joins=self.warmup.joins)


@dataclass(frozen=True, kw_only=True)
class Schedules:
    """How momentum and weight decay of the optimizer move, as factors on its numbers.

        momentum(t) = optimizer.momentum * momentum(t)        weight_decay(t) = optimizer.weight_decay * weight_decay(t)

    They are read at the start of each update. A required `epochs` that is left out is the length of the run.

    Args:
        momentum: of `momentum`, `mu1` or `beta1`, whichever the optimizer has; null: it stays. 0.85 to 0.95 in five
            epochs is momentum 0.95 and `{kind: PiecewiseLinear, points: [[0, 0.8947368], [5, 1]]}`.
        weight_decay: of `weight_decay`; null: it stays.
    """

    momentum: Schedule | None = None
    weight_decay: Schedule | None = None
