"""When two runs may be compared before their end: after their slow starts, and with the same shape of the rate."""

from __future__ import annotations

import math
import string
from dataclasses import replace

from recipes.planning.rates import full_rate_at
from recipes.schema import Recipe

POINTS = 20
_LETTERS = string.ascii_lowercase + string.ascii_uppercase
_OFFSET = 0.4142  # keeps the points away from boundaries of schedules, and levels away from a rounding threshold


def slow_until(recipe: Recipe) -> float:
    """The epoch at which a run's slow start ends; before, it looks worse than it is.

    The latest end of: the warmup, the schedule's own rise or slow start, the optimizer's. Schedules and optimizers
    that have one say so by a property `slow_until`.
    """
    formula = recipe.learning_rate
    warmup = 0.0 if formula.warmup is None else formula.warmup.shape.epochs
    delay = warmup if formula.warmup is not None and formula.warmup.joins == "before" else 0.0
    of_schedule = delay + getattr(formula.schedule, "slow_until", 0.0)
    return max(warmup, of_schedule, getattr(recipe.optimizer, "slow_until", 0.0))


def rate_shape(recipe: Recipe) -> str:
    """The shape of the rate over the run: a letter for each of 20 points, from a at 0 to Z at the peak.

        r(t) = reference * rule(B(t) / per) * schedule(t)        the warmup left out

    Two runs that differ only in the size of the rate, in length (one compressed) or in warmup have the same shape.
    With `joins: before`, however, the warmup shifts the schedule, and changes the shape. `every` is ignored.
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
