"""Pruners of a search: each a frozen dataclass whose `build()` gives one of Optuna's."""

from trainers.pruners.median import Median
from trainers.pruners.percentile import Percentile

__all__ = ["Median", "Percentile"]
