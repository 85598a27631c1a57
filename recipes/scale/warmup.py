"""The warmup of SGD at another batch: kept, removed, or added where the schedule does not rise by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recipes.planning.looked_at import looked_at
from recipes.planning.rates import (
    LARGEST_WITHOUT_WARMUP,
    LINEAR,
    USUAL_WARMUP,
    full_rate,
    momentum_at,
    target_inside,
    usual_warmup_epochs,
)
from recipes.scale.request import Change, Request

GOYAL = "Goyal et al. 2017, arXiv 1706.02677"
_FEWEST_READINGS = 5  # of a warmup: torchvision reads one of five epochs once an epoch
_LOW_START = 0.5  # of the highest factor; lint's no-warmup and short-warmup judge so too
_SHORTEST_RISE = 1  # epoch, to 0.9 of it


def warmup_change(request: Request) -> Change:
    """The warmup: removed up to the reference batch, kept above it; five epochs if a larger batch has none yet."""
    formula = request.recipe.learning_rate
    momentum = momentum_at(request.recipe, 0.0) or 0.0
    step = full_rate(formula.reference, request.batch, rule=formula.rule, per=formula.per) / (1 - momentum)
    is_reference = formula.rule != "none" and request.batch <= formula.per and step <= LARGEST_WITHOUT_WARMUP
    key, source = "learning_rate.warmup", f"{GOYAL}, gradual warmup"
    warmup, given = request.recipe.learning_rate.warmup, request.value("learning_rate.warmup")
    if warmup is not None:
        given = without_target(given)
    if is_reference:
        return Change(key=key, before=given, after=None, reason="none up to the reference batch", source=source)
    if warmup is None and (request.kappa <= 1 or formula.rule not in (*LINEAR, "none")):
        return request.kept(key, "none, as before")
    if warmup is None and (rises_until := _rises_until(request)) is not None:
        return request.kept(key, f"none: the schedule rises by itself, until epoch {rises_until:.3g}")
    if warmup is None:
        after = _five_epochs(request)
        return request.moved(key, after, _why_so_long(request, after["epochs"]), source)
    return Change(key=key, before=given, after=given, reason="as many epochs as before, to the new rate", source=source)


def _rises_until(request: Request) -> float | None:
    """The epoch of the schedule's highest factor, if lint would take the rise to it for a warmup; else None."""
    formula, start = request.recipe.learning_rate, request.recipe.learning_rate.schedule(0.0)
    factors = {epoch: formula.schedule(epoch) for epoch in looked_at(request.recipe, request.opened.dataset)}
    highest = max(factors.values())
    nearly, rises_until = (next(at for at, it in factors.items() if it >= share * highest) for share in (0.9, 1))
    growth = float(request.kappa) if formula.rule == "none" else request.batch / formula.per
    step = request.rate * float(request.kappa) / (1 - (momentum_at(request.recipe, 0.0) or 0.0))
    is_low = start <= _LOW_START * highest and start * max(growth, step) <= LARGEST_WITHOUT_WARMUP
    return rises_until if is_low and nearly >= _SHORTEST_RISE else None


def _five_epochs(request: Request) -> dict[str, Any]:
    epochs = usual_warmup_epochs(request.recipe)
    whole = int(epochs) if epochs == int(epochs) else epochs
    made = {"kind": "GradualWarmup", "epochs": whole, "start": "reference", "joins": "multiply"}
    ramp = replace(request.recipe.batch.global_, sizes=tuple(request.sizes))
    formula = request.recipe.learning_rate
    inside = target_inside(ramp, epochs=epochs, rule=formula.rule, scale_with=formula.scale_with)
    return made if inside is None else {**made, "target_batch": inside}


def _why_so_long(request: Request, epochs: float) -> str:
    """The reason for the number of `_five_epochs`."""
    words = f"a rise in a straight line over {epochs:g} epochs"
    if epochs == USUAL_WARMUP:
        return words
    if epochs == usual_warmup_epochs(request.recipe, latest=request.recipe.epochs / 4):
        return f"{words}, a quarter of this run; {USUAL_WARMUP:g} in a longer one"
    if epochs == usual_warmup_epochs(request.recipe, latest=math.inf):
        return f"{words}, the shortest that lint takes for one; {USUAL_WARMUP:g} in a longer run"
    return f"{words}, up to the schedule's first step down; {USUAL_WARMUP:g} where it comes later"


def reading_change(request: Request, epochs: float, *, fewest: int = _FEWEST_READINGS) -> Iterator[Change]:
    """The rate is read at every update if `every` would read a new warmup of so many epochs too seldom."""
    every = request.recipe.learning_rate.every
    if every != "update" and epochs < fewest * every:
        reason = f"read every {every:g} epochs, the rate would jump within the new warmup of {epochs:g}"
        yield request.moved("learning_rate.every", "update", reason, "arithmetic")


def without_target(warmup: dict[str, Any]) -> dict[str, Any]:
    """A warmup without its `target_batch`, which is a change of its own."""
    return {name: value for name, value in warmup.items() if name != "target_batch"}
