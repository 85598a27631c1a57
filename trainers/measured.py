"""What a run measures of itself: its metrics, the exchange of gradients, and on request a profile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chainer.training import Trainer

from trainers.extensions.gradient_exchange import GradientExchange
from trainers.extensions.metrics import Metrics
from trainers.extensions.profile import Profile, profiled_updates
from trainers.phases import RankSeconds
from trainers.run_folder import METRICS, PROFILE
from trainers.updater import RecipeUpdater


def metrics_of(updater: RecipeUpdater, folder: Path, mpi: Any) -> Metrics:
    """The metrics of a run, with the seconds of all ranks; rank 0 writes them."""
    rounds = not updater.plan.exact and updater.exchange.wire.name != "float32"
    ranks = RankSeconds(updater.clock, mpi, counts_lost=rounds)
    return Metrics(folder / METRICS, writes=mpi.rank == 0, ranks=ranks)


def measure(trainer: Trainer, metrics: Metrics, mpi: Any, *, profile: int, end: int) -> None:
    """Add the extensions that report the exchange and, if `profile` is not 0, profile so many updates before `end`."""
    updater = trainer.updater
    component = updater.plan.cluster.exchange.communicator
    name = type(component).__name__ if component else "Auto"  # null means Auto, see `build_exchange`
    if not updater.plan.exact:  # exact mode uses no communicator's sum, and overlaps nothing
        trainer.extend(GradientExchange(name, updater.exchange, metrics))
    if profile:
        updates = profiled_updates(profile, begin=updater.iteration, end=end)
        trainer.extend(Profile(Path(trainer.out) / PROFILE, updater.clock, mpi, updates=updates))
