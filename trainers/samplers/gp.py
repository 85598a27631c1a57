"""Gaussian processes."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from recipes.errors import InputRefused
from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class Gp:
    """Draws where a Gaussian process fitted to the trials so far expects the largest improvement.

    For few and costly trials. A range with `when` is drawn at random.

    Args:
        startup_trials: random draws before the first fit, at least 1.
    Source: Jones et al. 1998 (not checked); Optuna's GPSampler.
    """

    startup_trials: int = 10

    def __post_init__(self) -> None:
        require_count("Gp.startup_trials", self.startup_trials)

    def build(self, *, seed: int) -> Any:
        """Optuna's GPSampler.

        Raises:
            InputRefused: PyTorch, with which it fits, is not installed.
        """
        if importlib.util.find_spec("torch") is None:
            raise InputRefused("sampler Gp needs PyTorch; pip install 'kilobatch[gp]', or use Tpe")
        from optuna.samplers import GPSampler

        return GPSampler(seed=seed, n_startup_trials=self.startup_trials, warn_independent_sampling=False)
