"""The median rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainers.arguments import require_count


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
        """Optuna's MedianPruner, among trials that can be compared."""
        from optuna.pruners import MedianPruner

        from trainers.pruners.fair import Fair

        return Fair(MedianPruner(n_startup_trials=self.startup_trials))
