"""The rate that a scaled recipe promises, and the check that its curve keeps it."""

from __future__ import annotations

import math
from dataclasses import replace

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate_at, learning_rate_at
from recipes.schema import Recipe

_POSITIONS = 40
_TOLERANCE = 1e-4  # values in the file have six digits


def promised_rate(before: Recipe, after: Recipe, epoch: float, *, ratio: float) -> tuple[float, float]:
    """The lowest and the highest rate that `after` may have at an epoch; after its warmup they are one.

        ratio * reference * rule(B / per) * schedule(t)        of `before`, its warmup left out

    Within its warmup a rate rises to that: it is between 0 and the promise without the schedule.

    Args:
        ratio: of the full rates, by the rule for this optimizer.
    """
    formula, warmup = before.learning_rate, after.learning_rate.warmup
    # LARS has published epochs for each batch, also of its schedule.
    schedule = formula.schedule if before.epochs == after.epochs else after.learning_rate.schedule
    plain = replace(before, learning_rate=replace(formula, every="update", warmup=None))
    size = replace(plain, batch=replace(after.batch, global_=before.batch.global_))
    promised = ratio * full_rate_at(size, epoch)
    ends = 0.0 if warmup is None else warmup.shape.epochs
    if epoch < ends:
        return 0.0, promised * max(1.0, math.sqrt(after.batch.global_.sizes[-1] / after.batch.global_.sizes[0]))
    rate = promised * schedule(max(0.0, epoch - ends) if warmup is not None and warmup.joins == "before" else epoch)
    return rate, rate


def require_promise(before: Recipe, after: Recipe, *, ratio: float) -> None:
    """Compare the curve of a scaled recipe with its promise at 40 positions.

    Raises:
        InputRefused: it differs; says where, and by what.
    """
    for number in range(_POSITIONS):
        epoch = after.epochs * (number + 0.5) / _POSITIONS
        if after.learning_rate.every != "update":
            epoch = math.floor(epoch / after.learning_rate.every) * after.learning_rate.every
        low, high = promised_rate(before, after, epoch, ratio=ratio)
        rate, slack = learning_rate_at(after, epoch), _TOLERANCE * ratio * full_rate_at(before, epoch)
        if not low - slack <= rate <= high + slack:
            raise InputRefused(
                f"{before.name} at batch {after.batch.global_.sizes[0]:,}: at epoch {epoch:.4g} the derived rate is "
                f"{rate:.6g}, and {high:.6g} is promised; nothing was written: write this recipe by hand, and tell us"
            )
