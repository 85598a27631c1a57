"""One rule for each family of optimizers; each yields the changes for another batch, with reason and source.

LARS interpolates between published points, the MLPerf recipes of the library. SGD scales linearly, Adam and LAMB by the
square root. RmspropWarmup does both, for its two parts. AdaScale measures its gain during training.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lr_schedules import Product
from lr_schedules.units import Schedule
from recipes.errors import InputRefused
from recipes.planning.rates import (
    LINEAR,
    LINEAR_HOLDS_TO,
    full_rate,
    largest_linear_batch,
    target_inside,
)
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from recipes.scale.promise import aimed_batch, with_rest
from recipes.scale.request import Change, Request, rounded
from recipes.scale.warmup import GOYAL, reading_change, warmup_change, without_target
from recipes.schema.vocabulary import Vocabulary, rate_rule

_SOURCE = "reference convergence points of MLPerf Training for ResNet-50, as the library has them"
_DECAY_UNIT = 1e-4  # the rules allow 1e-4 times a power of two


@dataclass(frozen=True, kw_only=True)
class Point:
    """A published point, or an interpolated one, whose name is empty.

    Args:
        batch, rate: global batch and full rate.
        warmup, epochs, schedule: epochs of the warmup, of the run, and of the decay of the rate.
        momentum, decay: of the optimizer.
    """

    name: str = ""
    batch: int
    rate: float
    warmup: float
    momentum: float
    decay: float
    epochs: float
    schedule: float


def points(vocabulary: Vocabulary) -> tuple[Point, ...]:
    """The points, in the order of their batches: the recipes `mlperf/lars_*` of the library."""
    known = [_point(name, vocabulary) for name in names("recipes") if name.startswith("mlperf/lars_")]
    return tuple(sorted(known, key=lambda point: point.batch))


def between(known: tuple[Point, ...], batch: int) -> tuple[Point, Point, Point]:
    """The point at a batch, and its published neighbours below and above; a published point is its own neighbours.

    Values are interpolated linearly in the logarithms of value and batch, momentum as 1 - m; weight decay is rounded to
    1e-4 times a power of two.

    Raises:
        InputRefused: the batch is outside the published points.
    """
    index = bisect_left(known, batch, key=lambda point: point.batch)
    if index == len(known) or (index == 0 and known[0].batch != batch):
        raise InputRefused(
            f"LARS at a batch of {batch:,}: the published points go from {known[0].batch:,} to {known[-1].batch:,}, "
            "and no rule is known beyond them"
        )
    above = known[index]
    if above.batch == batch:
        return above, above, above
    below = known[index - 1]
    share = math.log(batch / below.batch) / math.log(above.batch / below.batch)

    def along(low: float, high: float) -> float:
        return rounded(low ** (1 - share) * high**share)

    point = Point(
        batch=batch,
        rate=along(below.rate, above.rate),
        warmup=along(below.warmup, above.warmup),
        momentum=rounded(1 - along(1 - below.momentum, 1 - above.momentum)),
        decay=_DECAY_UNIT * 2.0 ** round(math.log2(along(below.decay, above.decay) / _DECAY_UNIT)),
        epochs=along(below.epochs, above.epochs),
        schedule=along(below.schedule, above.schedule),
    )
    return point, below, above


def lars(request: Request, vocabulary: Vocabulary) -> Iterator[Change]:
    """LARS: every value changes by the ratio of the published values at the new batch and at the old."""
    formula, known = request.recipe.learning_rate, points(vocabulary)
    _require_published_shape(request)
    start, _, _ = between(known, request.recipe.batch.global_.sizes[0])
    end, below, above = between(known, request.batch)

    def follow(before: float, name: str) -> float:
        old, new = getattr(start, name), getattr(end, name)
        return new if math.isclose(before, old, rel_tol=1e-9) else rounded(before * new / old)

    def reason(name: str, before: float) -> str:
        low, high = getattr(below, name), getattr(above, name)
        words = f"{high:.6g} in {above.name}"
        if below is not above:
            words = f"between {low:.6g} in {below.name} and {words}"
        old, new = getattr(start, name), getattr(end, name)
        if math.isclose(before, old, rel_tol=1e-9):
            return words
        if name == "momentum":
            return f"1 - {1 - before:.6g} x {1 - new:.6g} / {1 - old:.6g}: {words}"
        return f"{before:.6g} x {new:.6g} / {old:.6g}: {words}"

    rate = follow(request.rate, "rate")
    yield request.moved("learning_rate.reference", rate, reason("rate", request.rate), _SOURCE)
    yield request.moved(
        "learning_rate.per", request.batch, "the rate is this batch's own: no rule fits the points", _SOURCE
    )
    yield request.moved("learning_rate.rule", "none", "neither the linear rule nor the root fits the points", _SOURCE)
    yield from _start(request)
    yield from _aim(request)
    warm, run, falls = formula.warmup.shape.epochs, request.recipe.epochs, formula.schedule.epochs
    new_warm, new_run = follow(warm, "warmup"), follow(run, "epochs")
    yield request.moved("learning_rate.warmup.epochs", new_warm, reason("warmup", warm), _SOURCE)
    yield request.moved("epochs", new_run, reason("epochs", run), _SOURCE)
    before = formula.warmup.joins == "before"
    if not math.isclose(falls, run - warm * before, rel_tol=1e-9):
        after = follow(falls, "schedule")
        yield request.moved("learning_rate.schedule.epochs", after, reason("schedule", falls), _SOURCE)
    elif "epochs" in request.written["learning_rate"]["schedule"]:  # else it follows from the other two
        after = rounded(new_run - new_warm * before)
        yield request.moved("learning_rate.schedule.epochs", after, "to the end of the run, as before")
    momentum = request.value("optimizer.momentum")
    after = end.momentum if math.isclose(momentum, start.momentum) else _momentum(momentum, start, end)
    yield request.moved("optimizer.momentum", after, reason("momentum", momentum), _SOURCE)
    before = request.value("optimizer.weight_decay")
    yield request.moved("optimizer.weight_decay", follow(before, "decay"), reason("decay", before), _SOURCE)
    last = formula.schedule.end
    if last:
        key, why = "learning_rate.schedule.end", f"the same last rate, {last * request.rate:.3g}"
        yield request.moved(key, last * request.rate / rate, why, _SOURCE)


def _momentum(momentum: float, start: Point, end: Point) -> float:
    after = rounded(1 - (1 - momentum) * (1 - end.momentum) / (1 - start.momentum))
    if not 0 <= after < 1:
        raise InputRefused(f"optimizer.momentum: {momentum:g} would become {after:g}, outside [0, 1)")
    return after


def _require_published_shape(request: Request) -> None:
    """Refuse a recipe of another form than the points: a constant batch, a warmup, a polynomial schedule."""
    if len(request.sizes) > 1:
        raise InputRefused("LARS with a ramp: the published points have one batch each, and no rule joins them")
    if request.value("learning_rate.warmup") is None or request.value("learning_rate.schedule.kind") != "Polynomial":
        raise InputRefused("LARS without a warmup or with a schedule other than Polynomial is not among the published")
    if not request.has_one_full_rate:
        what = "LARS with a warmup that aims at another batch than the recipe's is not among the published"
        raise InputRefused(f"{what}; remove learning_rate.warmup.target_batch")


def _point(name: str, vocabulary: Vocabulary) -> Point:
    tree = open_recipe(name, vocabulary=vocabulary).tree
    rate = tree["learning_rate"]
    return Point(
        name=name,
        batch=tree["batch"]["global"],
        rate=rate["reference"],
        warmup=rate["warmup"]["epochs"],
        momentum=tree["optimizer"]["momentum"],
        decay=tree["optimizer"]["weight_decay"],
        epochs=tree["epochs"],
        schedule=rate["schedule"]["epochs"],
    )


ERRORS_BEYOND = "top-1 error 23.74 % at 8,192, 24.79 % at 16,384, 27.55 % at 32,768, 33.96 % at 65,536"


def linear(request: Request) -> Iterator[Change]:
    """SGD: k times the batch, k times the rate, a warmup; momentum and decay stay."""
    yield from linear_rate(request, holds_to=LINEAR_HOLDS_TO)
    warmup = warmup_change(request)
    yield warmup
    if warmup.moves and warmup.after is not None:
        yield from reading_change(request, warmup.after["epochs"])
    if warmup.after is not None and request.recipe.learning_rate.rule == "none":
        yield from _start(request)
    if warmup.after is not None:
        yield from _aim(request)
    else:
        yield from _rest_of_run(request, ends=0.0)
    if request.value("optimizer.momentum") is not None:
        yield request.kept("optimizer.momentum", "stays, as from batch 64 to 65,536", GOYAL)
    yield from _decay_with_rate(request)


def linear_rate(request: Request, *, holds_to: int) -> Iterator[Change]:
    """The rate of SGD; `holds_to` is the largest batch with a published result."""
    formula = request.recipe.learning_rate
    reach = largest_linear_batch(request.recipe) * request.kappa
    if formula.rule in (*LINEAR, "none") and reach > holds_to and not request.beyond:
        raise InputRefused(
            f"linear scaling is published up to a batch of {holds_to:,}, this would be {float(reach):,.0f}; "
            f"`recipes scale --beyond` goes on: {GOYAL}, figure 3: {ERRORS_BEYOND}"
        )
    rule, per = formula.rule, formula.per
    if rule == "none":
        rule, per = "linear", request.recipe.batch.global_.sizes[0]
        yield request.moved(
            "learning_rate.rule", rule, "the rate was given for one batch: from there it is linear", GOYAL
        )
        yield request.moved("learning_rate.per", per, "the batch that the rate was given for")
        yield from _constant_over_ramp(request)
    after = full_rate(formula.reference, request.batch, rule=rule, per=per)
    words = {"linear": "k times the batch, k times the rate", "sqrt": "the recipe's own rule, the root of k"}
    sources = {"linear": f"{GOYAL}, linear scaling rule", "sqrt": "Hoffer et al. 2017, arXiv 1705.08741"}
    word = words.get(rule, "the recipe's own rule, this power of k")
    reason = f"{word}: the full rate moves from {request.rate:.6g} to {after:.6g}"
    yield request.kept("learning_rate.reference", reason, sources.get(rule, ""))


def _constant_over_ramp(request: Request) -> Iterator[Change]:
    """A rate without a rule stays constant over a ramp, also when the new recipe has one."""
    if len(request.sizes) > 1 and request.recipe.learning_rate.rule == "none":
        yield request.moved("learning_rate.scale_with", "initial", "the rate does not follow the ramp, as before")


def _start(request: Request) -> Iterator[Change]:
    """The start of a warmup as a factor, where it is the reference rate and another number is that now."""
    key = "learning_rate.warmup.start"
    if request.value(key) == "reference":
        factor = rounded(request.recipe.learning_rate.warmup.shape.start)
        yield request.moved(key, {"factor": factor}, "as before, as a factor of the full rate")


def _aim(request: Request, *, ends: float | None = None) -> Iterator[Change]:
    """The batch that a warmup aims at, unless it is the first one, also in the new recipe, and need not be written.

    Args:
        ends: epochs of the new warmup; None: as many as before.
    Raises:
        InputRefused: it would be no whole number of samples.
    """
    formula, ramp = request.recipe.learning_rate, request.recipe.batch.global_
    warmup = formula.warmup
    if warmup is None:
        return
    ends = warmup.shape.epochs if ends is None else ends
    is_written = "target_batch" in request.written["learning_rate"]["warmup"]
    inside = target_inside(ramp, epochs=ends, rule=formula.rule, scale_with=formula.scale_with)
    if not is_written and inside is None:
        return
    first, aimed = ramp.sizes[0], aimed_batch(request.recipe, ends)
    target = Fraction(request.batch) if request.has_one_full_rate else aimed * request.kappa
    key = "learning_rate.warmup.target_batch"
    if target.denominator != 1:
        raise InputRefused(
            f"--batch {request.batch}: {key} of {aimed:,} would be {float(target):,.6g}, no whole number of samples; "
            f"ask for a multiple of {first // math.gcd(first, aimed)}"
        )
    yield request.moved(key, int(target), "follows the batch, so that the warmup ends at the rate that is due there")


def _rest_of_run(request: Request, *, ends: float) -> Iterator[Change]:
    """The lengths of a schedule that lasts from the warmup, which now ends at `ends`, to the end of the run."""
    schedule, key = request.recipe.learning_rate.schedule, "learning_rate.schedule"
    try:
        after = with_rest(request.recipe, ends=ends)
    except ValueError as error:
        what = f"--batch {request.batch}: behind a warmup of {ends:g} epochs {key} cannot last to the end of the run"
        raise InputRefused(f"{what}: {error}; ask for a batch nearer to the old one, or lengthen `epochs`") from None
    if after != schedule:
        name = "factors" if isinstance(schedule, Product) else "epochs"
        lengths = _with_lengths(request.value(key), after)[name]
        yield request.moved(f"{key}.{name}", lengths, "to the end of the run, as before")


def _with_lengths(tree: dict[str, Any], schedule: Schedule) -> dict[str, Any]:
    """The tree of a schedule with the lengths of `schedule`, also in its factors."""
    if isinstance(schedule, Product):
        pairs = zip(tree["factors"], schedule.factors, strict=True)
        return {**tree, "factors": [_with_lengths(factor, part) for factor, part in pairs]}
    return {**tree, "epochs": rounded(schedule.epochs)} if "epochs" in tree else tree


def decay(request: Request, reason: str, source: str = GOYAL) -> Iterator[Change]:
    """Weight decay: unchanged unless it is `times_relative_rate`."""
    before = request.value("optimizer.weight_decay")
    if not before:
        return
    key = "optimizer.weight_decay"
    if request.value("optimizer.decay") != "times_relative_rate":
        yield request.kept(key, reason, source)
        return
    after = rounded(before * float(request.kappa))
    if after >= 1:
        raise InputRefused(f"{key}: {before:g} an update would become {after:g}: every update would take all weights")
    reason = "taken from the weights once an update, whatever the rate: updates are so many times fewer"
    yield request.moved(key, after, reason, "arithmetic")


def rate_ratio(request: Request) -> float:
    """What the full rate is multiplied by where it follows the recipe's rule, or the root of k with Adam and LAMB."""
    rule = request.recipe.learning_rate.rule
    if not isinstance(rule, str):
        return float(request.kappa) ** rule
    if rule == "sqrt" or rate_rule(request.recipe.optimizer) == "sqrt":
        return math.sqrt(request.kappa)
    return float(request.kappa)


