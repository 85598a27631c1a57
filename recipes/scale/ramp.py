"""A batch ramp from what was measured: `recipes ramp`, and the batches of `kilobatch branch`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, listed
from recipes.planning.rates import LARGEST_SHARE, full_rate_at
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.scale.batch import forgetting_by_samples, with_positions
from recipes.scale.derive import Scaled, derived_text, require_name, write_new
from recipes.scale.request import Change, Request, by_hand
from recipes.schema.vocabulary import Vocabulary, rate_rule

MERRILL = "Merrill et al. 2025, arXiv 2505.23971 (a summary was read)"
_MCCANDLISH = "McCandlish et al. 2018, arXiv 1812.06162"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The largest batch that a measurement allows from an epoch on; None where it could not be resolved."""

    epoch: float
    batch: float | None


def ramp_recipe(
    name_or_path: str | Path,
    measured: Sequence[Measured],
    *,
    by: str,
    vocabulary: Vocabulary,
    out: Path | None = None,
    **options: Any,
) -> Scaled:
    """A new recipe whose batch doubles where a measurement allows it.

        B(t) = B 2^j, the largest that is at most the measurement at t and a tenth of the data, never less than before

    Args:
        measured: in the order of time.
        by: what was measured, in words.
        out: the new file; None: NAME-ramp.yaml.
        options: `allow_code` and `data_root` of `open_recipe`.
    Raises:
        InputRefused: nothing measured allows twice the first batch; or as `step_changes`.
    """
    opened = open_recipe(name_or_path, vocabulary=vocabulary, **options)
    steps = doublings(opened, measured)
    first = opened.recipe.batch.global_.sizes[0]
    if steps == [(0.0, first)]:
        known, num_train = [each.batch for each in measured if each.batch is not None], opened.dataset.num_train
        why = f"the largest allowed is {max(known):,.0f}" if known else "none of it could be resolved"
        if known and by == "the branches":  # which allow one sample less than the critical batch
            why = f"the critical batch is {max(known) + 1:,.0f}, and a ramp stays below it"
        if 2 * first > LARGEST_SHARE * num_train:
            why = f"{2 * first:,} samples are more than a tenth of {num_train:,}; {why}"
        raise InputRefused(f"{by}: nothing allows twice the batch of {first:,}: {why}; nothing was written")
    source = MERRILL if by == "the branches" else _MCCANDLISH
    reason = f"allowed by {by}"
    scaled = stepped_recipe(opened, steps, reason=reason, source=source, out=out, vocabulary=vocabulary, **options)
    return replace(scaled, not_promised=(*_stays(opened, measured, by, steps[-1][1]), *scaled.not_promised))


def _stays(opened: OpenedRecipe, measured: Sequence[Measured], by: str, largest: int) -> Iterator[str]:
    """Where the batch does not grow although no measurement forbids it; `largest` is the ramp's."""
    gaps = [each.epoch for each in measured if each.batch is None]
    if gaps:
        where = listed((f"{epoch:.2f}" for epoch in gaps), most=8)
        yield f"a larger batch where {by} is unresolved, at epoch {where}: the ramp makes no step there"
    twice, num_train = 2 * largest, opened.dataset.num_train
    known = [each.batch for each in measured if each.batch is not None and each.epoch < opened.recipe.epochs]
    if twice > LARGEST_SHARE * num_train and max(known) >= twice:
        what = f"{twice:,} samples are more than a tenth of {num_train:,}"
        yield f"the largest batch that is allowed by {by}: the ramp ends at {largest:,}, since {what}"


def doublings(opened: OpenedRecipe, measured: Sequence[Measured]) -> list[tuple[float, int]]:
    """Epoch and size of each step: the first batch, doubled as often as the measurements allow."""
    most = LARGEST_SHARE * opened.dataset.num_train
    steps = [(0.0, opened.recipe.batch.global_.sizes[0])]
    for each in measured:
        size = steps[-1][1]
        while each.batch is not None and 2 * size <= min(each.batch, most):
            size *= 2
        if size > steps[-1][1] and each.epoch < opened.recipe.epochs:
            steps = [*(step for step in steps if step[0] < each.epoch), (each.epoch, size)]
    return steps


