"""A genetic algorithm for several objectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainers.arguments import require_count


@dataclass(frozen=True, kw_only=True)
class NsgaII:
    """Crosses the trials that the fewest others dominate, one generation after another.

    For several objectives and hundreds of trials. A range with `when` is drawn at random.

    Args:
        population: complete trials of a generation, at least 2; the first generation is random.
    Source: Deb et al. 2002 (not checked); Optuna's NSGAIISampler.
    """

    population: int = 20

    def __post_init__(self) -> None:
        require_count("NsgaII.population", self.population, at_least=2)

    def build(self, *, seed: int) -> Any:
        """Optuna's NSGAIISampler."""
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(seed=seed, population_size=self.population)