def _decay_with_rate(request: Request) -> Iterator[Change]:
    """Weight decay of SGD: coupled it stays, whatever the rule of the rate."""
    share = rate_ratio(request) / float(request.kappa)
    if math.isclose(share, 1):
        reason, source = "the rate follows the batch, so that an epoch shrinks the weights as much as before", GOYAL
    else:
        reason = f"part of the gradient, which follows the rate: an epoch shrinks the weights {share:.3g} times as much"
        source = ""
    yield from _decay_from_weights(request) or decay(request, reason, source)


def _decay_from_weights(request: Request) -> tuple[Change, ...]:
    """Decay that is `times_rate`, where rate and batch do not grow alike: times k over the ratio of the rates."""
    key, ratio = "optimizer.weight_decay", rate_ratio(request)
    before, growth = request.value(key), float(request.kappa) / ratio
    if not before or request.value("optimizer.decay") != "times_rate" or math.isclose(growth, 1):
        return ()
    reason = f"rate times decay an update, k times fewer updates, a rate times {ratio:.3g}"
    return (request.moved(key, rounded(before * growth), reason, "arithmetic"),)


def ada_scale(request: Request) -> Iterator[Change]:
    """AdaScale: only the batch changes; the gain is measured during training."""
    reason = "the gain of AdaScale scales it, by what the gradients allow, and warms up"
    yield request.kept("learning_rate.reference", reason, "Johnson et al. 2020, arXiv 2007.05105")
    yield request.kept("learning_rate.per", "the gain goes from 1 to the batch over this", "the same")
    if request.recipe.learning_rate.rule != "none":
        yield from _aim(request)
    yield request.kept("optimizer.momentum", "the gain is derived for the same momentum", "the same")
    yield from decay(request, "stays with the reference rate")


