"""A grid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.conditional import combinations
from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of evenly spaced values; the last path of the space moves first.

    A budget with fewer trials than combinations tries the first ones; one with more goes on with random draws.

    Args:
        points: values of each range of numbers, ends included, at least 1; a categorical range has all its choices.
    Differs: from Optuna's GridSampler, which draws the combinations in random order and stops the search itself.
    """

    points: int = 3

    def __post_init__(self) -> None:
        require_count("Grid.points", self.points)

    def first(self, space: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All combinations, each with a value for every path that is active in it."""
        return list(combinations(space, self.points))

    def build(self, *, seed: int) -> Any:
        """Optuna's RandomSampler, for what comes after the grid."""
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)
