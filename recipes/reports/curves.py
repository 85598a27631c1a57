"""A recipe's curves as points to draw, with vertical lines at jumps, and as numbers."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.errors import Problem, RecipeError
from recipes.planning.rates import batch_size_at, image_size_at, learning_rate_at, momentum_at, weight_decay_at
from recipes.planning.timeline import timeline_of
from recipes.reading.open import OpenedRecipe
from recipes.schema import Recipe
from recipes.schema.positions import UNITS, typed_position

_NUM_POINTS = 1024
_JUMP = 1 / 500  # of the curve's range, between two neighbouring points


@dataclass(frozen=True, kw_only=True)
class RecipeCurves:
    """A recipe's formulas over its epochs; each curve is a pair of arrays, epochs and values."""

    learning_rate: tuple[np.ndarray, np.ndarray]
    global_batch_size: tuple[np.ndarray, np.ndarray]
    momentum: tuple[np.ndarray, np.ndarray] | None  # None where the optimizer has none
    image_size: tuple[np.ndarray, np.ndarray] | None  # None where it does not move


def recipe_curves(recipe: Recipe) -> RecipeCurves:
    """The curves of a recipe from epoch 0 to its end."""
    end = float(recipe.epochs)
    has_momentum = momentum_at(recipe, 0.0) is not None
    sizes = () if recipe.image_size is None else recipe.image_size.sizes
    return RecipeCurves(
        learning_rate=traced(lambda epoch: learning_rate_at(recipe, epoch), end),
        global_batch_size=traced(lambda epoch: batch_size_at(recipe, epoch), end),
        momentum=traced(lambda epoch: momentum_at(recipe, epoch), end) if has_momentum else None,
        image_size=traced(lambda epoch: image_size_at(recipe, epoch), end) if len(set(sizes)) > 1 else None,
    )


def traced(value_at: Callable[[float], float], end: float) -> tuple[np.ndarray, np.ndarray]:
    """Points of a curve on [0, end]: evenly spaced, and two around each jump, as close as floats can be.

    >>> epochs, values = traced(lambda epoch: 1.0 if epoch < 0.3 else 0.5, 1.0)
    >>> before = int(np.flatnonzero(values == 1.0)[-1])
    >>> bool(epochs[before] < 0.3 <= epochs[before + 1] < 0.3 + 1e-12)
    True
    """
    epochs = np.linspace(0.0, end, _NUM_POINTS)
    values = np.array([value_at(float(epoch)) for epoch in epochs], dtype=np.float64)
    jump = _JUMP * np.ptp(values)
    added = []
    for index in np.flatnonzero(np.abs(np.diff(values)) > jump):
        low, high = float(epochs[index]), float(epochs[index + 1])
        at_low, at_high = float(values[index]), float(values[index + 1])
        # The half that changes more contains the jump; a smooth piece changes less and less.
        while abs(at_high - at_low) > jump and low < (middle := (low + high) / 2) < high:
            at_middle = float(value_at(middle))
            if abs(at_middle - at_low) > abs(at_high - at_middle):
                high, at_high = middle, at_middle
            else:
                low, at_low = middle, at_middle
        added += [(low, at_low), (high, at_high)]
    if added:
        more = np.array(added, dtype=np.float64)
        epochs, values = np.concatenate([epochs, more[:, 0]]), np.concatenate([values, more[:, 1]])
        order = np.argsort(epochs, kind="stable")
        epochs, values = epochs[order], values[order]
    return epochs, values


def reads_better_in_decades(values: np.ndarray) -> bool:
    """Whether to draw a rate on a logarithmic axis: half its points are at a quarter of the peak or below.

    True for rates divided by ten at a few epochs; false for a cosine or a polynomial, which fall to 0.
    """
    positive = values[np.isfinite(values) & (values > 0)]
    return bool(len(positive)) and bool(np.median(positive) < positive.max() / 4)