_MALLADI = "Malladi et al. 2022, arXiv 2205.10287, square root scaling rule (its equations not checked line by line)"
_LAMB = "You et al. 2019, arXiv 1904.00962, untuned LAMB: the table of rates and warmups (not checked)"
_AKIBA = "Akiba et al. 2017, arXiv 1711.04325"
# They trained at 32,768 with the linear rule after their warmup.
_AKIBA_HOLDS_TO = 32768


def square_root(request: Request) -> Iterator[Change]:
    """Adam: rate times the root of k, each 1 - beta times k, epsilon over the root. LAMB: rate and warmup only."""
    formula = request.recipe.learning_rate
    first = request.recipe.batch.global_.sizes[0]
    if formula.rule not in ("linear", "none"):
        after = full_rate(formula.reference, request.batch, rule=formula.rule, per=formula.per)
        word = "the root" if formula.rule == "sqrt" else "this power of k"
        reason = f"the rule is {word} already: the full rate moves from {request.rate:.6g} to {after:.6g}"
        yield request.kept("learning_rate.reference", reason, _MALLADI)
    elif not request.has_one_full_rate:
        after = full_rate(request.rate, request.batch, rule="sqrt", per=first)
        reason = f"the root of k: the full rate moves from {request.rate:.6g} to {after:.6g}"
        yield request.kept("learning_rate.rule", "joins the batches of this recipe, among themselves")
        yield request.moved("learning_rate.per", request.batch, "the batch that the new rate is given for")
        yield request.moved("learning_rate.reference", rounded(after), reason, _MALLADI)
    else:
        yield request.moved("learning_rate.rule", "sqrt", "noise falls with the root of the batch", _MALLADI)
        yield request.moved("learning_rate.per", first, "the root counts from the batch that this recipe has")
        yield from _constant_over_ramp(request)
        after = full_rate(request.rate, request.batch, rule="sqrt", per=first)
        reason = f"the full rate of {first:,}: it moves from {request.rate:.6g} to {after:.6g}"
        yield request.moved("learning_rate.reference", rounded(request.rate), reason, _MALLADI)
    if formula.rule in ("linear", "none"):
        yield from _start(request)
    if request.value("optimizer.kind") == "Lamb":
        yield from _lamb(request)
    else:
        yield _same_warmup(request, "as many epochs as before", "time is samples")
        yield from _aim(request)
        for key in ("optimizer.beta1", "optimizer.beta2"):  # an own optimizer may have none
            if request.value(key) is not None:
                yield _beta(request, key)
        if request.value("optimizer.eps") is not None:
            yield _epsilon(request)
    yield from _decay(request)


