"""Samplers of a search: each a frozen dataclass whose `build(seed=)` gives one of Optuna's.

A sampler that has `first(space)` names parameters that are tried before its own proposals. `cannot` names what a search
with it is refused for.
"""

from trainers.samplers.cma_es import CmaEs
from trainers.samplers.gp import Gp
from trainers.samplers.grid import Grid
from trainers.samplers.nsga_ii import NsgaII
from trainers.samplers.random_draws import Random
from trainers.samplers.tpe import Tpe

__all__ = ["CmaEs", "Gp", "Grid", "NsgaII", "Random", "Tpe"]
