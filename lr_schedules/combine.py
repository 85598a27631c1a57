"""Schedules made of schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lr_schedules.units import Schedule
from lr_schedules.warmups import ConstantWarmup, GradualWarmup

__all__ = ["Joined", "Product"]

JOINS = ("before", "multiply", "over")


@dataclass(frozen=True, kw_only=True)
class Product:
    """The product of several schedules on one clock.

        f(t) = factors[0](t) * factors[1](t) * ...

    Args:
        factors: schedules, at least one.
    Raises:
        ValueError: `factors` is empty, not a tuple, or holds something that cannot be called.

    >>> from lr_schedules import Constant, Exponential
    >>> Product(factors=(Constant(factor=0.5), Exponential(ratio=0.5)))(2.0)
    0.125

    Source: the formula itself.
    """

    factors: tuple[Schedule, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.factors, tuple) or not self.factors or not all(map(callable, self.factors)):
            raise ValueError(f"Product.factors must be a tuple of at least one schedule, got {self.factors!r}")

    def __call__(self, epoch: float) -> float:
        return math.prod(factor(epoch) for factor in self.factors)


@dataclass(frozen=True, kw_only=True)
class Joined:
    """A warmup and the schedule it leads into, joined in one of the three published ways.

        multiply: f(t) = w(t) * s(t)                          the decay's clock runs from 0
        before:   f(t) = w(t) * s(max(0, t - w.epochs))       the decay's clock starts when the warmup ends
        over:     f(t) = w(t) for t < w.epochs, else s(t)     the decay's clock runs from 0, its beginning is not used

    Args:
        warmup: w, which reaches 1 at `w.epochs`.
        schedule: s.
        joins: `multiply`, `before` or `over`. The three agree where the schedule is 1 and flat until the warmup ends.
    Raises:
        ValueError: `warmup` has no `epochs` or one of the two cannot be called; `joins` is another word.

    >>> from lr_schedules import GradualWarmup, Polynomial
    >>> joined = {"warmup": GradualWarmup(epochs=10.0), "schedule": Polynomial(epochs=20.0)}
    >>> [Joined(**joined, joins=joins)(5.0) for joins in ("multiply", "before", "over")]
    [0.375, 0.5, 0.5]
    >>> [Joined(**joined, joins=joins)(10.0) for joins in ("multiply", "before", "over")]
    [0.5, 1.0, 0.5]

    Source: multiply: Goyal et al. 2017, arXiv 1706.02677; before: MLPerf's reference and torchvision;
        over: the code of You et al. 2019, arXiv 1904.00962.
    Differs: torchvision moves its rate once an epoch; here that is the recipe's `every: 1ep`.
    """

    warmup: GradualWarmup | ConstantWarmup
    schedule: Schedule
    joins: Literal["multiply", "before", "over"]

    def __post_init__(self) -> None:
        if not (callable(self.warmup) and hasattr(self.warmup, "epochs") and callable(self.schedule)):
            raise ValueError(f"Joined needs a warmup and a schedule, got {self.warmup!r} and {self.schedule!r}")
        if self.joins not in JOINS:
            raise ValueError(f"Joined.joins must be one of {', '.join(JOINS)}, got {self.joins!r}")

    def __call__(self, epoch: float) -> float:
        if self.joins == "multiply":
            return self.warmup(epoch) * self.schedule(epoch)
        if self.joins == "before":
            return self.warmup(epoch) * self.schedule(max(0.0, epoch - self.warmup.epochs))
        return self.warmup(epoch) if epoch < self.warmup.epochs else self.schedule(epoch)