def _same_warmup(request: Request, reason: str, source: str) -> Change:
    key, given = "learning_rate.warmup", request.value("learning_rate.warmup")
    if given is not None:
        given = without_target(given)
    return Change(key=key, before=given, after=given, reason=reason, source=source)


def _lamb(request: Request) -> Iterator[Change]:
    """The warmup in proportion to the batch; betas and epsilon as they were."""
    warmup = request.recipe.learning_rate.warmup
    if warmup is None:
        yield request.kept("learning_rate.warmup", "none, as before")
    else:
        epochs = rounded(warmup.shape.epochs * float(request.kappa))
        if epochs >= request.recipe.epochs:
            raise InputRefused(
                f"learning_rate.warmup: {warmup.shape.epochs:g} epochs would become {epochs:g} of "
                f"{request.recipe.epochs:g}: this rule ends below a batch of "
                f"{request.recipe.batch.global_.sizes[0] * request.recipe.epochs / warmup.shape.epochs:,.0f}"
            )
        reason = "in proportion to the batch: 0.3125 epochs at 512, 20 at 32,768"
        yield request.moved("learning_rate.warmup.epochs", epochs, reason, _LAMB)
        if request.kappa < 1:
            yield from reading_change(request, epochs, fewest=2)  # read once, it would be one jump
        yield from _aim(request, ends=epochs)
        yield from _rest_of_run(request, ends=epochs)
    for key in ("optimizer.beta1", "optimizer.beta2", "optimizer.eps"):
        yield request.kept(key, "the same from batch 512 to 32,768", _LAMB)


