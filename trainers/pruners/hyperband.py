"""Several successive halvings side by side, which begin at different lengths of runs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from trainers.arguments import require_count
from trainers.pruners.successive_halving import shares


@dataclass(frozen=True, kw_only=True)
class Hyperband:
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

    reduction: int = 3
    rungs: int = 3

    def __post_init__(self) -> None:
        require_count("Hyperband.reduction", self.reduction, at_least=2)
        require_count("Hyperband.rungs", self.rungs, at_least=2)

    @property
    def shares(self) -> tuple[Fraction, ...]:
        """What part of the epochs a run of each rung has, the shortest first."""
        return shares(self.reduction, self.rungs)

    @property
    def brackets(self) -> tuple[int, ...]:
        """How many of the new configurations begin at each rung, in proportion.

        >>> Hyperband().brackets
        (9, 5, 3)
        """
        rungs = self.rungs
        return tuple(math.ceil(rungs * self.reduction ** (rungs - 1 - s) / (rungs - s)) for s in range(rungs))

    def build(self) -> Any:
        """Optuna's NopPruner: no run is ended on its way."""
        from optuna.pruners import NopPruner

        return NopPruner()
