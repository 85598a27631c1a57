"""The signed-rank rule."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from lr_schedules.units import require_number
from trainers.arguments import require_count


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

        from trainers.pruners.fair import Fair

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            pruner = WilcoxonPruner(p_threshold=self.threshold, n_startup_steps=self.startup_reports)
        return Fair(pruner, paired=True)
