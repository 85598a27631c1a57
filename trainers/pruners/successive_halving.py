"""Successive halving over whole runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trainers.arguments import require_count


def shares(reduction: int, rungs: int) -> tuple[Fraction, ...]:
    """What part of the epochs a run of each rung has, the shortest first.

    >>> [str(share) for share in shares(3, 3)]
    ['1/9', '1/3', '1']
    """
    return tuple(Fraction(1, reduction**left) for left in range(rungs - 1, -1, -1))


@dataclass(frozen=True, kw_only=True)
class SuccessiveHalving:
    """Trains every configuration in short runs first, and the best of them in longer ones: 1/9, 1/3 and all epochs.

        share of rung r = reduction ** (r - rungs + 1)        r = 0 .. rungs - 1
        a configuration goes from r to r + 1 once it is among the best 1 / reduction of those that ended at r

    A run of a rung is complete: its whole schedule is compressed, warmup, ramps and image sizes too, so that every
    score is one of a finished run and only those of equal length are compared. Nothing is ended on its way, and nobody
    waits: a configuration goes up as soon as it has earned it, else a new one begins. Every run is a trial of its own
    and counts in the budget, which is best given in device-hours: a trial of the lowest rung takes a ninth of a whole
    one. Only whole runs can be the best trial.

    Args:
        reduction: at least 2.
        rungs: lengths of runs, at least 2; the last one is the recipe's own.
    Source: Li et al. 2018, arXiv 1810.05934, algorithm 2, as others tell it (not checked).
    Differs: a promoted configuration is trained anew: a checkpoint of a compressed run is the end of another schedule.
        A configuration that failed counts as the last of its rung. Optuna's SuccessiveHalvingPruner ends runs at a
        step instead, and is not used.
    """

    reduction: int = 3
    rungs: int = 3

    def __post_init__(self) -> None:
        require_count("SuccessiveHalving.reduction", self.reduction, at_least=2)
        require_count("SuccessiveHalving.rungs", self.rungs, at_least=2)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """What part of the epochs a run of each rung has, the shortest first."""
        return shares(self.reduction, self.rungs)

    @property
    def brackets(self) -> tuple[int, ...]:
        """How many of the new configurations begin at each rung, in proportion."""
        return (1, *(0 for _ in range(self.rungs - 1)))

    @property
    def least_trials(self) -> int:
        """How many runs there are until the first whole one has ended.

        >>> SuccessiveHalving().least_trials
        13
        """
        return sum(self.reduction**rung for rung in range(self.rungs))

    def build(self) -> Any:
        """Optuna's NopPruner: no run is ended on its way."""
        from optuna.pruners import NopPruner

        return NopPruner()
