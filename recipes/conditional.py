"""Conditional ranges of a search's space, which belong to some trials only: `when: {optimizer.kind: [Lars]}`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from recipes.ranges import Float
from recipes.reading import Reading

__all__ = ["circumstances", "combinations", "is_active", "refuse_conditions", "said", "suggested"]

Space = Mapping[str, Any]  # dotted path -> range, as in `Search.space`


def suggested(space: Space, trial: Any) -> dict[str, Any]:
    """A value from Optuna's trial for each active path, those that others depend on first."""
    values: dict[str, Any] = {}
    for path in _in_order(space):
        if is_active(space, path, values):
            values[path] = space[path].suggest(trial, path)
    return values


def combinations(space: Space, points: int) -> Iterator[dict[str, Any]]:
    """Every combination of evenly spaced values, each once; the last path changes fastest.

    >>> from recipes.ranges import Categorical, Int
    >>> space = {"kind": Categorical(choices=("a", "b")), "more": Int(low=1, high=2, when={"kind": ("b",)})}
    >>> list(combinations(space, 2))
    [{'kind': 'a'}, {'kind': 'b', 'more': 1}, {'kind': 'b', 'more': 2}]
    """
    yield from _grown({}, space, _in_order(space), points)


def is_active(space: Space, path: str, values: Mapping[str, Any]) -> bool:
    """Whether a trial has a value at a path.

    Args:
        space: of the search.
        path: in the space.
        values: the trial's values of the paths before this one in the order of `suggested`.
    """
    return all(other in values and _among(values[other], wanted) for other, wanted in space[path].when.items())


def circumstances(space: Space, path: str) -> list[dict[str, Any]]:
    """Every combination of the other paths' values, as named by `when`, that makes a path active."""
    conditions = space[path].when
    found = []
    for chosen in itertools.product(*conditions.values()):
        values: dict[str, Any] = {}
        for other in conditions:
            values |= circumstances(space, other)[0]
        found.append({**values, **dict(zip(conditions, chosen, strict=True))})
    return found


def said(values: Mapping[str, Any]) -> str:
    """Values in a message.

    >>> said({"optimizer.kind": "Lars", "epochs": 3})
    'optimizer.kind "Lars" and epochs 3'
    """
    return " and ".join(f"{path} {json.dumps(value)}" for path, value in values.items())


def refuse_conditions(reading: Reading, space: Space) -> None:
    """Notes every condition that names no path of the space, or impossible values, or depends on itself.

    Args:
        reading: takes the problems.
        space: with unchecked conditions.
    """
    for path, range_ in space.items():
        for other, wanted in range_.when.items():
            at = ("space", path, "when", other)
            if other not in space:
                reading.refuse(at, f"{other} is not in the space", "name another path of `space`", at_key=True)
            elif isinstance(space[other], Float):
                reading.refuse(at, f"{other} can be any number", "name a Categorical or an Int", at_key=True)
            elif not wanted:
                reading.refuse(at, "holds no values", "name those with which this range is searched")
            else:
                for place, value in enumerate(wanted):
                    if not space[other].holds(value):
                        way_out = "name a value that it can have"
                        reading.refuse((*at, place), f"{json.dumps(value)} is never the value of {other}", way_out)
        if path in _needed(space, path):
            reading.refuse(("space", path, "when"), "depends on itself", "remove one of these conditions", at_key=True)


def _grown(values: dict[str, Any], space: Space, rest: list[str], points: int) -> Iterator[dict[str, Any]]:
    if not rest:
        yield values
    elif not is_active(space, rest[0], values):
        yield from _grown(values, space, rest[1:], points)
    else:
        for value in space[rest[0]].spread(points):
            yield from _grown({**values, rest[0]: value}, space, rest[1:], points)


def _in_order(space: Space) -> list[str]:
    """The paths of a space, each after those that it depends on, otherwise in the order of the file."""
    found: dict[str, None] = {}

    def visit(path: str) -> None:
        if path not in found:
            for other in space[path].when:
                visit(other)
            found[path] = None

    for path in space:
        visit(path)
    return list(found)


def _needed(space: Space, path: str) -> set[str]:
    """All paths that a path depends on, directly or not; it terminates on cyclic conditions too."""
    found: set[str] = set()
    waiting = list(space[path].when)
    while waiting:
        other = waiting.pop()
        if other in space and other not in found:
            found.add(other)
            waiting += space[other].when
    return found


def _among(value: Any, wanted: tuple[Any, ...]) -> bool:
    """Whether a value is one of `wanted`; true is not 1."""
    return any(type(one) is type(value) and one == value for one in wanted)
