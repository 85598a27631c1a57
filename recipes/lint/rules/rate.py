"""Rules on how the rate follows the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recipes.lint.case import Case, Fault
from recipes.planning.rates import LINEAR_HOLDS_TO, batch_size_at, full_rate_at, largest_linear_batch, learning_rate_at
from recipes.schema.vocabulary import rate_rule

_LARGEST_UNSCALED = 8


def unscaled_rate(case: Case) -> Iterator[Fault]:
    """The reference batch's rate for a batch that is more than 8 times larger, with SGD.

    The run makes that many times fewer updates of the same size. It ends before the network is trained.

    Way out: `rule: linear`, with a warmup; where the rate was found at this batch, give this batch as `per`.
    Source: Goyal et al. 2017, arXiv 1706.02677, comparison of scaling rules at batch 8,192: top-1 error 41.67 % at rate
        0.1, 23.74 % at 3.2.
    Fires:
        learning_rate: {rule: none, warmup: null}
    Quiet:
        batch: {global: 2048}
        learning_rate: {rule: none, warmup: null}
    """
    formula = case.recipe.learning_rate
    if case.is_momentum_sgd and formula.rule == "none" and case.growth > _LARGEST_UNSCALED:
        yield Fault(
            keys=("learning_rate.rule", "batch.global"),
            what=f"the rate of batch {formula.per:,} at batch {case.first_batch:,}, {case.growth:g} times larger",
            way_out=f"write `rule: linear` with a warmup, or `per: {case.first_batch}` if the rate was found there",
        )


def scaled_twice(case: Case) -> Iterator[Fault]:
    """A rate that follows the batch by rule and once more by hand.

    `rule` multiplies the reference rate already. Detected are: AdaScale, whose gain scales too, with a rule; a
    `reference` that is scaled with the batch, compared with the recipe that this one extends; a schedule that steps up
    by the same factor where a ramp does.

    Way out: leave `reference` and `per` as they were found, or write `rule: none` and scale by hand.
    Source: Goyal et al. 2017, arXiv 1706.02677, linear scaling rule: k times the batch, k times the rate; AdaScale:
        Johnson et al. 2020, arXiv 2007.05105.
    Fires:
        batch: {global: 4096}
        learning_rate: {reference: 0.05}
    Quiet:
        batch: {global: 4096}
        learning_rate: {reference: 0.09}
    """
    formula = case.recipe.learning_rate
    if formula.rule == "none":
        return
    if case.optimizer["kind"] == "AdaScale":
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind"),
            what=f"rule {formula.rule}, and the gain of AdaScale scales as well",
            way_out="write `rule: none`",
        )
    if (ratio := _scaled_by_hand(case)) is not None:
        yield Fault(
            keys=("learning_rate.reference",),
            what=f"{ratio:g} times the reference rate of {case.base.recipe.name}, as the batch, under the same rule",
            way_out=f"write {case.base.recipe.learning_rate.reference:g}: the rule scales it",
        )
    for start in _steps_up_with_batch(case):
        yield Fault(
            keys=("learning_rate.schedule",),
            what=f"the schedule steps up with the batch at {start:g}, and rule {formula.rule} does too",
            way_out="keep the schedule flat there, or write `scale_with: initial`",
        )


def linear_beyond_8k(case: Case) -> Iterator[Fault]:
    """Linear scaling of SGD's rate to a batch above 8,192.

    Up to 8,192 the error stays that of batch 256. Beyond, it grows with every doubling, with or without warmup. A ramp
    counts by the rate that it leads to: a batch that doubles where the rate falls to a fifth is not reported.

    Way out: a batch of at most 8,192 at first and a ramp where the rate falls, Lars, or a rate that was tuned at this
        batch.
    Source: Goyal et al. 2017, arXiv 1706.02677, figure 3: top-1 error 23.74 % at 8,192, 24.79 % at 16,384,
        27.55 % at 32,768, 33.96 % at 65,536. All on ImageNet.
    Fires:
        batch: {global: 16384}
    Quiet:
        batch: {global: 8192}
    """
    formula = case.recipe.learning_rate
    reach = largest_linear_batch(case.recipe)
    if case.is_momentum_sgd and formula.rule == "linear" and reach > max(LINEAR_HOLDS_TO, formula.per):
        yield Fault(
            keys=("batch.global", "learning_rate.rule"),
            what=f"linear scaling from {formula.per:,} to {reach:,.0f}, seen to hold to {LINEAR_HOLDS_TO:,}",
            way_out="begin with 8192 and grow the batch where the rate falls, use Lars, or tune the rate at this batch",
        )


def linear_adam(case: Case) -> Iterator[Fault]:
    """Linear scaling of the rate of Adam or LAMB.

    Both divide the gradient by the root of its mean square, which is mostly noise. The noise falls with the root of the
    batch, so at a constant rate the useful part of a step already grows by that root. The square root rule adds the
    other root.

    Way out: `rule: sqrt`; `kilobatch recipes scale` moves the betas and epsilon with it.
    Source: Malladi et al. 2022, arXiv 2205.10287, the square root scaling rule; the table of rates
        of You et al. 2019, arXiv 1904.00962 (not checked).
    Fires:
        learning_rate: {reference: 0.001, schedule: {kind: Cosine}}
        optimizer: {kind: Adam, weight_decay: 0.0}
    Quiet:
        learning_rate: {reference: 0.001, rule: sqrt, schedule: {kind: Cosine}}
        optimizer: {kind: Adam, weight_decay: 0.0}
    """
    formula = case.recipe.learning_rate
    if rate_rule(case.recipe.optimizer) == "sqrt" and formula.rule == "linear" and case.growth != 1:
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind"),
            what=f"linear scaling by {case.growth:g} for {case.optimizer['kind']}",
            way_out="write `rule: sqrt`",
        )


def scaled_lars(case: Case) -> Iterator[Fault]:
    """A rate of LARS that follows the batch by a rule.

    A layer's step is proportional to its weights and not to its gradient. Over the published points from 1,632 to
    67,840 the rate grows about as B ** 0.3. Neither the linear nor the square root rule fits.

    Way out: `rule: none` and the rate of the nearest published point; `kilobatch recipes scale` interpolates.
    Source: reference convergence points of MLPerf Training, ResNet-50 with LARS.
    Fires:
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}
    Quiet:
        learning_rate: {reference: 17.0, rule: none}
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}
    """
    formula = case.recipe.learning_rate
    if case.optimizer["kind"] == "Lars" and formula.rule != "none" and case.growth != 1:
        yield Fault(
            keys=("learning_rate.rule", "optimizer.kind"),
            what=f"{formula.rule} scaling by {case.growth:g} for Lars",
            way_out="write `rule: none` and a rate that was found at this batch",
        )


def _scaled_by_hand(case: Case) -> float | None:
    """The ratio of the reference rates of recipe and base, if it equals the ratio of their batches; else None."""
    if case.base is None:
        return None
    formula, before = case.recipe.learning_rate, case.base.recipe.learning_rate
    same_rule = (formula.rule, formula.per) == (before.rule, before.per)
    growth = case.first_batch / case.base.recipe.batch.global_.sizes[0]
    ratio = formula.reference / before.reference
    return ratio if same_rule and growth != 1 and math.isclose(ratio, growth, rel_tol=0.01) else None


def _steps_up_with_batch(case: Case) -> Iterator[float]:
    """Boundaries of the ramp at which the schedule's factor grows by as much as the scaled rate."""
    for start in case.recipe.batch.global_.boundaries[1:]:
        before = math.nextafter(start, 0)
        if batch_size_at(case.recipe, start) <= batch_size_at(case.recipe, before):
            continue
        scaled = full_rate_at(case.recipe, start) / full_rate_at(case.recipe, before)
        moved = learning_rate_at(case.recipe, start) / max(learning_rate_at(case.recipe, before), 1e-300)
        if scaled > 1 and math.isclose(moved / scaled, scaled, rel_tol=0.01):
            yield start
