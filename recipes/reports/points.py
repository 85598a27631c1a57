"""A recipe's curves as numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from recipes.errors import Problem, RecipeError
from recipes.open import OpenedRecipe
from recipes.planning.timeline import timeline_of
from recipes.positions import UNITS, parse_position
from recipes.rates import batch_size_at, image_size_at, learning_rate_at, momentum_at

__all__ = ["curve_points", "parse_at", "points_text"]


def curve_points(opened: OpenedRecipe, epochs: Sequence[float]) -> list[dict[str, Any]]:
    """The formulas at exactly each epoch; `update` and `samples` are of the first update that starts there or later.

    At the end of the run, that is the update after the last one.

    Args:
        opened: the recipe.
        epochs: at most the length of the run.
    """
    recipe, updates = opened.recipe, timeline_of(opened.recipe, opened.dataset)
    points = []
    for epoch in epochs:
        update = updates.first_update_at(epoch)
        points.append(
            {
                "epoch": epoch,
                "update": update,
                "samples": updates.samples_at(update),
                "global_batch_size": batch_size_at(recipe, epoch),
                "learning_rate": learning_rate_at(recipe, epoch),
                "momentum": momentum_at(recipe, epoch),
                **({} if recipe.image_size is None else {"image_size": image_size_at(recipe, epoch)}),
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
    problems, epochs, column = [], [], 1
    for part in text.split(","):
        try:
            epochs.append(_parse_part(part.strip(), opened))
            if epochs[-1] > end:
                raise ValueError(f"{part.strip()} lies after the end of the run, {end:g}")
        except ValueError as error:
            way_out = f"write {UNITS}, with commas between"
            place = {"file": "command line", "line": 1, "column": column, "path": "--at"}
            problems.append(Problem(**place, what=str(error), way_out=way_out))
        column += len(part) + 1
    if problems:
        raise RecipeError(problems)
    return epochs


def _parse_part(part: str, opened: OpenedRecipe) -> float:
    try:
        value: float | str = float(part)
    except ValueError:
        value = part
    return parse_position(
        value,
        num_train=opened.dataset.num_train,
        epochs=opened.recipe.epochs,
        updates_to_samples=timeline_of(opened.recipe, opened.dataset).samples_at,
    )


def points_text(rows: Sequence[dict[str, Any]]) -> str:
    """Rows of the same keys as a table: numbers to the right, text to the left."""
    if not rows:
        return ""
    cells = [[_cell(row[key]) for key in rows[0]] for row in rows]
    widths = [max(map(len, column)) for column in zip(rows[0], *cells, strict=True)]
    aligned = [">" if isinstance(value, int | float) else "<" for value in rows[0].values()]
    lines = [
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(line, aligned, widths, strict=True)).rstrip()
        for line in [list(rows[0]), *cells]
    ]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.10g}" if isinstance(value, float) else str(value)
