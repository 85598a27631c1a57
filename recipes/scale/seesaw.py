"""`recipes scale --seesaw`: where the schedule would cut the rate, grow the batch instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, RecipeError
from recipes.planning.rates import batch_size_at, full_rate_at, learning_rate_at
from recipes.reading.open import OpenedRecipe, open_recipe
from recipes.scale.batch import forgetting_by_samples, with_positions
from recipes.scale.derive import Scaled, derived_text, require_name, write_new
from recipes.scale.request import Change, Request, by_hand, rounded
from recipes.schema import Recipe
from recipes.schema.positions import last_multiple, next_multiple
from recipes.schema.vocabulary import Vocabulary, rate_rule

_GRID = 4096  # positions at which the schedule is looked at before a halving is found between two of them
_FURTHER = 20  # halvings after the batch has stopped growing, to a millionth
_CURVE_ENDS = 0.99  # of the run: from here on none of these, since a curve to 0 halves without end
_POSITIONS = 40
_TOLERANCE = 1e-3  # positions and factors in the file have six digits
_BY_RATE = ("times_rate", "times_relative_rate")  # forms of weight decay
_SOURCE = "Meterez et al. 2025, arXiv 2510.14717 (abstract); for SGD Smith et al. 2017, arXiv 1711.00489"


def seesaw_recipe(
    name_or_path: str | Path,
    *,
    batch: int,
    vocabulary: Vocabulary,
    out: Path | None = None,
    allow_code: bool = False,
    data_root: Path | None = None,
) -> Scaled:
    """A new recipe that extends another one and doubles its batch where the schedule halves the rate.

        batch 2^k B, rate eta / sqrt(2)^k        Adam, LAMB: where the rate first is at most eta / 2^k
        batch 2^k B, rate eta                    SGD, with momentum or without

    eta is the rate at the end of the warmup, below the full one if the schedule begins below 1. After the largest batch
    the rate is halved where the schedule halves it, at most 20 times and before the last hundredth of the run.

    Args:
        name_or_path, vocabulary, out, allow_code, data_root: as for `scale_recipe`.
        batch: the largest batch, which the doublings do not pass.
    Raises:
        InputRefused: the batch moves already, the schedule rises after the warmup, or within one that
            multiplies it, or never halves; no doubling fits; no rule is known for this optimizer; the new rate is not
            the promised one.
        RecipeError: the batch would grow above the number of training samples, or as `scale_recipe`.
    """
    options: dict[str, Any] = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    opened = open_recipe(name_or_path, **options)
    request = Request(opened=opened, batch=batch)
    stairs = _stairs(request)
    changes = tuple(with_positions(request, _changes(request, stairs)))
    file = out or Path(f"{opened.recipe.name}-seesaw-{batch}.yaml")
    require_name(file)
    title = f"{opened.recipe.name} with a batch that grows where the rate would fall, derived and not measured"

    def check() -> OpenedRecipe:
        made = open_recipe(file, **options)
        _require_promise(opened.recipe, made.recipe, stairs)
        return made

    made = write_new(file, derived_text(opened, changes, file, title, name=name_or_path), check)
    first = opened.recipe.batch.global_.sizes[0]
    return Scaled(
        recipe=opened.recipe.name,
        before=first,
        batch=max(made.recipe.batch.global_.sizes),
        rates=(request.rate, full_rate_at(made.recipe, made.recipe.epochs)),
        file=file,
        changes=changes,
        not_promised=tuple(_not_promised(request, made.recipe, stairs)),
    )


@dataclass(frozen=True, kw_only=True)
class _Stairs:
    """Where the batch doubles, then where the rate is halved.

    Args:
        doublings: of the batch; the halvings after these are of the rate.
        share: what a doubling leaves of the rate.
        begins: the share of the full rate at the end of the warmup.
        halvings: epochs where the rate is first 2^-1, 2^-2, ... of that.
        is_cut: whether the schedule halves the rate further.
    """

    doublings: int
    share: float
    begins: float
    halvings: list[float]
    is_cut: bool


def _not_promised(request: Request, after: Recipe, stairs: _Stairs) -> Iterator[str]:
    yield "accuracy: nobody has trained this file"
    yield "the same loss: the equivalence holds while the batch is below the noise scale of the gradient"
    if stairs.share < 1 and request.value("optimizer.weight_decay") and request.value("optimizer.decay") in _BY_RATE:
        yield (
            "the same weight decay: it follows the rate, and with each doubling an epoch takes another "
            f"{stairs.share:.3g} times as much from the weights as the old recipe takes there"
        )
    if stairs.is_cut:
        yield f"the schedule's last rates: it falls further, and nothing is halved after epoch {stairs.halvings[-1]:g}"
    if _falls_in_warmup(request.recipe, after):
        yield (
            "the same rate within the warmup: the schedule falls there, and the new rate has its value at the end of "
            f"the warmup from the start, {stairs.begins:.3g} of the full rate"
        )


def _stairs(request: Request) -> _Stairs:
    recipe = request.recipe
    first = recipe.batch.global_.sizes[0]
    doublings = int(math.log2(max(1, request.batch // first)))
    if len(recipe.batch.global_.sizes) > 1:
        raise InputRefused(f"{recipe.name}: its batch moves already")
    if doublings < 1:
        raise InputRefused(f"--batch {request.batch} is not twice the batch of {first}; it is the largest of the ramp")
    rule = rate_rule(recipe.optimizer)
    if rule is None:
        kind = request.value("optimizer.kind")
        known = "known: optimizers of SGD and of Adam"
        raise InputRefused(f"no rule says how {kind} exchanges rate and batch; {known}; {by_hand(kind)}")
    share = {"linear": 1.0, "sqrt": math.sqrt(0.5)}[rule]
    stairs = _halvings(request, doublings, share)
    _require_samples(request, first * 2 ** min(doublings, len(stairs.halvings)))
    return stairs


def _require_samples(request: Request, largest: int) -> None:
    """Refuse a ramp whose largest batch is more than the training samples, at the recipe's own batch."""
    num_train, first = request.opened.dataset.num_train, request.recipe.batch.global_.sizes[0]
    if largest <= num_train:
        return
    fits = first * 2 ** int(math.log2(num_train // first))
    way_out = f"ask for --batch {fits}" if fits > first else f"begin with a batch of at most {num_train // 2:,}"
    what = f"--batch {request.batch} lets it grow from {first:,} to {largest:,} samples, and there are {num_train:,}"
    origin = request.opened.reading.origin(("batch", "global"))
    raise RecipeError([origin.problem("batch.global", what, f"{way_out}; nothing was written")])


def _changes(request: Request, stairs: _Stairs) -> Iterator[Change]:
    recipe = request.recipe
    first = recipe.batch.global_.sizes[0]
    boundaries, sizes, factors, number = [0.0], [first], [rounded(stairs.begins)], 0
    for position, same in groupby(stairs.halvings):
        number += len([*same])
        grown = min(number, stairs.doublings)
        boundaries.append(position)
        factors.append(rounded(stairs.begins * stairs.share**grown * 0.5 ** (number - grown)))
        sizes.append(first * 2**grown)
    steps = [
        {"from": start, "size": size}
        for index, (start, size) in enumerate(zip(boundaries, sizes, strict=True))
        if not index or size != sizes[index - 1]
    ]
    reason = "twice the batch where the schedule would have halved the rate"
    yield request.moved("batch.global", steps, reason, _SOURCE)
    reason = "stays there" if stairs.share == 1 else "falls by the root of 2 there"
    schedule = {"kind": "SlowStart", "boundaries": boundaries[1:], "factors": factors}
    yield request.moved("learning_rate.schedule", schedule, f"{reason}, then is halved as before", _SOURCE)
    yield request.moved("learning_rate.scale_with", "initial", "the rate does not follow the growing batch", _SOURCE)
    yield from forgetting_by_samples(request)
    warmup = recipe.learning_rate.warmup
    if warmup is not None and warmup.joins == "before":
        yield request.moved("learning_rate.warmup.joins", "multiply", "the new stages count from the start of the run")


def _halvings(request: Request, doublings: int, share: float) -> _Stairs:
    recipe, every = request.recipe, request.recipe.learning_rate.every
    begin = _warmup_ends(recipe)

    def share_at(epoch: float) -> float:
        return learning_rate_at(recipe, epoch) / full_rate_at(recipe, epoch)

    grid = [begin + (recipe.epochs - begin) * number / _GRID for number in range(_GRID)]
    shares = [share_at(epoch) for epoch in grid]
    if any(after > before * (1 + 1e-9) for before, after in zip(shares, shares[1:], strict=False)):
        raise InputRefused(f"{recipe.name}: its rate rises after the warmup; seesaw replaces rates that only fall")
    if _rises_in_warmup(recipe, shares[0]):
        raise InputRefused(f"{recipe.name}: its schedule rises within the warmup; seesaw replaces rates that only fall")
    begins, found, is_cut = shares[0], [], False
    for number in count(1):
        limit = begins * 2.0**-number * (1 + 1e-9)  # 0.3 of 0.6 is half, however it was rounded
        index = next((index for index, share in enumerate(shares) if share <= limit), 0)
        if index == 0:  # never, or a rate of 0 from the warmup on
            break
        low, high = grid[index - 1], grid[index]
        while high - low > 1e-6:
            middle = (low + high) / 2
            if middle in (low, high):  # in a run of billions of epochs floats lie further apart than that
                break
            low, high = (low, middle) if share_at(middle) <= limit else (middle, high)
        further = number - doublings
        if further > _FURTHER or (further > 0 and high > _CURVE_ENDS * recipe.epochs):
            is_cut = True
            break
        # A stage that began just after a reading of the rate would be seen at the next one only.
        found.append(rounded(high) if every == "update" else last_multiple(high, every))
    if not found:
        raise InputRefused(f"{recipe.name}: its schedule never halves the rate, so there is nothing to exchange")
    return _Stairs(doublings=doublings, share=share, begins=begins, halvings=found, is_cut=is_cut)


def _warmup_ends(recipe: Recipe) -> float:
    """The epoch from which the rate is no longer one of the warmup, 0 without one: it may be read later than that."""
    warmup, every = recipe.learning_rate.warmup, recipe.learning_rate.every
    ends = 0.0 if warmup is None else warmup.shape.epochs
    if every == "update" or last_multiple(ends, every) == ends:
        return ends
    return min(next_multiple(ends, every), recipe.epochs)


def _rises_in_warmup(recipe: Recipe, begins: float) -> bool:
    """Whether a warmup times `begins`, the factor at its end, is above its product with the schedule anywhere."""
    warmup, every = recipe.learning_rate.warmup, recipe.learning_rate.every
    if warmup is None or warmup.joins != "multiply":
        return False
    positions = _positions_in_warmup(recipe)
    if every != "update":
        positions = [last_multiple(epoch, every) for epoch in positions]
    schedule = recipe.learning_rate.schedule
    return any(warmup.shape(at) * (begins - schedule(at)) > _TOLERANCE for at in positions)


def _falls_in_warmup(before: Recipe, after: Recipe) -> bool:
    """Whether the rate within the warmup is lower than before anywhere."""
    positions = _positions_in_warmup(before)
    return any(learning_rate_at(after, at) < (1 - _TOLERANCE) * learning_rate_at(before, at) for at in positions)


def _positions_in_warmup(recipe: Recipe) -> list[float]:
    ends = _warmup_ends(recipe)
    return [ends * (number + 0.5) / _POSITIONS for number in range(_POSITIONS) if ends]


def _require_promise(before: Recipe, after: Recipe, stairs: _Stairs) -> None:
    """Compare the new rate with the old one at 40 positions of the warmup and 40 of the rest.

        within the warmup   the old rate; at most that but where it is `over` the schedule
        then                old <= rate / (2 share)^j < 2 old            at 2^j times the batch, but where `is_cut`

    Raises:
        InputRefused: it differs; says where, and by what.
    """
    warmup = before.learning_rate.warmup
    begin, end = _warmup_ends(before), stairs.halvings[-1] if stairs.is_cut else before.epochs
    rest = [begin + (end - begin) * (number + 0.5) / _POSITIONS for number in range(_POSITIONS)]
    for epoch in (*_positions_in_warmup(before), *rest):
        rate, old = learning_rate_at(after, epoch), learning_rate_at(before, epoch)
        low = old * (2 * stairs.share) ** math.log2(batch_size_at(after, epoch) / before.batch.global_.sizes[0])
        high = 2 * low if epoch >= begin else low
        if epoch < begin and warmup.joins != "over":
            low = 0.0
        slack = _TOLERANCE * full_rate_at(before, epoch)
        if not low - slack <= rate <= high + slack:
            promised = f"{low:.6g}" if low == high else f"{low:.6g} to {high:.6g}"
            raise InputRefused(
                f"{before.name}: at epoch {epoch:.4g} the derived rate is {rate:.6g}, and {promised} is promised; "
                "nothing was written: write this recipe by hand, and tell us"
            )
