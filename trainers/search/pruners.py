"""Pruners of a search: Optuna's, under Optuna's names; the keys beside `kind` are the arguments of Optuna's class.

A pruner's step is the number of a report: the same part of every trial's own run. To add one, add a class and its name
in `__all__`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from recipes.arguments import require_count

__all__ = ["MedianPruner"]


@dataclass(frozen=True, kw_only=True)
class MedianPruner:
    """Ends a trial whose best report so far is worse than the median of complete trials at the same report.

    Args:
        n_startup_trials: complete trials before any trial is ended, at least 0.
        n_warmup_steps: number of the first report at which a trial may be ended, at least 0: that at its warmup's end.
    Source: Golovin et al. 2017 (not checked).
    """

    n_startup_trials: int = 5
    n_warmup_steps: int = 0

    def __post_init__(self) -> None:
        for name in ("n_startup_trials", "n_warmup_steps"):
            require_count(f"MedianPruner.{name}", getattr(self, name), at_least=0)

    def build(self) -> Any:
        """Optuna's pruner."""
        from optuna.pruners import MedianPruner

        return MedianPruner(**asdict(self))
