"""Square root scaling: Adam, LAMB, and the RMSprop part of RmspropWarmup."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

from recipes.errors import InputRefused
from recipes.rates import full_rate
from recipes.scale.linear import decay, linear_rate
from recipes.scale.request import Change, Request, rounded

__all__ = ["rmsprop_warmup", "square_root"]

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
