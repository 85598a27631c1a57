"""Rate, batch, momentum and image size of a recipe at any time: pure functions of the epochs seen.

From them follow the largest batch under linear scaling and the samples in running statistics.
"""

from __future__ import annotations

import math
from dataclasses import fields, replace
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from typing import Any

from lr_schedules import BatchRamp, Product, linear_scaling, no_scaling, power_scaling, sqrt_scaling
from lr_schedules.units import Schedule
from recipes.schema import Evaluation, LearningRate, Recipe
from recipes.schema.positions import last_multiple
from recipes.schema.vocabulary import Unbuilt

LINEAR = ("linear", 1.0)  # rules
LINEAR_HOLDS_TO = 8192  # samples: Goyal et al. 2017, arXiv 1706.02677, figure 3
LARGEST_WITHOUT_WARMUP = 8  # times the reference batch; rate / (1 - momentum), which is 1 at batch 256. Assumed

# A batch of the training set: "about a tenth" in Smith et al. 2017, arXiv 1711.00489, whose largest this is.
LARGEST_SHARE = Fraction(5120, 50_000)
USUAL_WARMUP = 5.0  # epochs: Goyal et al. 2017, arXiv 1706.02677
JUST_BEFORE = 1 - 1e-9
_RULES = {"linear": linear_scaling, "sqrt": sqrt_scaling, "none": no_scaling}
_MOMENTUM_NAMES = ("momentum", "mu1", "beta1")


def learning_rate_at(recipe: Recipe, epoch: float) -> float:
    """The learning rate of an update that starts at `epoch`, samples consumed over samples of the training set.

        rate(t) = reference * rule(B / per) * shape(t')

    B is the warmup's `target_batch` until the warmup ends, then the current or the initial batch; shape is schedule and
    warmup as `joins` says; t' is t, or the last multiple of `every`.
    """
    formula = recipe.learning_rate
    shape = formula.shape
    if formula.every != "update":
        return full_rate_at(recipe, epoch) * _factor_at(lambda time: shape(_read_at(formula, time)), recipe, epoch)
    return full_rate_at(recipe, epoch) * _factor_at(shape, recipe, epoch)


def full_rate_at(recipe: Recipe, epoch: float) -> float:
    """The rate without warmup and schedule: `reference * rule(B / per)`, B as in `learning_rate_at`."""
    formula = recipe.learning_rate
    if formula.warmup is not None and _read_at(formula, epoch) < formula.warmup.shape.epochs:
        size = formula.warmup.target_batch
    else:
        size = batch_size_at(recipe, epoch if formula.scale_with == "current" else 0.0)
    return full_rate(formula.reference, size, rule=formula.rule, per=formula.per)


@lru_cache(maxsize=1024)  # at a thousand positions of a recipe there are few batches
def full_rate(reference: float, global_batch_size: int, *, rule: str | float, per: int) -> float:
    """The rate of a batch before any schedule: `reference * rule(B / per)`; a number as rule is a power.

    >>> full_rate(0.1, 8192, rule="linear", per=256)
    3.2
    """
    if not isinstance(rule, str):
        return reference * power_scaling(global_batch_size, per=per, exponent=rule)
    return reference * _RULES[rule](global_batch_size, per=per)


def scaling_exponent(rule: str | float) -> float:
    """The power of the batch that the rate follows under a rule, however it is written.

    >>> scaling_exponent("sqrt"), scaling_exponent(1.0)
    (0.5, 1.0)
    """
    return {"linear": 1.0, "sqrt": 0.5, "none": 0.0}[rule] if isinstance(rule, str) else float(rule)


def batch_size_at(recipe: Recipe, epoch: float) -> int:
    """The global batch size of an update that starts at `epoch`."""
    return recipe.batch.global_(epoch)


def norm_span_at(recipe: Recipe, epoch: float) -> int:
    """The samples that share batch-normalisation statistics in an update that starts at `epoch`."""
    return recipe.batch.norm_span(epoch)


def image_size_at(recipe: Recipe, epoch: float) -> int | None:
    """The side of training images in an update that starts at `epoch`; None where the recipe has no `image_size`."""
    return None if recipe.image_size is None else recipe.image_size(epoch)


def momentum_at(recipe: Recipe, epoch: float) -> float | None:
    """The momentum coefficient of an update that starts at `epoch`, None where the optimizer has none."""
    optimizer, schedule = recipe.optimizer, recipe.schedules.momentum
    key = momentum_key(optimizer)
    if key is None:
        return None
    value = coefficients(optimizer)[key] if isinstance(optimizer, Unbuilt) else getattr(optimizer, key)
    return float(value) * (1.0 if schedule is None else _factor_at(schedule, recipe, epoch))


def coefficients(optimizer: Unbuilt) -> dict[str, float]:
    """Momentum and weight decay of an optimizer that is not built, those that are numbers in the usual range."""
    ends = {"weight_decay": math.inf} | dict.fromkeys(_MOMENTUM_NAMES, 1.0)
    numbers = {key: value for key, value in optimizer.fields.items() if type(value) in (int, float) and key in ends}
    return {key: float(value) for key, value in numbers.items() if 0 <= value < ends[key]}


def momentum_key(optimizer: object) -> str | None:
    """The key of an optimizer's momentum coefficient, None where it has none."""
    there = coefficients(optimizer) if isinstance(optimizer, Unbuilt) else {field.name for field in fields(optimizer)}
    return next((name for name in _MOMENTUM_NAMES if name in there), None)


