"""When two runs may be compared on their way: past what is slow on purpose, and with the same form of the rate."""

from __future__ import annotations

import math
import string
from dataclasses import replace

from recipes.rates import full_rate_at
from recipes.schema import Recipe

__all__ = ["POINTS", "rate_shape", "slow_until"]

POINTS = 20
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_OFFSET = 0.4142  # no boundary of a schedule lies there, and no product of plain numbers is rounded there


def slow_until(recipe: Recipe) -> float:
    """The epoch until which a run is slow on purpose, and looks worse than it is.

    The last of: the end of the warmup; of the schedule's own rise or slow start; of the optimizer's. Schedules and
    optimizers that have one say so by a property `slow_until`.
    """
    formula = recipe.learning_rate
    warmup = 0.0 if formula.warmup is None else formula.warmup.shape.epochs
    delay = warmup if formula.warmup is not None and formula.warmup.joins == "before" else 0.0
    of_schedule = delay + getattr(formula.schedule, "slow_until", 0.0)
    return max(warmup, of_schedule, getattr(recipe.optimizer, "slow_until", 0.0))


def rate_shape(recipe: Recipe) -> str:
    """How the rate moves over the fraction of the run: a letter for each of 20 points, a to Z from 0 to its peak.

        r(t) = reference * rule(B(t) / per) * schedule(t)        the warmup left out

    Equal for a run and the same one compressed, whatever its rate, its length and its warmup are; only with
    `joins: before` the warmup moves the schedule, and makes another shape. `every` is left out.
    """
    formula = recipe.learning_rate
    delay = 0.0
    if formula.warmup is not None and formula.warmup.joins == "before":
        delay = formula.warmup.shape.epochs
    plain = replace(recipe, learning_rate=replace(formula, every="update", warmup=None))
    times = [(point + _OFFSET) / POINTS * recipe.epochs for point in range(POINTS)]
    rates = [full_rate_at(plain, time) * formula.schedule(max(0.0, time - delay)) for time in times]
    peak = max(rates) or 1.0
    top = len(_LETTERS) - 1
    return "".join(_LETTERS[min(top, math.floor(top * rate / peak + _OFFSET))] for rate in rates)