def curve_points(opened: OpenedRecipe, epochs: Sequence[float]) -> list[dict[str, Any]]:
    """At each epoch of the run, what the first update that starts there or later trains with.

    `samples` are those before it. Where none starts any more, `update` is None and the values are the formulas'.
    """
    recipe, updates = opened.recipe, timeline_of(opened.recipe, opened.dataset)
    points = []
    for epoch in epochs:
        update = updates.first_update_at(epoch)
        is_over = update >= updates.num_updates
        at = epoch if is_over else updates.epoch_at(update)
        points.append(
            {
                "epoch": epoch,
                "update": None if is_over else update,
                "samples": updates.samples_at(update),
                "global_batch_size": batch_size_at(recipe, at),
                "learning_rate": learning_rate_at(recipe, at),
                "momentum": momentum_at(recipe, at),
                **({} if recipe.schedules.weight_decay is None else {"weight_decay": weight_decay_at(recipe, at)}),
                **({} if recipe.image_size is None else {"image_size": image_size_at(recipe, at)}),
            }
        )
    return points


def parse_at(text: str | None, opened: OpenedRecipe) -> list[float]:
    """The epochs of `--at 0,2.5,500up`; by default every whole epoch and the end.

    Raises:
        RecipeError: a part is no position, or lies after the end of the run.
    """
    end = opened.recipe.epochs
    if text is None:
        return [*map(float, range(math.ceil(end))), end]
    timeline = timeline_of(opened.recipe, opened.dataset)
    end = max(end, timeline.epoch_at(timeline.num_updates))  # of the last update, which is whole
    problems, epochs, column = [], [], 1
    for part in text.split(","):
        try:
            at = typed_position(
                part.strip(),
                num_train=opened.dataset.num_train,
                epochs=opened.recipe.epochs,
                updates_to_samples=timeline.samples_at,
            )
            epochs.append(at)
            if at > end:
                raise ValueError(f"{part.strip()} lies after the end of the run, {end:g}")
        except ValueError as error:
            way_out = f"write {UNITS}, with commas between"
            problems.append(
                Problem(file="command line", line=1, column=column, path="--at", what=str(error), way_out=way_out)
            )
        column += len(part) + 1
    if problems:
        raise RecipeError(problems)
    return epochs


def points_text(rows: Sequence[dict[str, Any]], *, width: int | None = None, cut: str | None = None) -> str:
    """Rows of the same keys as a table: numbers to the right, text to the left; an empty column is left out.

    Args:
        width: characters of a line, of the terminal by default, if there is one. Columns that do not fit go on in
            a table below, behind the first column again, whose texts lose their middle beyond half of a line.
        cut: the last column, of text, which is cut to what is left of a line where that has 20 characters or more.
    """
    if not rows:
        return ""
    if width is None and sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
    columns = []
    for key, value in rows[0].items():
        cells = [key, *(_cell(row[key]) for row in rows)]
        if not any(cells[1:]):
            continue
        if width and not columns:
            cells = [_without_middle(cell, max(width // 2, 20)) for cell in cells]
        side, longest = ">" if isinstance(value, int | float) else "<", max(map(len, cells))
        columns.append((key, [f"{cell:{side}{longest}}" for cell in cells]))
    first = columns[0][1]
    tables = [[first]]
    for key, column in columns[1:]:
        least = min(len(column[0]), 20) if key == cut else len(column[0])
        if width and len(tables[-1]) > 1 and least > _room(tables[-1], width):
            tables.append([first])
        if width and key == cut:
            room = max(_room(tables[-1], width), 20)
            column = [cell if len(cell.rstrip()) <= room else f"{cell[: room - 1]}…" for cell in column]
        tables[-1].append(column)
    return "\n\n".join("\n".join("  ".join(line).rstrip() for line in zip(*table, strict=True)) for table in tables)


def _without_middle(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[most // 2 + 1 - most :]}"


def _room(columns: list[list[str]], width: int) -> int:
    """Characters that are left of a line for one more column."""
    return width - sum(len(column[0]) + 2 for column in columns)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
