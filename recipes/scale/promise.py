"""The rate that a scaled recipe promises, and the check that its curve keeps it."""

from __future__ import annotations

import math
from dataclasses import replace

from lr_schedules import Joined, Product
from lr_schedules.units import Schedule
from recipes.errors import InputRefused
from recipes.planning.rates import JUST_BEFORE, full_rate, full_rate_at, learning_rate_at
from recipes.schema import Recipe
from recipes.schema.positions import last_multiple

_POSITIONS = 40
_TOLERANCE = 1e-4  # values in the file have six digits


def aimed_batch(recipe: Recipe, ends: float) -> int:
    """The batch of `recipe` whose rate its warmup aims at, if it ended at `ends`.

    It is the one that the rate follows just before `ends`; but if the warmup has another `target_batch` than the one at
    its own end, that.
    """
    formula, ramp = recipe.learning_rate, recipe.batch.global_

    def batch_before(end: float) -> int:
        return ramp(end * JUST_BEFORE) if formula.scale_with == "current" else ramp.sizes[0]

    if formula.warmup is None or formula.warmup.target_batch == batch_before(formula.warmup.shape.epochs):
        return batch_before(ends)
    return formula.warmup.target_batch


def with_rest(recipe: Recipe, *, ends: float) -> Schedule:
    """The schedule of `recipe` if its warmup ended at `ends`.

    It, and each factor of a product, that begins where the warmup ends and ends with the run does so still.

    Raises:
        ValueError: one cannot be as short as that.
    """
    warmup = recipe.learning_rate.warmup
    if warmup is None or warmup.joins != "before":
        return recipe.learning_rate.schedule

    def moved(part: Schedule) -> Schedule:
        if isinstance(part, Product):
            return replace(part, factors=tuple(map(moved, part.factors)))
        length = getattr(part, "epochs", None)
        if length is None or not math.isclose(length, recipe.epochs - warmup.shape.epochs, rel_tol=1e-9):
            return part
        return replace(part, epochs=recipe.epochs - ends)

    return moved(recipe.learning_rate.schedule)


def promised_rate(before: Recipe, after: Recipe, epoch: float, *, ratio: float) -> float:
    """The rate that `after` must have at an epoch.

        ratio * reference * rule(B / per) * shape(t)        of `before`, with the warmup of `after`

    B is the batch of `before` that its rate follows, or within the warmup of `after` its `aimed_batch`. The shape is
    `with_rest`.

    Args:
        ratio: of the full rates, by the rule for this optimizer.
    """
    formula, warmup = before.learning_rate, after.learning_rate.warmup
    ends = 0.0 if warmup is None else warmup.shape.epochs
    is_published = before.epochs != after.epochs  # LARS has published epochs for each batch, also of its schedule
    schedule = after.learning_rate.schedule if is_published else with_rest(before, ends=ends)
    if epoch < ends:
        size = aimed_batch(before, ends)
        full = full_rate(formula.reference, size, rule=formula.rule, per=formula.per)
    else:
        full = full_rate_at(replace(before, learning_rate=replace(formula, every="update", warmup=None)), epoch)
    if warmup is not None:
        schedule = Joined(warmup=warmup.shape, schedule=schedule, joins=warmup.joins)
    return ratio * full * schedule(epoch)


def require_promise(before: Recipe, after: Recipe, *, ratio: float) -> None:
    """Compare the curve of a scaled recipe with its promise at 40 positions.

    Raises:
        InputRefused: it differs; says where, and by what.
    """
    for number in range(_POSITIONS):
        epoch = after.epochs * (number + 0.5) / _POSITIONS
        if after.learning_rate.every != "update":
            epoch = last_multiple(epoch, after.learning_rate.every)
        promised = promised_rate(before, after, epoch, ratio=ratio)
        rate, slack = learning_rate_at(after, epoch), _TOLERANCE * ratio * full_rate_at(before, epoch)
        if abs(rate - promised) > slack:
            raise InputRefused(
                f"{before.name} at batch {after.batch.global_.sizes[0]:,}: at epoch {epoch:.4g} the derived rate is "
                f"{rate:.6g}, and {promised:.6g} is promised; nothing was written: "
                "write this recipe by hand, and tell us"
            )
