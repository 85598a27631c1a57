"""`recipes scale --seesaw`: where the schedule would cut the rate, grow the batch instead."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from recipes.planning.rates import full_rate_at, learning_rate_at
from recipes.reading.open import open_recipe
from recipes.scale.batch import forgetting_by_samples, with_positions
from recipes.scale.derive import Scaled, derived_text, require_name, write_new
from recipes.scale.request import Change, Request, by_hand, rounded
from recipes.schema.vocabulary import Vocabulary, rate_rule

_GRID = 4096  # positions at which the schedule is looked at before a halving is found between two of them
_FURTHER = 6  # halvings after the batch has stopped growing
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
    the rate is halved where the schedule halves it, at most six times.

    Args:
        name_or_path, vocabulary, out, allow_code, data_root: as for `scale_recipe`.
        batch: the largest batch, which the doublings do not pass.
    Raises:
        InputRefused: the batch moves already, the schedule rises after the warmup or never halves, no doubling fits,
            or no rule is known for this optimizer.
    """
    options: dict[str, Any] = {"vocabulary": vocabulary, "allow_code": allow_code, "data_root": data_root}
    opened = open_recipe(name_or_path, **options)
    request = Request(opened=opened, batch=batch)
    changes = tuple(with_positions(request, _changes(request)))
    file = out or Path(f"{opened.recipe.name}-seesaw-{batch}.yaml")
    require_name(file)
    title = f"{opened.recipe.name} with a batch that grows where the rate would fall, derived and not measured"
    made = write_new(file, derived_text(opened, changes, file, title), lambda: open_recipe(file, **options))
    first = opened.recipe.batch.global_.sizes[0]
    return Scaled(
        recipe=opened.recipe.name,
        before=first,
        batch=max(made.recipe.batch.global_.sizes),
        rates=(request.rate, learning_rate_at(made.recipe, made.recipe.epochs)),
        file=file,
        changes=changes,
        not_promised=(
            "accuracy: nobody has trained this file",
            "the same loss: the equivalence holds while the batch is below the noise scale of the gradient",
        ),
    )


def _changes(request: Request) -> Iterator[Change]:
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
    begins, halvings = _halvings(request, doublings + _FURTHER)
    boundaries, sizes, factors, number = [0.0], [first], [rounded(begins)], 0
    for position, same in groupby(halvings):
        number += len([*same])
        grown = min(number, doublings)
        boundaries.append(position)
        factors.append(rounded(begins * share**grown * 0.5 ** (number - grown)))
        sizes.append(first * 2**grown)
    steps = [
        {"from": start, "size": size}
        for index, (start, size) in enumerate(zip(boundaries, sizes, strict=True))
        if not index or size != sizes[index - 1]
    ]
    reason = "twice the batch where the schedule would have halved the rate"
    yield request.moved("batch.global", steps, reason, _SOURCE)
    reason = "falls by the root of 2 there" if rule == "sqrt" else "stays there"
    schedule = {"kind": "SlowStart", "boundaries": boundaries[1:], "factors": factors}
    yield request.moved("learning_rate.schedule", schedule, f"{reason}, then is halved as before", _SOURCE)
    yield request.moved("learning_rate.scale_with", "initial", "the rate does not follow the growing batch", _SOURCE)
    yield from forgetting_by_samples(request)
    warmup = recipe.learning_rate.warmup
    if warmup is not None and warmup.joins != "multiply":
        yield request.moved("learning_rate.warmup.joins", "multiply", "the new stages count from the start of the run")


def _halvings(request: Request, most: int) -> tuple[float, list[float]]:
    """The share of the full rate at the end of the warmup, and the epochs where it is first 2^-1, 2^-2, ... of that."""
    recipe = request.recipe
    warmup = recipe.learning_rate.warmup
    begin = 0.0 if warmup is None else warmup.shape.epochs

    def share_at(epoch: float) -> float:
        return learning_rate_at(recipe, epoch) / full_rate_at(recipe, epoch)

    grid = [begin + (recipe.epochs - begin) * number / _GRID for number in range(_GRID)]
    shares = [share_at(epoch) for epoch in grid]
    if any(after > before * (1 + 1e-9) for before, after in zip(shares, shares[1:], strict=False)):
        raise InputRefused(f"{recipe.name}: its rate rises after the warmup; seesaw replaces rates that only fall")
    begins, found = shares[0], []
    for number in range(1, most + 1):
        limit = begins * 2.0**-number * (1 + 1e-9)  # 0.3 of 0.6 is half, however it was rounded
        index = next((index for index, share in enumerate(shares) if share <= limit), 0)
        if index == 0:  # never, or a rate of 0 from the warmup on
            break
        low, high = grid[index - 1], grid[index]
        while high - low > 1e-6:
            middle = (low + high) / 2
            low, high = (low, middle) if share_at(middle) <= limit else (middle, high)
        found.append(float(f"{high:.6g}"))
    if not found:
        raise InputRefused(f"{recipe.name}: its schedule never halves the rate, so there is nothing to exchange")
    return begins, found
