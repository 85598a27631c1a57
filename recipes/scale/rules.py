"""LARS by interpolation between published points, the MLPerf recipes of the library.

Linear scaling: SGD with any momentum, the SGD part of RmspropWarmup, and AdaScale, which scales its own rate.

Square root scaling: Adam, LAMB, and the RMSprop part of RmspropWarmup.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import Any

from lr_schedules import Product
from recipes.errors import InputRefused
from recipes.planning.rates import LINEAR_HOLDS_TO, full_rate, linear_reach
from recipes.reading.open import open_recipe
from recipes.reading.registry import names
from recipes.scale.request import Change, Request, rounded
from recipes.schema.vocabulary import Vocabulary

__all__ = [
    "Point",
    "ada_scale",
    "between",
    "decay",
    "lars",
    "linear",
    "linear_rate",
    "points",
    "rmsprop_warmup",
    "square_root",
]

_SOURCE = "reference convergence points of MLPerf Training for ResNet-50, as the library has them"
_DECAY_UNIT = 1e-4  # the rules allow 1e-4 times a power of two


@dataclass(frozen=True, kw_only=True)
class Point:
    """A published point, or an interpolated one.

    Args:
        name: of the recipe; empty for an interpolated point.
        batch: global batch.
        rate: full rate.
        warmup: epochs.
        momentum: of the optimizer.
        decay: weight decay.
        epochs: length of the run.
        schedule: epochs of the decay of the rate.
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
    return tuple(sorted((_point(name, vocabulary) for name in _names()), key=lambda point: point.batch))


def between(known: tuple[Point, ...], batch: int) -> tuple[Point, Point, Point]:
    """The point at a batch, and its published neighbours below and above; a published point is its own neighbours.

    Values are interpolated linearly in the logarithms of value and batch, momentum as 1 - m; weight decay is rounded to
    1e-4 times a power of two.

    Raises:
        InputRefused: the batch is outside the published points.
    """
    place = bisect_left(known, batch, key=lambda point: point.batch)
    if place == len(known) or (place == 0 and known[0].batch != batch):
        raise InputRefused(
            f"LARS at a batch of {batch:,}: the published points go from {known[0].batch:,} to {known[-1].batch:,}, "
            "and no rule is known beyond them"
        )
    above = known[place]
    if above.batch == batch:
        return above, above, above
    below = known[place - 1]
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


def lars(ask: Request, vocabulary: Vocabulary) -> Iterator[Change]:
    """LARS: every value changes by the ratio of the published values at the new batch and at the old."""
    formula, known = ask.opened.recipe.learning_rate, points(vocabulary)
    _require_published_shape(ask)
    start, _, _ = between(known, ask.opened.recipe.batch.global_.sizes[0])
    end, below, above = between(known, ask.batch)

    def follow(before: float, name: str) -> float:
        old, new = getattr(start, name), getattr(end, name)
        return new if math.isclose(before, old, rel_tol=1e-9) else rounded(before * new / old)

    def reason(name: str) -> str:
        low, high = getattr(below, name), getattr(above, name)
        if below is above:
            return f"{high:.6g} in {above.name}"
        return f"between {low:.6g} in {below.name} and {high:.6g} in {above.name}"

    rate = follow(ask.rate, "rate")
    yield ask.moved("learning_rate.reference", rate, reason("rate"), _SOURCE)
    yield ask.moved("learning_rate.per", ask.batch, "the rate is this batch's own: no rule fits the points", _SOURCE)
    yield ask.moved("learning_rate.rule", "none", "neither the linear rule nor the root fits the points", _SOURCE)
    warmup = {"learning_rate.warmup.epochs": "warmup", "epochs": "epochs", "learning_rate.schedule.epochs": "schedule"}
    for key, name in warmup.items():
        yield ask.moved(key, follow(ask.value(key), name), reason(name), _SOURCE)
    momentum = ask.value("optimizer.momentum")
    after = end.momentum if math.isclose(momentum, start.momentum) else _momentum(momentum, start, end)
    yield ask.moved("optimizer.momentum", after, reason("momentum"), _SOURCE)
    decay = follow(ask.value("optimizer.weight_decay"), "decay")
    yield ask.moved("optimizer.weight_decay", decay, reason("decay"), _SOURCE)
    last = formula.schedule.end
    if last:
        key, why = "learning_rate.schedule.end", f"the same last rate, {last * ask.rate:.3g}"
        yield ask.moved(key, last * ask.rate / rate, why, _SOURCE)


def _momentum(momentum: float, start: Point, end: Point) -> float:
    after = rounded(1 - (1 - momentum) * (1 - end.momentum) / (1 - start.momentum))
    if not 0 <= after < 1:
        raise InputRefused(f"optimizer.momentum: {momentum:g} would become {after:g}, outside [0, 1)")
    return after


def _require_published_shape(ask: Request) -> None:
    """Refuse a recipe of another form than the points: a constant batch, a warmup, a polynomial schedule."""
    if len(ask.sizes) > 1:
        raise InputRefused("LARS with a ramp: the published points have one batch each, and no rule joins them")
    if ask.value("learning_rate.warmup") is None or ask.value("learning_rate.schedule.kind") != "Polynomial":
        raise InputRefused("LARS without a warmup or with a schedule other than Polynomial is not among the published")


