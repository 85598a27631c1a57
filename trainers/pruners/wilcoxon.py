"""The signed-rank rule."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from lr_schedules.units import require_number
from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class Wilcoxon:
    """Ends a trial whose reports lie below those of the best one, pair by pair: Wilcoxon's signed-rank test.

        d_k = report k of this trial - report k of the best complete trial        both past their slow starts

    Optuna's pruner is made for scores of one configuration on many independent problems. Here the pairs are points of
    two curves, each of which depends on the one before, and they are tested again at every report: `threshold` is a
    handle and no probability of an error. What it needs is there: the same k means the same part of both runs, and
    a trial far below the best one at all its reports has all its ranks on one side. Its own safeguard, the mean of all
    reports against that of the best trial, rarely holds a trial back here, as the mean of a whole curve lies above that
    of its beginning.

    Args:
        threshold: the test's p below which a trial ends, above 0 and at most 0.5; n pairs that all lie on one side
            have 2 ** -n.
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

        from trainers.pruners.fair import Fair

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            pruner = WilcoxonPruner(p_threshold=self.threshold, n_startup_steps=self.startup_reports)
        return Fair(pruner, paired=True)
