"""Pruners of a search: each is a frozen dataclass whose `build()` returns one of Optuna's.

To add one, add a class and its name in `__all__`. `Median` ends running trials, among those that `FairPruner` finds
comparable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from recipes.arguments import require_count

__all__ = ["Median"]


@dataclass(frozen=True, kw_only=True)
class Median:
    """Ends a trial whose best report so far is worse than the median of complete trials at the same report.

    Args:
        startup_trials: comparable complete trials before any trial is ended, at least 1.
    Source: Golovin et al. 2017 (not checked); Optuna's MedianPruner.
    """

    startup_trials: int = 5

    def __post_init__(self) -> None:
        require_count("Median.startup_trials", self.startup_trials)

    def build(self) -> Any:
        from optuna.pruners import MedianPruner

        from trainers.search.fair_pruning import FairPruner

        return FairPruner(MedianPruner(n_startup_trials=self.startup_trials))
