"""The positions at which the schedules of a recipe are looked at, to check them or to find their peak."""

from __future__ import annotations

from collections.abc import Iterator

from lr_schedules import MultiStep, PiecewiseLinear, Product, SlowStart, StableDecay
from lr_schedules.units import Schedule
from recipes.planning.timeline import timeline_of
from recipes.schema import Dataset, Recipe
from recipes.schema.positions import last_multiple, next_multiple

_EVENLY = 1000  # updates, beside those at knots


def looked_at(recipe: Recipe, dataset: Dataset) -> list[float]:
    """The starts of evenly spaced updates, of the first and the last, and of those around each knot.

    With no more than 1,000 updates, that is all of them.
    """
    timeline = timeline_of(recipe, dataset)
    last = timeline.num_updates - 1
    after = [timeline.first_update_at(epoch) for epoch in knots(recipe) if epoch <= recipe.epochs]
    updates = {last, *range(0, last, 1 + last // _EVENLY), *(it - near for it in after for near in (0, 1))}
    return [timeline.epoch_at(update) for update in sorted(updates) if 0 <= update <= last]


def knots(recipe: Recipe) -> set[float]:
    """Positions, also after the end of the run, at which the rate or a schedule of the optimizer jumps or bends."""
    formula, warmup = recipe.learning_rate, recipe.learning_rate.warmup
    warm = 0.0 if warmup is None else warmup.shape.epochs
    shift = warm if warmup is not None and warmup.joins == "before" else 0.0
    of_rate = {warm, *recipe.batch.global_.boundaries, *(shift + epoch for epoch in _knots(formula.schedule))}
    if formula.every != "update":
        of_rate |= {moved(epoch, formula.every) for epoch in of_rate for moved in (last_multiple, next_multiple)}
    schedules = filter(None, (recipe.schedules.momentum, recipe.schedules.weight_decay))
    return of_rate.union(*map(_knots, schedules))


def _knots(schedule: Schedule) -> Iterator[float]:
    if isinstance(schedule, Product):
        for factor in schedule.factors:
            yield from _knots(factor)
    elif isinstance(schedule, MultiStep | SlowStart):
        yield from schedule.boundaries
    elif isinstance(schedule, PiecewiseLinear):
        yield from (position for position, _ in schedule.points)
    elif isinstance(schedule, StableDecay):
        yield schedule.decay_from
