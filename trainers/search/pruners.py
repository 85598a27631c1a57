"""Pruners of a search: each is a frozen dataclass whose `build()` returns one of Optuna's.

To add one, add a class and its name in `__all__`. `Median`, `Percentile` and `Wilcoxon` end running trials, among those
that `FairPruner` finds comparable. `SuccessiveHalving` and `Hyperband` also have `shares` and `brackets`: they choose
between whole runs of several lengths.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from lr_schedules.units import require_number
from recipes.arguments import require_count

__all__ = ["Hyperband", "Median", "Percentile", "SuccessiveHalving", "Wilcoxon"]


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
        require_count(f"{type(self).__name__}.reduction", self.reduction, at_least=2)
        require_count(f"{type(self).__name__}.rungs", self.rungs, at_least=2)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """The share of the epochs in a run of each rung, the shortest first.

        >>> [str(share) for share in SuccessiveHalving().shares]
        ['1/9', '1/3', '1']
        """
        return tuple(Fraction(1, self.reduction**left) for left in range(self.rungs - 1, -1, -1))

    @property
    def brackets(self) -> tuple[int, ...]:
        """How many of the new configurations begin at each rung, in proportion."""
        return (1, *(0 for _ in range(self.rungs - 1)))

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
class Hyperband(SuccessiveHalving):
    """`SuccessiveHalving` in which some configurations begin with longer runs, in case short ones mislead.

        configurations that begin at rung s, in proportion:  ceil(rungs * reduction ** (rungs - 1 - s) / (rungs - s))

    By default, of 17 configurations 9 begin with runs of a ninth of the epochs, 5 of a third and 3 with whole runs.
    Configurations are compared only with those that began at the same rung; a new one begins at the rung that is
    furthest behind its proportion.

    Args:
        reduction: as for `SuccessiveHalving`, at least 2.
        rungs: as for `SuccessiveHalving`, at least 2.
    Source: Li et al. 2016, arXiv 1603.06560, algorithm 1, by Optuna's HyperbandPruner; the paper not checked.
    Differs: brackets grow side by side without a limit, asynchronously, as in Li et al. 2018, arXiv 1810.05934.
    """

    least_trials = 1  # some configurations begin with whole runs

    @property
    def brackets(self) -> tuple[int, ...]:
        """How many of the new configurations begin at each rung, in proportion.

        >>> Hyperband().brackets
        (9, 5, 3)
        """
        rungs = self.rungs
        return tuple(math.ceil(rungs * self.reduction ** (rungs - 1 - s) / (rungs - s)) for s in range(rungs))


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

        from trainers.search.comparability import FairPruner

        return FairPruner(MedianPruner(n_startup_trials=self.startup_trials))


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

        from trainers.search.comparability import FairPruner

        return FairPruner(PercentilePruner(self.keep, n_startup_trials=self.startup_trials))


@dataclass(frozen=True, kw_only=True)
class Wilcoxon:
    """Ends a trial whose reports are worse than the best trial's, pair by pair: Wilcoxon's signed-rank test.

        d_k = report k of this trial - report k of the best complete trial        both past their slow starts

    Optuna's pruner is made for scores of one configuration on many independent problems. Here the pairs are points of
    two learning curves, not independent of each other, and the test is repeated at every report: so `threshold` is a
    knob, not a probability of error. The test still applies: the same k is the same fraction of both runs, and a trial
    that is worse at all its reports has all ranks on one side. The pruner's own safeguard, which keeps a trial whose
    mean report beats the best trial's, rarely acts here, because the best trial's whole curve has a better mean than
    the beginning of a curve.

    Args:
        threshold: the p of the test below which a trial ends, above 0 and at most 0.5; n pairs on one side give 2 **
            -n.
        startup_reports: pairs before any trial is ended, at least 2.
    Source: Wilcoxon 1945 (not checked); Optuna's WilcoxonPruner.
    """

    threshold: float = 0.05
    startup_reports: int = 5

    def __post_init__(self) -> None:
        require_number("Wilcoxon.threshold", self.threshold, above=0, at_most=0.5)
        require_count("Wilcoxon.startup_reports", self.startup_reports, at_least=2)

    def build(self) -> Any:
        """Optuna's WilcoxonPruner, among trials that can be compared."""
        from optuna.exceptions import ExperimentalWarning
        from optuna.pruners import WilcoxonPruner

        from trainers.search.comparability import FairPruner

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            pruner = WilcoxonPruner(p_threshold=self.threshold, n_startup_steps=self.startup_reports)
        return FairPruner(pruner, paired=True)
