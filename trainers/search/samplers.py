"""Samplers of a search: each is a frozen dataclass whose `build(seed=)` returns one of Optuna's.

To add one, add a class and its name in `__all__`. A sampler may have `first(space)`, values to try before its own
proposals, and `cannot`, the features of a search that it does not support: a search with one of them is refused.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from recipes.arguments import require_count, require_flag
from recipes.errors import InputRefused
from recipes.search_space.ranges import combinations

__all__ = ["CmaEs", "Gp", "Grid", "NsgaII", "Random", "Tpe"]


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
        from optuna.samplers import CmaEsSampler

        return CmaEsSampler(seed=seed, n_startup_trials=self.startup_trials, warn_independent_sampling=False)


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


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Every combination of evenly spaced values; the last path of the space moves first.

    A budget with fewer trials than combinations tries the first ones; one with more goes on with random draws.

    Args:
        points: values of each range of numbers, ends included, at least 1; a categorical range has all its choices.
    Differs: from Optuna's GridSampler, which draws the combinations in random order and stops the search itself.
    """

    points: int = 3

    def __post_init__(self) -> None:
        require_count("Grid.points", self.points)

    def first(self, space: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All combinations, each with a value for every path that is active in it."""
        return list(combinations(space, self.points))

    def build(self, *, seed: int) -> Any:
        """Optuna's RandomSampler, for what comes after the grid."""
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)


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
        from optuna.samplers import NSGAIISampler

        return NSGAIISampler(seed=seed, population_size=self.population)


@dataclass(frozen=True, kw_only=True)
class Random:
    """Independent uniform draws: the reference for every other sampler."""

    def build(self, *, seed: int) -> Any:
        from optuna.samplers import RandomSampler

        return RandomSampler(seed=seed)


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
        from optuna.samplers import TPESampler

        return TPESampler(
            seed=seed,
            n_startup_trials=self.startup_trials,
            multivariate=self.multivariate,
            group=self.multivariate,
            constant_liar=True,
        )