@cache
def _names() -> tuple[str, ...]:
    return tuple(name for name in names("recipes") if name.startswith("mlperf/lars_"))


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


_GOYAL = "Goyal et al. 2017, arXiv 1706.02677"
_WARMUP_EPOCHS = 5
ERRORS_BEYOND = "top-1 error 23.74 % at 8,192, 24.79 % at 16,384, 27.55 % at 32,768, 33.96 % at 65,536"


def linear(ask: Request) -> Iterator[Change]:
    """SGD: k times the batch, k times the rate, a warmup; momentum and decay stay."""
    yield from linear_rate(ask, holds_to=LINEAR_HOLDS_TO)
    yield _warmup(ask)
    if ask.value("optimizer.momentum") is not None:
        yield ask.kept("optimizer.momentum", "stays, as from batch 64 to 65,536", _GOYAL)
    yield from decay(ask, "the rate follows the batch, so that an epoch shrinks the weights as much as before")


def linear_rate(ask: Request, *, holds_to: int) -> Iterator[Change]:
    """The rate of SGD.

    Args:
        holds_to: the largest batch with a published result.
    """
    formula = ask.opened.recipe.learning_rate
    reach = linear_reach(ask.opened.recipe) * ask.kappa
    if formula.rule != "sqrt" and reach > holds_to and not ask.beyond:
        raise InputRefused(
            f"linear scaling is published up to a batch of {holds_to:,}, this would be {float(reach):,.0f}; "
            f"--beyond goes on: {_GOYAL}, figure 3: {ERRORS_BEYOND}"
        )
    rule, per = formula.rule, formula.per
    if rule == "none":
        rule, per = "linear", ask.opened.recipe.batch.global_.sizes[0]
        yield ask.moved("learning_rate.rule", rule, "the rate was given for one batch: from there it is linear", _GOYAL)
        yield ask.moved("learning_rate.per", per, "the batch that the rate was given for")
    after = full_rate(formula.reference, ask.batch, rule=rule, per=per)
    words = {"linear": "k times the batch, k times the rate", "sqrt": "the recipe's own rule, the root of k"}
    sources = {"linear": f"{_GOYAL}, linear scaling rule", "sqrt": "Hoffer et al. 2017, arXiv 1705.08741"}
    reason = f"{words[rule]}: the full rate moves from {ask.rate:.6g} to {after:.6g}"
    yield ask.kept("learning_rate.reference", reason, sources[rule])


def _warmup(ask: Request) -> Change:
    """The warmup: removed up to the reference batch, kept above it; five epochs if a larger batch has none yet."""
    formula = ask.opened.recipe.learning_rate
    is_reference = formula.rule != "none" and ask.batch <= formula.per
    key, source = "learning_rate.warmup", f"{_GOYAL}, gradual warmup"
    warmup, given = ask.opened.recipe.learning_rate.warmup, ask.value("learning_rate.warmup")
    aimed = None if warmup is None else ask.written["learning_rate"]["warmup"].get("target_batch")
    if warmup is not None and aimed is None:
        # It defaults to the first batch, also in the new recipe: so it is neither shown nor written.
        given = {name: value for name, value in given.items() if name != "target_batch"}
    if is_reference:
        return Change(key=key, before=given, after=None, reason="none up to the reference batch", source=source)
    if warmup is None and (ask.kappa <= 1 or ask.opened.recipe.learning_rate.rule == "sqrt"):
        return ask.kept(key, "none, as before")
    if warmup is None:
        return ask.moved(key, _five_epochs(ask), "a rise in a straight line over 5 epochs, less in a short run", source)
    after = given if aimed is None else {**given, "target_batch": int(aimed * ask.kappa)}
    return Change(key=key, before=given, after=after, reason="as many epochs as before, to the new rate", source=source)


def _five_epochs(ask: Request) -> dict[str, Any]:
    epochs = min(_WARMUP_EPOCHS, ask.opened.recipe.epochs / 4, _first_step(ask.opened.recipe.learning_rate.schedule))
    whole = int(epochs) if epochs == int(epochs) else rounded(epochs)
    made = {"kind": "GradualWarmup", "epochs": whole, "start": "reference", "joins": "multiply"}
    steps = zip(ask.opened.recipe.batch.global_.boundaries, ask.sizes, strict=True)
    inside = [size for start, size in steps if 0 < start < epochs]
    return {**made, "target_batch": inside[-1]} if inside else made


def _first_step(schedule: Any) -> float:
    parts = schedule.factors if isinstance(schedule, Product) else (schedule,)
    return min((part.boundaries[0] for part in parts if hasattr(part, "boundaries")), default=float("inf"))