def rmsprop_warmup(request: Request) -> Iterator[Change]:
    """RmspropWarmup: the SGD part linear, the RMSprop part by the square root."""
    yield from linear_rate(request, holds_to=_AKIBA_HOLDS_TO)
    yield _same_warmup(request, "the transition from RMSprop to SGD is the warmup", _AKIBA)
    if request.recipe.learning_rate.rule == "none":
        yield from _start(request)
    yield from _aim(request)
    key = "optimizer.rmsprop_learning_rate"
    yield request.moved(
        key, rounded(request.value(key) * math.sqrt(request.kappa)), "the root of k times the rate", _MALLADI
    )
    yield _beta(request, "optimizer.mu2")
    yield _epsilon(request)
    yield request.kept("optimizer.mu1", "momentum of SGD, as in the linear rule", "Goyal et al. 2017, arXiv 1706.02677")
    for key in ("optimizer.beta_center", "optimizer.beta_period"):
        yield request.kept(key, "epochs: the transition stays at the same samples", _AKIBA)
    yield from _decay_with_rate(request)


def _beta(request: Request, key: str) -> Change:
    before = request.value(key)
    after = float(1 - request.kappa * (1 - Fraction(repr(before))))
    if not 0 < after < 1:
        first = request.recipe.batch.global_.sizes[0]
        raise InputRefused(
            f"{key}: {before:g} would become 1 - {float(request.kappa):g} x {1 - before:.6g} = {after:.6g}, outside "
            f"(0, 1); this rule ends below a batch of {first / (1 - before):,.0f}"
        )
    return request.moved(key, rounded(after), "1 - beta times k: the average spans as many samples as before", _MALLADI)


def _epsilon(request: Request) -> Change:
    after = rounded(request.value("optimizer.eps") / math.sqrt(request.kappa))
    return request.moved("optimizer.eps", after, "over the root of k, as the noise it stands beside", _MALLADI)


def _decay(request: Request) -> Iterator[Change]:
    """Weight decay of Adam and LAMB: coupled, or part of a layer's direction, it stays."""
    reason = "part of the gradient, or of the direction whose length the layer's norm sets"
    yield from _decay_from_weights(request) or decay(request, reason, source="")
