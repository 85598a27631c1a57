"""LARS by interpolation between published points, the MLPerf recipes of the library."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from recipes.errors import InputRefused
from recipes.open import open_recipe
from recipes.registry import names
from recipes.scale.request import Change, Request, rounded
from recipes.vocabulary import Vocabulary

__all__ = ["Point", "between", "lars", "points"]

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