def decay(ask: Request, reason: str, source: str = _GOYAL) -> Iterator[Change]:
    """Weight decay: unchanged unless it is `times_relative_rate`."""
    before = ask.value("optimizer.weight_decay")
    if not before:
        return
    key = "optimizer.weight_decay"
    if ask.value("optimizer.decay") != "times_relative_rate":
        yield ask.kept(key, reason, source)
        return
    after = rounded(before * float(ask.kappa))
    if after >= 1:
        raise InputRefused(f"{key}: {before:g} an update would become {after:g}: every update would take all weights")
    reason = "taken from the weights once an update, whatever the rate: updates are so many times fewer"
    yield ask.moved(key, after, reason, "arithmetic")


def ada_scale(ask: Request) -> Iterator[Change]:
    """AdaScale: only the batch changes; the gain is measured during training."""
    reason = "the gain of AdaScale scales it, by what the gradients allow, and warms up"
    yield ask.kept("learning_rate.reference", reason, "Johnson et al. 2020, arXiv 2007.05105")
    yield ask.kept("optimizer.momentum", "the gain is derived for the same momentum", "the same")
    yield from decay(ask, "stays with the reference rate")


_MALLADI = "Malladi et al. 2022, arXiv 2205.10287, square root scaling rule (its equations not checked line by line)"
_AKIBA = "Akiba et al. 2017, arXiv 1711.04325"
# They trained at 32,768 with the linear rule after their warmup.
_AKIBA_HOLDS_TO = 32768


def square_root(ask: Request) -> Iterator[Change]:
    """Adam and LAMB: rate times the root of k, each 1 - beta times k, epsilon over the root."""
    formula = ask.opened.recipe.learning_rate
    first = ask.opened.recipe.batch.global_.sizes[0]
    if formula.rule == "sqrt":
        after = full_rate(formula.reference, ask.batch, rule="sqrt", per=formula.per)
        reason = f"the rule is the root already: the full rate moves from {ask.rate:.6g} to {after:.6g}"
        yield ask.kept("learning_rate.reference", reason, _MALLADI)
    else:
        yield ask.moved("learning_rate.rule", "sqrt", "noise falls with the root of the batch", _MALLADI)
        yield ask.moved("learning_rate.per", first, "the root counts from the batch that this recipe has")
        after = full_rate(ask.rate, ask.batch, rule="sqrt", per=first)
        reason = f"the full rate of {first:,}: it moves from {ask.rate:.6g} to {after:.6g}"
        yield ask.moved("learning_rate.reference", rounded(ask.rate), reason, _MALLADI)
    yield ask.kept("learning_rate.warmup", "as many epochs as before", "time is samples")
    for key in ("beta1", "beta2"):
        yield _beta(ask, f"optimizer.{key}")
    yield _epsilon(ask)
    yield from _decay(ask)


def rmsprop_warmup(ask: Request) -> Iterator[Change]:
    """RmspropWarmup: the SGD part linear, the RMSprop part by the square root."""
    yield from linear_rate(ask, holds_to=_AKIBA_HOLDS_TO)
    yield ask.kept("learning_rate.warmup", "the transition from RMSprop to SGD is the warmup", _AKIBA)
    key = "optimizer.rmsprop_learning_rate"
    yield ask.moved(key, rounded(ask.value(key) * math.sqrt(ask.kappa)), "the root of k times the rate", _MALLADI)
    yield _beta(ask, "optimizer.mu2")
    yield _epsilon(ask)
    yield ask.kept("optimizer.mu1", "momentum of SGD, as in the linear rule", "Goyal et al. 2017, arXiv 1706.02677")
    for key in ("optimizer.beta_center", "optimizer.beta_period"):
        yield ask.kept(key, "epochs: the transition stays at the same samples", _AKIBA)
    yield from decay(ask, "the rate follows the batch, so that an epoch shrinks the weights as much as before")


def _beta(ask: Request, key: str) -> Change:
    before = ask.value(key)
    after = float(1 - ask.kappa * (1 - Fraction(repr(before))))
    if not 0 < after < 1:
        first = ask.opened.recipe.batch.global_.sizes[0]
        raise InputRefused(
            f"{key}: {before:g} would become 1 - {float(ask.kappa):g} x {1 - before:.6g} = {after:.6g}, outside "
            f"(0, 1); this rule ends below a batch of {first / (1 - before):,.0f}"
        )
    return ask.moved(key, rounded(after), "1 - beta times k: the average spans as many samples as before", _MALLADI)


def _epsilon(ask: Request) -> Change:
    after = rounded(ask.value("optimizer.eps") / math.sqrt(ask.kappa))
    return ask.moved("optimizer.eps", after, "over the root of k, as the noise it stands beside", _MALLADI)


def _decay(ask: Request) -> Iterator[Change]:
    """Weight decay: coupled, or part of a layer's direction, it stays; with `times_rate` it grows by the root of k."""
    key = "optimizer.weight_decay"
    if ask.value("optimizer.decay") != "times_rate":
        reason = "part of the gradient, or of the direction whose length the layer's norm sets"
        yield from decay(ask, reason, source="")
        return
    after = rounded(ask.value(key) * math.sqrt(ask.kappa))
    reason = "rate times decay an update, k times fewer updates, a rate of the root of k"
    yield ask.moved(key, after, reason, "arithmetic")
