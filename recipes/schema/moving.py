"""What changes over a run: batch size, learning rate, and steps of these and of the image size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from lr_schedules import BatchRamp, Constant
from lr_schedules.units import Epochs, Schedule
from recipes.schema.conditions import require
from recipes.vocabulary import Component

__all__ = ["Batch", "LearningRate", "RampStep", "Warmup"]


@dataclass(frozen=True, kw_only=True)
class RampStep:
    """A step of a ramp.

    Args:
        from_: position from which on the size holds; 0 in the first step.
        size: samples of a batch or a norm group, or pixels of an image's side; at least 1.
    """

    from_: Epochs
    size: int

    def __post_init__(self) -> None:
        require(self.size >= 1, f"RampStep.size must be at least 1, got {self.size}")


@dataclass(frozen=True, kw_only=True)
class Batch:
    """How many samples an update averages.

    Args:
        global_: samples averaged into one update: a number, or a ramp such as
            `[{from: 0, size: 2048}, {from: 30, size: 4096}]`.
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
        target_batch: the global batch whose rate the warmup reaches. Left out: the first batch; required if the batch
            changes during the warmup.
        shape: the factor w. Its `kind` and keys stand beside `joins`; its `start` is `reference` (the unscaled rate),
            0, `{rate: 0.1}` or `{factor: 0.03125}`.
    """

    joins: Literal["multiply", "before", "over"] = "multiply"
    target_batch: int
    shape: Annotated[object, Component("warmups")]

    def __post_init__(self) -> None:
        require(self.target_batch >= 1, f"Warmup.target_batch must be at least 1, got {self.target_batch}")


@dataclass(frozen=True, kw_only=True)
class LearningRate:
    """How the learning rate follows batch and time.

        rate(t) = reference * rule(B(t) / per) * schedule(t)

    Args:
        reference: the rate at a global batch of `per`, above 0.
        per: the global batch at which `reference` holds, at least 1.
        rule: how the rate follows the batch: `linear`, `sqrt` or `none`.
        scale_with: the batch that the rule uses in a batch ramp: the `current` or the `initial` one.
        every: how often the schedule is read: `update`, or a duration such as `1ep`.
        warmup: warmup of the rate; null for none.
        schedule: the factor over time. A required `epochs` that is left out defaults to the rest of the run.
    """

    reference: float
    per: int
    rule: Literal["linear", "sqrt", "none"] = "linear"
    scale_with: Literal["current", "initial"] = "current"
    every: Literal["update"] | Epochs = "update"
    warmup: Warmup | None = None
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        require(self.reference > 0, f"LearningRate.reference must be above 0, got {self.reference}")
        require(self.per >= 1, f"LearningRate.per must be at least 1, got {self.per}")
        require(self.every == "update" or self.every > 0, f"LearningRate.every must be above 0, got {self.every}")
