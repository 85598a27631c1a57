"""Pruners of a search: each a frozen dataclass whose `build()` gives one of Optuna's.

`Median`, `Percentile` and `Wilcoxon` end running trials, through `fair.py`. `SuccessiveHalving` and `Hyperband` also
have `shares` and `brackets`: they choose between whole runs of several lengths, see `trainers/search/rungs.py`.
"""

from trainers.pruners.hyperband import Hyperband
from trainers.pruners.median import Median
from trainers.pruners.percentile import Percentile
from trainers.pruners.successive_halving import SuccessiveHalving
from trainers.pruners.wilcoxon import Wilcoxon

__all__ = ["Hyperband", "Median", "Percentile", "SuccessiveHalving", "Wilcoxon"]
