"""Linear scaling: SGD with any momentum, the SGD part of RmspropWarmup, and AdaScale, which scales its own rate."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lr_schedules import Product
from recipes.errors import InputRefused
from recipes.linear_reach import LINEAR_HOLDS_TO, linear_reach
from recipes.rates import full_rate
from recipes.scale.request import Change, Request, rounded

__all__ = ["ada_scale", "decay", "linear", "linear_rate"]

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
