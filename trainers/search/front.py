"""The Pareto front of a search's trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def front(values: Mapping[int, Sequence[float]], directions: Sequence[str]) -> list[int]:
    """The numbers of the trials on the Pareto front (no other trial dominates them), best first objective first.

    With one objective: the best trial and those of the same value, the earliest first.

    Args:
        values: number of the trial -> its objectives.
        directions: of each objective: `maximize` or `minimize`.

    >>> front({0: (0.9, 3.0), 1: (0.8, 1.0), 2: (0.8, 2.0)}, ("maximize", "minimize"))
    [0, 1]
    """
    signs = [-1 if direction == "maximize" else 1 for direction in directions]
    lower = {
        number: tuple(sign * value for sign, value in zip(signs, own, strict=True)) for number, own in values.items()
    }
    found: list[int] = []
    for number in sorted(lower, key=lambda number: (lower[number], number)):  # no trial is dominated by a later one
        if not any(_beats(lower[other], lower[number]) for other in found):
            found.append(number)
    return found


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether `one` dominates `other`: as good in every objective and better in one; lower is better."""
    return one != other and all(mine <= its for mine, its in zip(one, other, strict=True))
