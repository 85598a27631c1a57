"""Quantities derived from a recipe's values that matter at a large batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from recipes.cards.facts import card_facts, peak_rate, ramp_text
from recipes.families import MOMENTUM_SGD
from recipes.open import OpenedRecipe
from recipes.planning.timeline import Timeline, timeline_of
from recipes.rates import full_rate_at, learning_rate_at
from recipes.reports.wording import number
from recipes.schema import Recipe

__all__ = ["differing", "effects", "same_schedule"]

_DIGITS = 6
_MOST_UPDATES = 500_000  # comparing so many takes seconds, and a stranger's recipe may have any number
_ROUNDING = 1e-9  # relative; two ways to write a rate, such as 0.1 per 256 and 0.2 per 512, are rounded apart


def effects(opened: OpenedRecipe) -> dict[str, str]:
    """The derived quantities of a recipe in words; those that it does not have are left out."""
    return dict(_effects(opened))


def _effects(opened: OpenedRecipe) -> Iterator[tuple[str, str]]:
    recipe, updates = opened.recipe, timeline_of(opened.recipe, opened.dataset)
    yield "can be trained", "; ".join(card_facts(recipe.name, opened).obstacles) or "yes"
    yield "global batch", ramp_text(recipe.batch.global_)
    yield "norm span", ramp_text(recipe.batch.norm_span)
    yield "epochs", number(recipe.epochs, digits=_DIGITS)
    yield "updates", number(updates.num_updates)
    yield from _warmup(recipe, updates)
    yield "full rate", _full_rates(recipe)
    yield "rate, first update", _rate(learning_rate_at(recipe, 0.0))
    yield "rate, largest", _rate(peak_rate(recipe))
    yield "rate, last update", _rate(learning_rate_at(recipe, updates.epoch_at(updates.num_updates - 1)))
    yield from _decay(opened)


def same_schedule(one: OpenedRecipe, other: OpenedRecipe) -> bool | None:
    """Whether every update has the same batch and, up to rounding, learning rate; None if there are too many."""
    first, second = timeline_of(one.recipe, one.dataset), timeline_of(other.recipe, other.dataset)
    if (first.num_train, first.num_updates) != (second.num_train, second.num_updates):
        return False
    if first.num_updates > _MOST_UPDATES:
        return None
    return all(
        first.samples_at(update + 1) == second.samples_at(update + 1)
        and math.isclose(
            learning_rate_at(one.recipe, first.epoch_at(update)),
            learning_rate_at(other.recipe, second.epoch_at(update)),
            rel_tol=_ROUNDING,
        )
        for update in range(first.num_updates)
    )


def _warmup(recipe: Recipe, updates: Timeline) -> Iterator[tuple[str, str]]:
    warmup = recipe.learning_rate.warmup
    end = 0 if warmup is None else updates.first_update_at(warmup.shape.epochs)
    yield "warmup, samples", number(updates.samples_at(end)) if end else "none"
    yield "warmup, updates", number(end) if end else "none"


def _decay(opened: OpenedRecipe) -> Iterator[tuple[str, str]]:
    """The share of a weight that decay removes for each sample at the first full rate, before momentum.

    Linear scaling keeps it. Left out without decay, if the decay does not follow the rate, or if a step is not
    proportional to it.
    """
    tree, recipe = opened.tree["optimizer"], opened.recipe
    coupled = tree["kind"] in MOMENTUM_SGD and tree.get("decay", "coupled") == "coupled"
    if tree.get("weight_decay") and (coupled or tree.get("decay") == "times_rate"):
        rate = full_rate_at(recipe, 0.0)
        yield "rate x decay / batch", _rate(rate * tree["weight_decay"] / recipe.batch.global_.sizes[0])


def _full_rates(recipe: Recipe) -> str:
    """The full rate at the start, and at each step of the batch that changes it."""
    parts: list[str] = []
    before = None
    for start in recipe.batch.global_.boundaries:
        rate = full_rate_at(recipe, start)
        if rate != before:
            parts.append(f"from epoch {start:g} {_rate(rate)}" if parts else _rate(rate))
        before = rate
    return ", ".join(parts)


def _rate(rate: float) -> str:
    return f"{rate:.{_DIGITS}g}"


def differing(rows: Sequence[dict[str, str]]) -> dict[str, tuple[str, ...]]:
    """The quantities that differ, with the text of each recipe; `-` if a recipe does not have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    texts = {name: tuple(row.get(name, "-") for row in rows) for name in names}
    return {name: found for name, found in texts.items() if len(set(found)) > 1}
