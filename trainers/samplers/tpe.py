"""Tree-structured Parzen estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainers.arguments import require_count, require_flag


@dataclass(frozen=True, kw_only=True)
class Tpe:
    """Tree-structured Parzen estimator: draws where good trials are dense and bad ones are not.

        argmax l(x) / g(x)        l, g: Parzen densities of the best trials and of the others

    Running trials count as bad ones, so that parallel trials do not all try the same values.

    Args:
        startup_trials: random draws before the estimate begins, at least 0.
        multivariate: one joint density over all values instead of one for each; with `when`, over each group of values
            that trials have together.
    Source: Bergstra et al. 2011 (NeurIPS), section 4; Optuna's TPESampler.
    """

    startup_trials: int = 10
    multivariate: bool = False

    def __post_init__(self) -> None:
        require_count("Tpe.startup_trials", self.startup_trials, at_least=0)
        require_flag("Tpe.multivariate", self.multivariate)

    def build(self, *, seed: int) -> Any:
        """Optuna's TPESampler."""
        from trainers.samplers.remembering import RememberingTpe

        return RememberingTpe(
            seed=seed,
            n_startup_trials=self.startup_trials,
            multivariate=self.multivariate,
            group=self.multivariate,
            constant_liar=True,
        )
