"""Pruners of a search: each is a frozen dataclass whose `build()` returns one of Optuna's.

To add one, add a class and its name in `__all__`. `Median` ends running trials, among those that
`FairPruner` finds comparable. `SuccessiveHalving` also has `shares`: it chooses between whole runs of several lengths.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from recipes.arguments import require_count

__all__ = ["Median", "SuccessiveHalving"]


@dataclass(frozen=True, kw_only=True)
class SuccessiveHalving:
    """Trains every configuration in a short run first, and the best in longer ones: 1/9, 1/3 and all epochs by default.

        share of rung r = reduction ** (r - rungs + 1)        r = 0 .. rungs - 1
        a configuration goes from r to r + 1 once it is among the best 1 / reduction of those that ended at r

    A run of a lower rung is not cut off: its whole schedule is compressed, with warmup, ramps and image sizes, so that
    every score is of a finished run, and only runs of equal length are compared. No run is ended early and no worker
    waits for a rung to fill: a configuration is promoted as soon as it has earned it, else a new one begins. Every run
    is a separate trial and counts in the budget, which is best given in device-hours: a trial of the lowest rung takes
    a ninth of a whole one. Only whole runs can be the best trial.

    Args:
        reduction: ratio of run lengths of neighbouring rungs, and 1 / the share that is promoted; at least 2.
        rungs: number of run lengths, at least 2; the last one is the recipe's own.
    Source: Li et al. 2018, arXiv 1810.05934, algorithm 2, as others tell it (not checked).
    Differs: a promoted configuration is trained from the start: a checkpoint of a compressed run belongs to another
        schedule. A configuration that failed ranks last in its rung. Optuna's SuccessiveHalvingPruner ends runs at a
        step instead, and is not used.
    """

    reduction: int = 3
    rungs: int = 3

    def __post_init__(self) -> None:
        require_count("SuccessiveHalving.reduction", self.reduction, at_least=2)
        require_count("SuccessiveHalving.rungs", self.rungs, at_least=2)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of the epochs in a run of each rung, the shortest first.

        >>> [str(share) for share in SuccessiveHalving().shares]
        ['1/9', '1/3', '1']
        """
        return tuple(Fraction(1, self.reduction**left) for left in range(self.rungs - 1, -1, -1))

    @property
    def least_trials(self) -> int:
        """The fewest trials with which a configuration can climb to a whole run.

        >>> SuccessiveHalving().least_trials
        13
        """
        return sum(self.reduction**rung for rung in range(self.rungs))

    def build(self) -> Any:
        """Optuna's NopPruner: no run is ended on its way."""
        from optuna.pruners import NopPruner

        return NopPruner()


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
