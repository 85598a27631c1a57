"""The values of a difference as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recipes.diff.compare import MISSING, Difference

__all__ = ["value_text", "value_texts"]


def value_texts(difference: Difference, *, space: str = " ") -> list[str]:
    """The values of all recipes, `-` for a missing one; floats to six digits if these distinguish them.

    Args:
        difference: between recipes.
        space: text between a key and its value.
    """
    values = difference.values
    if difference.path[-1].startswith("from "):  # a step of only some recipes' ramps
        return ["as before" if value is MISSING else str(value) for value in values]
    exact = [value_text(value, space) for value in values]
    short = [value_text(value, space, digits=6) for value in values]
    return short if len(set(short)) == len(set(exact)) else exact


def value_text(value: Any, space: str = " ", *, digits: int | None = None) -> str:
    """A value in a line, as in a recipe; a component as its kind and its keys.

    Args:
        value: of a tree, or MISSING.
        space: text between a key and its value.
        digits: of a float; None for all.

    >>> value_text({"kind": "Warm", "epochs": 5, "start": {"rate": 0.1}}), value_text([1, None, True])
    ('Warm: epochs 5, start {rate 0.1}', '[1, null, true]')
    """

    def inside(item: Any) -> str:
        text = value_text(item, space, digits=digits)
        return f"{{{text}}}" if isinstance(item, Mapping) and item else text

    if value is MISSING:
        return "-"
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key}{space}{inside(item)}" for key, item in value.items() if key != "kind")
        return ": ".join(filter(None, [str(value.get("kind", "")), pairs])) or "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(inside, value))}]"
    if isinstance(value, float) and digits is not None:
        return f"{value:.{digits}g}"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
