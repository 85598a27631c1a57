"""Samplers of a search: each a frozen dataclass whose `build(seed=)` gives one of Optuna's.

A sampler's `first(space)`, if it has one, gives values to try before its own proposals; its `cannot` lists the features
of a search that it does not support: a search with one of them is refused.
"""

from trainers.samplers.cma_es import CmaEs
from trainers.samplers.gp import Gp
from trainers.samplers.grid import Grid
from trainers.samplers.nsga_ii import NsgaII
from trainers.samplers.random_draws import Random
from trainers.samplers.tpe import Tpe

__all__ = ["CmaEs", "Gp", "Grid", "NsgaII", "Random", "Tpe"]