def weight_decay_at(recipe: Recipe, epoch: float) -> float:
    """The weight decay of an update that starts at `epoch`, 0 where the optimizer has none."""
    schedule = recipe.schedules.weight_decay
    return written_weight_decay(recipe.optimizer) * (1.0 if schedule is None else _factor_at(schedule, recipe, epoch))


def optimizer_at(recipe: Recipe, epoch: float) -> Any:
    """The optimizer of an update that starts at `epoch`, with its momentum and weight decay of that time.

    Raises:
        ValueError: a value leaves its range.
    """
    optimizer, schedules = recipe.optimizer, recipe.schedules
    moved = {}
    if schedules.momentum is not None and (key := momentum_key(optimizer)) is not None:
        moved[key] = momentum_at(recipe, epoch)
    if schedules.weight_decay is not None:
        moved["weight_decay"] = weight_decay_at(recipe, epoch)
    return replace(optimizer, **moved) if moved else optimizer


def written_weight_decay(optimizer: object) -> float:
    """The weight decay as it is written, 0 where the optimizer has none or it is no number."""
    if isinstance(optimizer, Unbuilt):
        return coefficients(optimizer).get("weight_decay", 0.0)
    decay = getattr(optimizer, "weight_decay", 0.0)
    return float(decay) if isinstance(decay, Real) else 0.0  # NumPy's too


def _read_at(formula: LearningRate, epoch: float) -> float:
    """The time at which the factor is read for `epoch`: the last multiple of `every`."""
    return epoch if formula.every == "update" else last_multiple(epoch, formula.every)


def _factor_at(schedule: Schedule, recipe: Recipe, epoch: float) -> float:
    """The factor at `epoch`; where a schedule fails at the run's end, at which no update begins, that just before."""
    try:
        return float(schedule(epoch))  # an own one may return a number of NumPy
    except Exception:  # of a schedule of the user's own
        if epoch < recipe.epochs:
            raise
        return float(schedule(recipe.epochs * JUST_BEFORE))


def target_inside(ramp: BatchRamp, *, epochs: float, rule: str | float, scale_with: str) -> int | None:
    """The batch that a warmup of so many epochs aims at if the rate moves with the batch within it; else None."""
    inside = [size for start, size in ramp.changes if 0 < start < epochs]
    return inside[-1] if inside and scale_with == "current" and rule not in ("none", 0) else None


def first_step_of(schedule: Schedule) -> float:
    """The epoch of a schedule's first step down; infinite for a schedule without one."""
    if isinstance(schedule, Product):
        return min(map(first_step_of, schedule.factors))
    boundaries = getattr(schedule, "boundaries", ())
    return next((it for it in boundaries if schedule(it) < schedule(it * JUST_BEFORE)), math.inf)


def usual_warmup_epochs(recipe: Recipe, *, latest: float | None = None) -> float:
    """The length of a new warmup: five epochs, a quarter of a run under 20, but one epoch of a run of several.

    It ends at `latest` at the latest, left out at the schedule's first step down (Goyal et al. 2017, arXiv 1706.02677),
    and is rounded down to thousandths.
    """
    latest = first_step_of(recipe.learning_rate.schedule) if latest is None else latest
    length = min(USUAL_WARMUP, max(1.0 if recipe.epochs > 1 else 0.0, recipe.epochs / 4), latest)
    return math.floor(1000 * length) / 1000 or length


def largest_linear_batch(recipe: Recipe) -> float:
    """The largest batch whose linearly scaled rate this recipe uses.

        max over the ramp of min(B, rate / reference * per), and the first batch

    A step of the ramp counts by its actual rate, where it begins or where the warmup ends in it: if the batch doubles
    while the rate falls to a fifth (Smith et al. 2017: grow the batch instead of decaying the rate), the reach stays.
    With `rule: none`, `per` is the first batch.
    """
    formula, ramp = recipe.learning_rate, recipe.batch.global_
    per = ramp.sizes[0] if formula.rule == "none" else formula.per
    warm = 0.0 if formula.warmup is None else formula.warmup.shape.epochs
    steps = zip(ramp.boundaries, (*ramp.boundaries[1:], math.inf), ramp.sizes, strict=True)
    highest = [(max(start, warm) if warm < end else start, size) for start, end, size in steps]
    reached = [min(size, learning_rate_at(recipe, epoch) / formula.reference * per) for epoch, size in highest]
    return max([ramp.sizes[0], *reached])


def averaged_samples(evaluation: Evaluation, *, global_batch_size: int, norm_span: int) -> float | None:
    """The effective number of samples in the running statistics' moving average; None if there is no average.

        size / (1 - d)      size = B, or a norm group's with `by_group`; d = keep, or keep ** (B / per)

    >>> round(averaged_samples(Evaluation(), global_batch_size=8192, norm_span=32))
    81920
    """
    average = evaluation.norm_momentum
    if evaluation.norm_statistics == "last_batch":
        return None
    if average.per != "update":
        exponent = global_batch_size / average.per * math.log(average.keep) if average.keep else -math.inf
        return global_batch_size / -math.expm1(exponent)
    size = norm_span if evaluation.norm_statistics == "by_group" else global_batch_size
    return size / (1 - average.keep)
