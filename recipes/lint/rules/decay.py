"""Rules on weight decay, and on parameters that LARS and LAMB should not scale."""

from __future__ import annotations

import math
from collections.abc import Iterator

from recipes.lint.case import Case, Fault
from recipes.planning.rates import full_rate_at, weight_decay_at
from recipes.reading.read import names_in
from recipes.schema.vocabulary import is_layerwise


def decay_on_norm(case: Case) -> Iterator[Fault]:
    """Weight decay on the scales and shifts of normalisation.

    They act on normalised values. Decay pulls them to 0 without benefit, and more strongly at a larger rate.

    Way out: `no_decay: [norm]`.
    Source: Goyal et al. 2017, arXiv 1706.02677; Jia et al. 2018, arXiv 1807.11205, who left out biases too.
    Fires:
        optimizer: {no_decay: []}
    Quiet:
        optimizer: {no_decay: [], weight_decay: 0.0}
    """
    decay, spared = weight_decay_at(case.recipe, 0.0), names_in(case.optimizer.get("no_decay"))
    if case.has_norm and decay > 0 and "norm" not in spared and not is_layerwise(case.recipe.optimizer):
        yield Fault(
            keys=("optimizer.no_decay", "optimizer.weight_decay", "optimizer.kind"),
            what=f"weight decay {decay:g} reaches the scales and shifts of normalisation",
            way_out="write `no_decay: [norm]`",
        )


def decay_with_batch(case: Case) -> Iterator[Fault]:
    """Weight decay of SGD that is scaled up with the batch, compared with the recipe that this one extends.

    A step shrinks the weights by rate times decay. With a linearly scaled rate, the same decay shrinks them as much in
    an epoch as before, and a scaled decay shrinks them too much. Decay relative to the full rate
    (`times_relative_rate`) does not depend on the rate. It has to grow and is not reported, nor is decay beside a rate
    that stays as it was.

    Way out: the decay of the reference.
    Source: Goyal et al. 2017, arXiv 1706.02677: 1e-4 from batch 64 to 65,536; Remark 1, on scaling the loss.
    Fires:
        batch: {global: 4096}
        optimizer: {weight_decay: 5e-5}
    Quiet:
        batch: {global: 4096}
        optimizer: {weight_decay: 1e-4}
    """
    if case.base is None or not case.is_sgd or case.optimizer.get("decay") == "times_relative_rate":
        return
    decay, before = (weight_decay_at(recipe, 0.0) for recipe in (case.recipe, case.base.recipe))
    growth = case.first_batch / case.base.recipe.batch.global_.sizes[0]
    rates = full_rate_at(case.recipe, 0.0) / max(full_rate_at(case.base.recipe, 0.0), 1e-300)
    if math.isclose(rates, 1, rel_tol=0.01):  # as many times fewer updates of the same size: a scaled decay is the same
        return
    if before > 0 and growth != 1 and math.isclose(decay / before, growth, rel_tol=0.01):
        yield Fault(
            keys=("optimizer.weight_decay", "schedules.weight_decay"),
            what=f"{growth:g} times the {before:g} of {case.base.recipe.name}, as the batch",
            way_out=f"write {before:g}",
        )


def lars_on_vectors(case: Case) -> Iterator[Fault]:
    """LARS or LAMB that scales one-dimensional parameters.

    Scales, shifts and biases start at 0 or 1 and change little. A step in proportion to their norm is almost zero or
    far too long.

    Way out: `no_decay: [norm, bias]`, which leaves them unscaled as well.
    Source: You et al. 2017, arXiv 1708.03888, and the skip list of its code; You et al. 2019, arXiv 1904.00962.
    Fires:
        learning_rate: {reference: 17.0, rule: none, warmup: {start: 0}}
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm]}
    Quiet:
        learning_rate: {reference: 17.0, rule: none, warmup: {start: 0}}
        optimizer: {kind: Lars, weight_decay: 1e-4, no_decay: [norm, bias]}
    """
    if not is_layerwise(case.recipe.optimizer):
        return
    scaled = [word for word in ("norm", "bias") if word not in case.optimizer.get("no_decay", ("norm", "bias"))]
    if scaled:
        yield Fault(
            keys=("optimizer.no_decay", "optimizer.kind"),
            what=f"{case.optimizer['kind']} scales what it does not name: {', '.join(scaled)}",
            way_out="write `no_decay: [norm, bias]`",
        )
