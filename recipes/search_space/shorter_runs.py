"""A shorter run of the same form: every position and duration of the recipe is shortened by the same share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any, get_args, get_origin

from lr_schedules import BatchRamp, Exponential
from recipes.errors import InputRefused
from recipes.planning.timeline import Timeline, timeline
from recipes.reading.open import OpenedRecipe
from recipes.reading.read import fields_of, is_epochs, options_of
from recipes.schema import Warmup, WeightAverage
from recipes.schema.positions import first_sample_at

MIN_UPDATES = 5  # of a compressed run; assumed: with fewer, schedules hardly differ
_APART = ("evaluation",)  # not compressed: how often to evaluate is not part of the training


def compressed(opened: OpenedRecipe, share: Fraction) -> dict[str, Any]:
    """The overrides that compress a recipe's run: dotted path -> value, as `--set` takes them.

        s' = round(s * share)        s samples, of every position and duration: at least 1 if s is

    Compressed are the length of the run, warmup, schedule, steps of batch, norm span and image size, the start of a
    weight average, and all else that a component counts in epochs; also the ratio of `Exponential`, which is per epoch,
    and `per` of a weight average. Equal positions stay equal. Batches, rates and momentum stay, so there are fewer
    updates: a compressed run predicts which recipe is better only as well as short runs do.

    Args:
        opened: the recipe of the whole run.
        share: of its samples, above 0 and below 1.
    Raises:
        InputRefused: the run would have fewer than `MIN_UPDATES` updates, or a step of its batch or image size would
            have none.
    """
    assert 0 < share < 1
    shorten = partial(_shortened, share=share, num_train=opened.dataset.num_train)
    moved = {}
    for field in fields_of(type(opened.recipe)):
        if field.key not in _APART:
            value, tree = getattr(opened.recipe, field.name), opened.tree.get(field.key)
            moved |= _changes(field.key, tree, _moved(value, tree, field.hint, shorten, share))
    _require_long_enough(opened, share, shorten)
    return moved


def _shortened(position: float, *, share: Fraction, num_train: int) -> float:
    samples = first_sample_at(position, num_train)
    return float(Fraction(max(round(samples * share), 1), num_train)) if samples else 0.0


def _moved(value: Any, tree: Any, hint: Any, shorten: Callable[[float], float], share: Fraction) -> Any:
    """The resolved tree of a value with its times shortened."""
    if isinstance(value, float | int) and any(map(is_epochs, options_of(hint))):
        return shorten(value)
    if isinstance(value, BatchRamp) and isinstance(tree, list):
        starts = map(shorten, value.boundaries)
        return [{**step, "from": start} for step, start in zip(tree, starts, strict=True)]
    if isinstance(value, tuple) and isinstance(tree, list):
        hints = _hints_of_items(hint, len(value))
        return [_moved(*item, shorten, share) for item in zip(value, tree, hints, strict=True)]
    if not dataclasses.is_dataclass(value) or not isinstance(tree, Mapping):
        return tree
    if isinstance(value, Warmup):  # the keys of its shape stand beside its own
        value = value.shape
    inner = {
        field.key: _moved(getattr(value, field.name), tree[field.key], field.hint, shorten, share)
        for field in fields_of(type(value))
        if field.key in tree
    }
    return {**tree, **inner, **_by_rate(value, share)}


def _by_rate(value: Any, share: Fraction) -> dict[str, Any]:
    """Keys that give a speed and not a position, compressed."""
    if isinstance(value, Exponential):
        return {"ratio": float(value.ratio) ** float(1 / share)}
    if isinstance(value, WeightAverage):
        return {"per": max(1, round(value.per * share))}
    return {}


def _hints_of_items(hint: Any, count: int) -> tuple[Any, ...]:
    options = [option for option in options_of(hint) if get_origin(option) is tuple]
    inner = get_args(options[0]) if options else (Any, ...)
    return (inner[0],) * count if ... in inner else inner


def _changes(path: str, before: Any, after: Any) -> dict[str, Any]:
    """The values that differ, by their dotted paths; a list is replaced as a whole."""
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        changes: dict[str, Any] = {}
        for key in before:
            changes |= _changes(f"{path}.{key}", before[key], after[key])
        return changes
    return {} if before == after else {path: after}


def _require_long_enough(opened: OpenedRecipe, share: Fraction, shorten: Callable[[float], float]) -> None:
    subject = f"{opened.recipe.name} in {share} of its {opened.recipe.epochs:g} epochs"
    try:
        whole, short = (_timeline(opened, move) for move in (float, shorten))
        vanished = len(short.segments) < len(whole.segments)
    except ValueError:  # two steps at one sample
        vanished = True
    if vanished:
        raise InputRefused(f"{subject}: a step of its batch or images would have no update; lengthen `epochs`")
    if short.num_updates < MIN_UPDATES:
        raise InputRefused(f"{subject}: {short.num_updates} updates are fewer than {MIN_UPDATES}; lengthen `epochs`")


def _timeline(opened: OpenedRecipe, move: Callable[[float], float]) -> Timeline:
    def ramp(given: BatchRamp | None) -> BatchRamp | None:
        return given and BatchRamp(boundaries=tuple(map(move, given.boundaries)), sizes=given.sizes)

    recipe = opened.recipe
    return timeline(
        global_batch_size=ramp(recipe.batch.global_),
        norm_span=ramp(recipe.batch.norm_span),
        image_size=ramp(recipe.image_size),
        epochs=move(recipe.epochs),
        num_train=opened.dataset.num_train,
    )
