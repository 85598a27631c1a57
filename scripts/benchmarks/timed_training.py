"""A small network that is trained to measure what an update costs, on micro-batches that are loaded before.

Batches are of a size for which computing takes a given time, which is measured first.
"""

from __future__ import annotations

import operator
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

RECIPE = "digits/baseline"
MODEL = "{kind: SmallCNN, width: 96}"
COMPUTE, NONE = "compute", "none"  # no exchange at all; all at once after the backward pass
CALIBRATION_SIZES = (32, 256)  # samples of an update on a rank
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Replay:
    """An iterator for the updater that repeats the same loaded shares."""

    def __init__(self, shares: list[Any]) -> None:
        self._shares = shares
        self._turn = 0

    def next(self) -> Any:
        """The next share; its micro-batches are loaded."""
        share = self._shares[self._turn % len(self._shares)]
        self._turn += 1
        return replace(share, micro_batches=iter(share.micro_batches))


def load_shares(prepared: Any, rank: int, num_updates: int) -> list[Any]:
    """A rank's share of the first updates of a plan, loaded into memory."""
    from recipes.planning.stream import Stream
    from trainers.datasets.loader import StreamIterator
    from trainers.training.build import build

    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
    load = build(recipe, dataset).load_train
    iterator = StreamIterator(plan=prepared.plan, rank=rank, stream=stream, load=load)
    shares = [iterator.next() for _ in range(min(num_updates, prepared.plan.timeline.num_updates))]
    return [replace(share, micro_batches=list(share.micro_batches)) for share in shares]


def hidden(seconds: Sequence[float], none: Sequence[float], compute: Sequence[float]) -> float:
    """The share of the communication that computation hides, from times by round.

    >>> hidden([1.1, 2.2], none=[2.0, 3.0], compute=[1.0, 2.0])
    0.85
    """
    rest, whole = (statistics.median(map(operator.sub, times, compute)) for times in (seconds, none))
    return round(1 - rest / whole, 12)


def take_core(rank: int, size: int) -> None:
    """Pin this rank to a core of its own, if the machine has as many cores as ranks."""
    cores = sorted(os.sched_getaffinity(0))
    if size <= len(cores):
        os.sched_setaffinity(0, {cores[rank]})


class Trained:
    """A model trained on `samples` an update and rank; all ranks make it together.

    Args:
        world: all ranks.
        samples: of an update on a rank.
        exchange_of: the model's parts -> its exchange, with two arrays where it is doubled.
        doubled: double buffering.
    """

    def __init__(self, world: Any, *, samples: int, exchange_of: Callable[[Any], Any], doubled: bool = False) -> None:
        from trainers.launch.request import TrainRequest, prepare
        from trainers.models.batch_norm import NormGroups
        from trainers.training.build import build
        from trainers.training.updater import RecipeUpdater

        batch = f"batch={{global: {samples * world.size}, norm_span: {samples}}}"
        doubling = f"updater.double_buffering={str(doubled).lower()}"
        overrides = (f"model={MODEL}", batch, "learning_rate.reference=0.001", doubling)
        prepared = prepare(TrainRequest(recipe=RECIPE, overrides=overrides), workers=world.size)
        parts = build(prepared.opened.recipe, prepared.opened.dataset)
        groups = NormGroups(prepared.opened.recipe.evaluation)
        groups.install(parts.model)
        self._world = world
        self.exchange = exchange_of(parts)
        self._updater = RecipeUpdater(
            {"main": Replay(load_shares(prepared, world.rank, 2))},
            parts.optimizer,
            loss=parts.loss,
            plan=prepared.plan,
            exchange=self.exchange,
            mpi=world,
            norm_groups=groups,
        )

    def seconds(self, updates: int) -> float:
        """Seconds an update on the slowest rank, after one update that is not counted."""
        self._world.Barrier()
        self._updater.update()
        own = _seconds_of(lambda: [self._updater.update() for _ in range(updates)])
        self._updater.pending_arrays()  # nothing is on its way when the next one takes its turn
        return self._slowest(own) / updates

    def communication_seconds(self) -> float:
        """Of one exchange of all gradients, nothing else going on."""

        def run() -> float:
            self._world.Barrier()
            return self._slowest(_seconds_of(lambda: self.exchange.begin(scale=1.0).finish()))

        return _median_of(run, 3)

    def compute_seconds(self) -> float:
        """Of an update, where nothing is exchanged."""
        return _median_of(lambda: self.seconds(2), 3)

    def close(self) -> None:
        """Give memory, thread and communicators back; all ranks together."""
        self.exchange.close()

    def _slowest(self, seconds: float) -> float:
        from mpi4py import MPI

        return self._world.allreduce(seconds, op=MPI.MAX)


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """The measurements from which a batch is chosen.

    Args:
        communication_seconds: of one exchange of all gradients as float32, nothing else going on.
        gradient_bytes: of a rank.
        compute_seconds: of an update of each of CALIBRATION_SIZES without any exchange.
    """

    communication_seconds: float
    gradient_bytes: int
    compute_seconds: tuple[float, float]

    def samples(self, ratio: float) -> int:
        """Of an update on a rank, at least 1, for which communication takes `ratio` times as long as computing.

        >>> known = Calibrated(communication_seconds=0.5, gradient_bytes=4, compute_seconds=(0.1, 0.38))
        >>> known.samples(1.0)  # on the line through both sizes
        352
        """
        (few, many), (first, last) = CALIBRATION_SIZES, self.compute_seconds
        each = max((last - first) / (many - few), 1e-9)
        return max(1, round(few + (self.communication_seconds / ratio - first) / each))


def calibrate(trained_by: Callable[..., Trained]) -> Calibrated:
    """Measure with what (samples=, way=) trains; all ranks call this together, and each has its own figures."""
    trained = trained_by(samples=1, way=NONE)
    communication, num_bytes = trained.communication_seconds(), trained.exchange.flat.values.nbytes
    trained.close()
    times = []
    for size in CALIBRATION_SIZES:
        trained = trained_by(samples=size, way=COMPUTE)
        times.append(trained.compute_seconds())
        trained.close()
    return Calibrated(
        communication_seconds=communication, gradient_bytes=num_bytes, compute_seconds=(times[0], times[1])
    )


def _seconds_of(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _median_of(run: Callable[[], float], times: int) -> float:
    """The median, after one call that is not counted."""
    run()
    return statistics.median(run() for _ in range(times))
