"""Independent draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Random:
    """Independent uniform draws: the reference for every other sampler."""

    def build(self, *, seed: int) -> Any:
        """Optuna's RandomSampler."""
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)
