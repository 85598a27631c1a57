"""Covariance matrix adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class CmaEs:
    """Draws from a normal distribution whose mean and covariance follow the best trials of each generation.

    Categorical values are drawn at random; in a space with a single range, so is everything.

    Args:
        startup_trials: random draws before the first generation, at least 1.
    Source: Hansen 2016, arXiv:1604.00772 (not checked); Optuna's CmaEsSampler.
    """

    cannot: ClassVar[tuple[str, ...]] = ("several objectives", "constraints", "`when`")
    startup_trials: int = 1

    def __post_init__(self) -> None:
        require_count("CmaEs.startup_trials", self.startup_trials)

    def build(self, *, seed: int) -> Any:
        """Optuna's CmaEsSampler."""
        from optuna.samplers import CmaEsSampler

        return CmaEsSampler(seed=seed, n_startup_trials=self.startup_trials, warn_independent_sampling=False)
