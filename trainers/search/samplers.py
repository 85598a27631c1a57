"""Samplers of a search: Optuna's, under Optuna's names; the keys beside `kind` are the arguments of Optuna's class.

To add one, add a class and its name in `__all__`. A sampler of your own is a frozen dataclass whose `build(seed=)`
returns one of Optuna's.
"""

from __future__ import annotations

import importlib.util
import warnings
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import optuna

from recipes.arguments import require_count
from recipes.extras import install
from recipes.schema.batch_and_rate import require

__all__ = ["BruteForceSampler", "CmaEsSampler", "GPSampler", "NSGAIISampler", "RandomSampler", "TPESampler"]


@dataclass(frozen=True, kw_only=True)
class _OfOptuna:
    """Builds the class of `optuna.samplers` that has the same name."""

    given: ClassVar[dict[str, Any]] = {}  # arguments that are no keys
    least: ClassVar[dict[str, int]] = {}  # of its counts

    def __post_init__(self) -> None:
        for name, least in self.least.items():
            require_count(f"{type(self).__name__}.{name}", getattr(self, name), at_least=least)

    def build(self, *, seed: int) -> optuna.samplers.BaseSampler:
        """Optuna's sampler."""
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            return getattr(optuna.samplers, type(self).__name__)(seed=seed, **asdict(self), **self.given)


@dataclass(frozen=True, kw_only=True)
class BruteForceSampler(_OfOptuna):
    """Every combination of the values once, in random order, then some of them again; a `Float` needs a `step`."""


@dataclass(frozen=True, kw_only=True)
class CmaEsSampler(_OfOptuna):
    """Draws from a normal distribution whose mean and covariance follow the best trials of each generation.

    Categorical values and ranges with `when` are drawn at random; in a space with a single range, so is everything.

    Args:
        n_startup_trials: random draws before the first generation, at least 1.
    Source: Hansen 2016, arXiv:1604.00772 (not checked).
    """

    given = {"warn_independent_sampling": False}
    least = {"n_startup_trials": 1}
    n_startup_trials: int = 1


@dataclass(frozen=True, kw_only=True)
class GPSampler(_OfOptuna):
    """Draws where a Gaussian process fitted to the trials so far expects the largest improvement.

    For few and costly trials. A range with `when` is drawn at random.

    Args:
        n_startup_trials: random draws before the first fit, at least 1.
    Source: Jones et al. 1998 (not checked).
    """

    given = {"warn_independent_sampling": False}
    least = {"n_startup_trials": 1}
    n_startup_trials: int = 10

    def build(self, *, seed: int) -> optuna.samplers.BaseSampler:
        """Optuna's sampler; ValueError where there is no PyTorch, with which it fits."""
        if importlib.util.find_spec("torch") is None:  # Optuna would say so after the first trials
            raise ValueError(f"it needs PyTorch; {install('gp')}, or use TPESampler")
        return super().build(seed=seed)


@dataclass(frozen=True, kw_only=True)
class NSGAIISampler(_OfOptuna):
    """Crosses the trials that the fewest others dominate, one generation after another.

    For several objectives and hundreds of trials. A range with `when` is drawn at random.

    Args:
        population_size: complete trials of a generation, at least 2; the first generation is random.
    Source: Deb et al. 2002 (not checked).
    """

    least = {"population_size": 2}
    population_size: int = 50


@dataclass(frozen=True, kw_only=True)
class RandomSampler(_OfOptuna):
    """Independent uniform draws: the reference for every other sampler."""


@dataclass(frozen=True, kw_only=True)
class TPESampler(_OfOptuna):
    """Tree-structured Parzen estimator: draws where good trials are dense and bad ones are not.

        argmax l(x) / g(x)        l, g: Parzen densities of the best trials and of the others

    Running trials count as bad ones, so that parallel trials do not all try the same values.

    Args:
        n_startup_trials: random draws before the estimate begins, at least 0.
        multivariate: one joint density over all values instead of one for each.
        group: with `multivariate` and `when`, a density over each group of values that trials have together.
    Source: Bergstra et al. 2011 (NeurIPS), section 4.
    """

    given = {"constant_liar": True}
    least = {"n_startup_trials": 0}
    n_startup_trials: int = 10
    multivariate: bool = False
    group: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.multivariate or not self.group, "TPESampler.group must be false unless multivariate is true")
