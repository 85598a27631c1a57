"""Rules on the first epochs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from lr_schedules import ConstantWarmup, CosineRestarts, PiecewiseLinear, Product, StableDecay
from lr_schedules.units import Schedule
from recipes.lint.case import Case, Fault
from recipes.planning.rates import (
    JUST_BEFORE,
    LARGEST_WITHOUT_WARMUP,
    first_step_of,
    full_rate,
    target_inside,
    usual_warmup_epochs,
)
from recipes.schema.positions import next_multiple
from recipes.schema.vocabulary import is_layerwise

_SMALLEST_PUBLISHED = 1632
_BRING_THEIR_OWN = ("AdaScale", "RmspropWarmup")


def no_warmup(case: Case) -> Iterator[Fault]:
    """The full rate from the first update, at more than 8 times the batch that the reference rate holds at.

    In the first epochs the gradient changes too fast for one large step to replace many small ones. A rate that is
    written at its own batch counts by the first step, rate over 1 - momentum, which is 1.0 at batch 256. The rate of
    LARS and LAMB follows no rule: they are reported from a batch of 1,632, the smallest of MLPerf's reference points,
    all of which warm up. RmspropWarmup and AdaScale have a warmup of their own and are not reported, nor is a schedule
    that begins low enough. A warmup that begins at more than half of the full rate counts as none.

    Way out: rise to the full rate over 5 epochs, in a short run over a quarter of it.
    Source: Goyal et al. 2017, arXiv 1706.02677, comparison of warmups at batch 8,192: top-1 error 24.84 %
        without, 23.74 % with a gradual one.
    Fires:
        learning_rate: {warmup: null}
    Quiet:
        batch: {global: 2048}
        learning_rate: {warmup: null}
    """
    formula, kind = case.recipe.learning_rate, case.optimizer["kind"]
    begins, has = formula.schedule(0.0), "none"
    if formula.warmup is not None:
        begins, has = formula.warmup.shape(0.0), "begins at more than half of the full rate"
    if kind in _BRING_THEIR_OWN or (formula.warmup is not None and begins <= 0.5):
        return
    what = None
    if case.exponent > 0 and case.growth * begins > LARGEST_WITHOUT_WARMUP:
        what = f"{has}, and a batch of {case.first_batch:,} is {case.growth:g} times the {formula.per:,} of `per`"
    elif is_layerwise(case.recipe.optimizer) and begins > 0.5 and case.first_batch >= _SMALLEST_PUBLISHED:
        what = f"{has}, with {kind} at a batch of {case.first_batch:,}"
    elif case.is_sgd and (step := case.step_at(0.0)) > 1.001 * LARGEST_WITHOUT_WARMUP:
        first = f"the first rate {case.rate_at(0.0):.4g}{case.over} is {step:.3g}"
        what = f"{has}, and {first}, published: 1 at batch 256"
    if what is not None:
        keys = ("learning_rate.warmup", "batch.global", "learning_rate.per", "learning_rate.reference")
        keys += ("learning_rate.rule", "learning_rate.schedule", "optimizer.momentum", "optimizer.kind")
        yield Fault(keys=keys, what=what, way_out=_rise_over(case))


def short_warmup(case: Case) -> Iterator[Fault]:
    """A rise of less than one epoch, or a quarter of a shorter run, to more than 8 times the rate of batch 256.

    A few updates are over before the gradient has settled; the first long steps then come as if there were no warmup.

    Way out: 5 epochs, in a short run a quarter of it; a later first step of the schedule if it comes within an epoch.
    Source: Goyal et al. 2017, arXiv 1706.02677: 5 epochs, 782 updates at batch 8,192; the shortest of the library is 2.
    Fires:
        learning_rate: {warmup: {epochs: 5up}}
    Quiet:
        learning_rate: {warmup: {epochs: 2}}
    """
    rate, epoch = case.peak
    warmup = case.recipe.learning_rate.warmup
    epoch = max(epoch, 0.0 if warmup is None else warmup.shape.epochs)
    rises = case.rate_at(0.0) < 0.5 * rate and case.optimizer["kind"] not in _BRING_THEIR_OWN
    is_short = rises and epoch < _shortest_warmup(case)
    if case.is_sgd and is_short and max(case.growth, case.longest_step) > LARGEST_WITHOUT_WARMUP:
        yield Fault(
            keys=(
                "learning_rate.warmup.epochs",
                "learning_rate.schedule",
                "batch.global",
                "learning_rate.reference",
                "learning_rate.per",
                "optimizer.momentum",
            ),
            what=f"rises to a rate of {rate:.4g} within {epoch:.2g} epochs",
            way_out=_rise_over(case),
        )


def warmup_to_other_batch(case: Case) -> Iterator[Fault]:
    """A warmup that aims at the rate of another batch than that of the updates after it.

    The rate then jumps or falls when the warmup ends. A recipe that extends another and has another batch inherits its
    `target_batch`. Without one a warmup aims at the first batch.

    Way out: as `target_batch` the batch at the end of the warmup.
    Source: Goyal et al. 2017, arXiv 1706.02677: the warmup ends at the full rate of the batch.
    Fires:
        batch: {global: 4096}
        learning_rate: {warmup: {target_batch: 8192}}
    Quiet:
        batch: {global: 4096}
        learning_rate: {warmup: {target_batch: 4096}}
    """
    formula, ramp = case.recipe.learning_rate, case.recipe.batch.global_
    if formula.warmup is None or formula.warmup.shape.epochs >= case.recipe.epochs:
        return
    ends = formula.warmup.shape.epochs
    left = ends if formula.every == "update" else next_multiple(ends * JUST_BEFORE, formula.every)
    sizes = [ramp(ends * JUST_BEFORE), *(size for start, size in ramp.changes if ends <= start <= left)]
    if formula.scale_with == "initial":
        sizes = [ramp.sizes[0]]
    target, *after = (
        full_rate(formula.reference, size, rule=formula.rule, per=formula.per)
        for size in (formula.warmup.target_batch, *sizes)
    )
    if not min(after) * 0.99 <= target <= max(after) * 1.01:
        yield Fault(
            keys=("learning_rate.warmup.target_batch", "batch.global"),
            what=f"the full rate goes from {target:.4g} to {after[0]:.4g} when the warmup ends, at epoch {ends:g}: "
            f"it aims at batch {formula.warmup.target_batch:,}, then the rate is that of {sizes[0]:,}",
            way_out=f"write `target_batch: {sizes[0]}` in `learning_rate.warmup`",
        )


def _rise_over(case: Case) -> str:
    recipe, formula = case.recipe, case.recipe.learning_rate
    epochs, later = _new_warmup(case, first_step_of(formula.schedule))
    start = "reference" if case.growth**case.exponent > 2 else 0
    inside = target_inside(recipe.batch.global_, epochs=epochs, rule=formula.rule, scale_with=formula.scale_with)
    target = "" if inside is None else f", target_batch: {inside}"
    made = f"{{kind: GradualWarmup, epochs: {epochs:g}, start: {start}, joins: multiply{target}}}"
    return f"write `warmup: {made}`{later}"


def _new_warmup(case: Case, first_step: float) -> tuple[float, str]:
    """The length of a new warmup, and words on a later first step down of the schedule if it comes too early."""
    epochs = usual_warmup_epochs(case.recipe, latest=first_step)
    if epochs >= _shortest_warmup(case):
        return epochs, ""
    epochs = usual_warmup_epochs(case.recipe, latest=math.inf)
    return epochs, f" and move the schedule's first step down from {first_step:.3g} to {epochs:g} or later"


def _shortest_warmup(case: Case) -> float:
    return usual_warmup_epochs(case.recipe, latest=1.0)


def warmup_read_once(case: Case) -> Iterator[Fault]:
    """A warmup that is read only once or twice, because `every` is at least half of it.

    The rate stays where the warmup begins until `every` has passed, and then jumps to half of the full rate or more.

    Way out: `every: update`, or a small part of the warmup, such as a fifth.
    Source: arithmetic; torchvision reads a warmup of five epochs once an epoch.
    Fires:
        learning_rate: {every: 5ep}
    Quiet:
        learning_rate: {every: 1ep}
    """
    formula, end = case.recipe.learning_rate, case.recipe.epochs
    if formula.warmup is None or formula.every == "update" or formula.warmup.shape(0.0) == 1:
        return
    times = math.ceil(formula.warmup.shape.epochs / formula.every * JUST_BEFORE)
    if times <= 2 and formula.every < end:  # beyond, idle-after-end reports it
        yield Fault(
            keys=("learning_rate.every", "learning_rate.warmup.epochs"),
            what=f"every is {formula.every:g} epochs, and the warmup {formula.warmup.shape.epochs:g}: "
            f"it is read {'twice' if times > 1 else 'once'}",
            way_out="write `every: update`",
        )


def decay_after_end(case: Case) -> Iterator[Fault]:
    """A step of a schedule, or the end of the rate's, after the end of the run: it never happens.

    A recipe that extends another and shortens the run inherits the boundaries of the longer one. The rate then falls
    once or never, and the accuracy of the last epochs is missing. With `joins: before` the boundaries count from the
    end of the warmup. A schedule that falls all the way, in straight lines or again and again too, is reported where
    more than a tenth of the full rate is left.

    Way out: boundaries or points at the same shares of the run; a schedule that falls all the way without `epochs`; a
        run that ends with a period.
    Source: Goyal et al. 2017, arXiv 1706.02677: steps at 30, 60 and 80 of 90 epochs.
    Fires:
        epochs: 30
    Quiet:
        epochs: 30
        learning_rate: {schedule: {boundaries: [10, 20, 27]}}
    """
    formula, moving = case.recipe.learning_rate, case.recipe.schedules
    schedules = {"learning_rate.schedule": (formula.schedule, case.clock_starts)}
    schedules |= {f"schedules.{name}": (getattr(moving, name), 0) for name in ("momentum", "weight_decay")}
    for key, (schedule, starts) in schedules.items():
        shifts = ("learning_rate.warmup.epochs", "learning_rate.warmup.joins") if starts else ()
        is_product = isinstance(schedule, Product)
        for part in schedule.factors if is_product else (schedule,):
            boundaries = getattr(part, "boundaries", None) or ()
            late = [starts + each for each in boundaries if starts + each >= case.recipe.epochs]
            if late:
                steps = ", ".join(f"{each:g}" for each in late)
                yield Fault(
                    keys=("epochs", f"{key}.{'factors' if is_product else 'boundaries'}", *shifts),
                    what=f"{key} steps at {steps} of a run of {case.recipe.epochs:g} epochs",
                    way_out=_boundaries_within(boundaries, case, starts),
                )
    if case.optimizer.get("clock") == "gain":  # how far its schedule gets is not known
        return
    key, ends, way_out = _last_fall(case, case.recipe.epochs - case.clock_starts)
    if case.clock_starts + ends <= case.recipe.epochs:
        return
    left = formula.schedule(max(0.0, case.recipe.epochs - case.clock_starts))
    if left > max(0.1, 1.001 * formula.schedule(ends * JUST_BEFORE)):
        yield Fault(
            keys=("epochs", f"learning_rate.schedule.{key}"),
            what=f"{left:.2g} of the rate is left at the end, {case.recipe.epochs:g}: "
            f"the schedule falls until {case.clock_starts + ends:g}",
            way_out=way_out,
        )


def _last_fall(case: Case, length: float) -> tuple[str, float, str]:
    """A key of the schedule, when the fall that it makes at the end of a run of this length is over, and a way out."""
    schedule = case.recipe.learning_rate.schedule
    if isinstance(schedule, PiecewiseLinear):
        return "points", schedule.points[-1][0], f"move its points so that the last one is at {length:g}"
    if isinstance(schedule, CosineRestarts):
        periods = 1 + schedule.restarts(length * JUST_BEFORE)
        ends = sum(schedule.first * schedule.times**period for period in range(periods))
        return "first", ends, f"write `epochs: {ends:g}`, where a period ends, or another `first`"
    way_out = case.until_end_of_run
    if isinstance(schedule, StableDecay) and schedule.decay_from >= length:
        way_out = f"write `decay_from: {0.8 * length:.3g}`, and {way_out.removeprefix('write ')}"
    return "epochs", getattr(schedule, "epochs", None) or 0.0, way_out


def _boundaries(schedule: Schedule) -> list[float]:
    """The boundaries of a schedule and of its factors, in order."""
    if isinstance(schedule, Product):
        return sorted(each for part in schedule.factors for each in _boundaries(part))
    return [*(getattr(schedule, "boundaries", None) or ())]


def _boundaries_within(boundaries: Sequence[float], case: Case, starts: float) -> str:
    """A way out: boundaries at the same shares of the run, with as many digits as keep them apart.

    They count from `starts`. A warmup that ends after the first of them has to be shorter too.
    """
    length = case.recipe.epochs - starts
    if length <= 0:
        return "shorten the warmup, which leaves the schedule no time, or lengthen `epochs`"
    shares = [boundary * length / (max(boundaries) * 90 / 80) for boundary in boundaries]
    texts = ([f"{share:.{digits}g}" for share in shares] for digits in range(3, 18))
    apart = next((each for each in texts if len({*each}) == len(each)), [f"{share!r}" for share in shares])
    way_out = f"write boundaries such as [{', '.join(apart)}]"
    warmup = case.recipe.learning_rate.warmup
    if warmup is not None and not starts and warmup.shape.epochs > float(apart[0]):
        way_out += f" and `warmup: {{epochs: {usual_warmup_epochs(case.recipe, latest=float(apart[0])):g}}}`"
    return way_out


def constant_warmup(case: Case) -> Iterator[Fault]:
    """A warmup that stays low and then jumps, at more than 8 times the batch that the reference rate holds at.

    The jump at its end is the sudden rise that a warmup should avoid. It was measured worse than no warmup.

    Way out: rise in a straight line instead.
    Source: Goyal et al. 2017, arXiv 1706.02677, comparison of warmups at batch 8,192: top-1 error 25.88 %
        constant, 24.84 % without, 23.74 % gradual.
    Fires:
        learning_rate:
          warmup: {kind: ConstantWarmup, epochs: 5, start: reference, joins: multiply}
    Quiet:
        batch: {global: 2048}
        learning_rate:
          warmup: {kind: ConstantWarmup, epochs: 5, start: reference, joins: multiply}
    """
    warmup = case.recipe.learning_rate.warmup
    if warmup is not None and isinstance(warmup.shape, ConstantWarmup) and case.growth > LARGEST_WITHOUT_WARMUP:
        yield Fault(
            keys=("learning_rate.warmup.kind", "batch.global", "learning_rate.per"),
            what=f"jumps to the full rate of a batch {case.growth:g} times `per` at epoch {warmup.shape.epochs:g}",
            way_out="write `kind: GradualWarmup`",
        )


def warmup_past_decay(case: Case) -> Iterator[Fault]:
    """A warmup that is still rising when the schedule makes its first step down, or for more than half of the run.

    The run then never reaches the full rate, because the schedule has already lowered it when the warmup ends, or
    hardly uses it. A recipe that extends another and shortens the run inherits its warmup.

    Way out: 5 epochs, in a short run a quarter of it, and not beyond the first step, which moves if it comes within an
        epoch; or let the schedule's clock start after the warmup with `joins: before`, if the steps then still lie
        within the run.
    Source: Goyal et al. 2017, arXiv 1706.02677: 5 epochs of warmup, the first step at epoch 30.
    Fires:
        learning_rate: {warmup: {epochs: 31}}
    Quiet:
        learning_rate: {warmup: {epochs: 30}}
    """
    formula, run = case.recipe.learning_rate, case.recipe.epochs
    if formula.warmup is None:
        return
    ends, boundaries = formula.warmup.shape.epochs, _boundaries(formula.schedule)
    first = math.inf if formula.warmup.joins == "before" else first_step_of(formula.schedule)
    epochs, later = _new_warmup(case, first)
    way_out = f"write `warmup: {{epochs: {epochs:g}}}`{later}"
    if ends > max(1, run / 2):
        keys = ("learning_rate.warmup.epochs", "epochs")
        yield Fault(keys=keys, what=f"the warmup takes {ends:g} of {run:g} epochs", way_out=way_out)
    elif first < ends:
        what = f"the warmup ends at {ends:g}, the schedule steps down at {first:g}"
        fits = ends + boundaries[-1] < run
        yield Fault(
            keys=("learning_rate.warmup.epochs", "learning_rate.schedule.boundaries", "learning_rate.warmup.joins"),
            what=what,
            way_out=f"{way_out}, or `joins: before`" if fits else way_out,
        )


def warmup_twice(case: Case) -> Iterator[Fault]:
    """A warmup of the rate with an optimizer that has its own.

    RmspropWarmup goes over from RMSprop to SGD in the first epochs, and the gain of AdaScale starts small by itself. A
    second rise of the rate makes the first epochs needlessly slow.

    Way out: `warmup: null` under `learning_rate`.
    Source: Akiba et al. 2017, arXiv 1711.04325, who have no other warmup; Johnson et al. 2020, arXiv 2007.05105.
    Fires:
        learning_rate: {rule: none, per: 256}
        optimizer: {kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}
    Quiet:
        learning_rate: {rule: none, per: 256, warmup: null}
        optimizer: {kind: AdaScale, weight_decay: 1e-4, no_decay: [norm]}
    """
    if case.recipe.learning_rate.warmup is not None and case.optimizer["kind"] in _BRING_THEIR_OWN:
        yield Fault(
            keys=("learning_rate.warmup", "optimizer.kind"),
            what=f"{case.optimizer['kind']} brings a warmup of its own",
            way_out="write `warmup: null`",
        )