def stepped_recipe(
    opened: OpenedRecipe,
    steps: Sequence[tuple[float, int]],
    *,
    reason: str,
    source: str,
    vocabulary: Vocabulary,
    out: Path | None = None,
    **options: Any,
) -> Scaled:
    """Write a recipe that extends another one and has these steps of the batch; raises as `step_changes`."""
    changes = step_changes(opened, steps, reason, source)
    file = out or Path(f"{opened.recipe.name}-ramp.yaml")
    require_name(file)
    title = f"{opened.recipe.name} with a batch that grows where {reason}, derived and not measured"
    text = derived_text(opened, changes, file, title)
    made = write_new(file, text, lambda: open_recipe(file, vocabulary=vocabulary, **options))
    return Scaled(
        recipe=opened.recipe.name,
        before=opened.recipe.batch.global_.sizes[0],
        batch=steps[-1][1],
        rates=(full_rate_at(opened.recipe, 0.0), full_rate_at(made.recipe, made.recipe.epochs)),
        file=file,
        changes=changes,
        not_promised=(
            "accuracy: nobody has trained this file",
            "the same loss: a ramp makes fewer updates, and what was measured belongs to the run that was measured",
        ),
    )


def required_rule(opened: OpenedRecipe) -> str:
    """The rule by which the rate of a recipe's optimizer follows the batch; raises InputRefused if none is known."""
    rule = rate_rule(opened.recipe.optimizer)
    if rule is None:
        kind = opened.tree["optimizer"]["kind"]
        what = f"no rule says how the rate of {kind} follows the batch; known: optimizers of SGD and Adam"
        raise InputRefused(f"{what}; {by_hand(kind)}")
    return rule


def step_changes(
    opened: OpenedRecipe, steps: Sequence[tuple[float, int]], reason: str, source: str = ""
) -> tuple[Change, ...]:
    """The changes of a recipe whose batch has these steps, with a rate that follows the batch from the first on.

        rate(t) times B(t) / B      SGD, with momentum or without; Adam and LAMB: times the root of it

    Positions in updates become epochs.

    Raises:
        InputRefused: no rule is known for this optimizer, or the recipe scales its rate by another one.
    """
    request = Request(opened=opened, batch=steps[-1][1])
    return tuple(with_positions(request, _of_steps(request, steps, reason, source)))


def _of_steps(request: Request, steps: Sequence[tuple[float, int]], reason: str, source: str) -> Iterator[Change]:
    opened, recipe = request.opened, request.recipe
    formula, sizes, warmup = recipe.learning_rate, recipe.batch.global_.sizes, recipe.learning_rate.warmup
    rule = required_rule(opened)
    yield request.moved("batch.global", [{"from": at, "size": size} for at, size in steps], reason, source)
    span = recipe.batch.norm_span
    if len(span.sizes) > 1:
        yield request.moved("batch.norm_span", [{"from": at, "size": span(at)} for at, _ in steps], "as before there")
    if formula.rule == rule and formula.scale_with == "current":
        yield request.kept("learning_rate.rule", "the rate follows the batch")
    elif len(sizes) == 1 and (warmup is None or warmup.target_batch == sizes[0]):
        why = "the rate follows the batch from the old rate on"
        yield request.moved("learning_rate.rule", rule, why, source)
        yield request.moved("learning_rate.scale_with", "current", why)
        yield request.moved("learning_rate.per", sizes[0], "the batch of the old rate")
        yield request.moved("learning_rate.reference", request.rate, "the old rate")
        if warmup is not None and hasattr(warmup.shape, "start"):
            key, start = "learning_rate.warmup.start", {"factor": warmup.shape.start}
            written = request.value(key)
            if isinstance(written, dict) and "rate" in written:
                start["rate"] = None  # removes the written one, which the new start is merged onto
            yield request.moved(key, start, "as before, as a factor")
    else:
        what = f"its rate follows the batch by {formula.rule}, {formula.scale_with}, where {rule}, current is known"
        raise InputRefused(f"{recipe.name}: {what}, and its batch or warmup moves already; write this ramp by hand")
    if warmup is not None:
        reached = [size for at, size in steps if at < warmup.shape.epochs][-1]
        if reached != warmup.target_batch:
            yield request.moved("learning_rate.warmup.target_batch", reached, "the batch at its end")
    if len(sizes) == 1:  # a ramp has its own way
        yield from forgetting_by_samples(request)
