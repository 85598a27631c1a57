"""The percentile rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lr_schedules.units import require_number
from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class Percentile:
    """Ends a trial whose best report so far is not among the best `keep` percent of complete trials at that report.

    Args:
        keep: percent of trials that go on, above 0 and at most 100; 50 is `Median`.
        startup_trials: comparable complete trials before any trial is ended, at least 1.
    Source: Optuna's PercentilePruner.
    """

    keep: float = 25.0
    startup_trials: int = 5

    def __post_init__(self) -> None:
        require_number("Percentile.keep", self.keep, above=0, at_most=100)
        require_count("Percentile.startup_trials", self.startup_trials)

    def build(self) -> Any:
        """Optuna's PercentilePruner, among trials that can be compared."""
        from optuna.pruners import PercentilePruner

        from trainers.pruners.fair import Fair

        return Fair(PercentilePruner(self.keep, n_startup_trials=self.startup_trials))
