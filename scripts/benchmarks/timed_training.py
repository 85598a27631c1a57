"""A small model that is trained to measure the time of different gradient exchanges.

The network is convolutional and learns digits; images are loaded before, so that nothing waits for input. Batches are
of a size for which computing takes a given time, which is measured first.
"""

from __future__ import annotations

import operator
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench_updater import Replay, load_shares

RECIPE = "digits/baseline"
MODEL = "{kind: SmallCNN, width: 96}"
COMPUTE, NONE = "compute", "none"  # no exchange at all; all at once after the backward pass
CALIBRATION_SIZES = (32, 256)  # samples of an update on a rank
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def samples_for(seconds: float, times: tuple[float, float]) -> int:
    """The number of samples, at least 1, that take the given time, on the line through the two calibrated times.

    >>> samples_for(0.5, (0.1, 0.38))
    352
    """
    few, many = CALIBRATION_SIZES
    each = max((times[1] - times[0]) / (many - few), 1e-9)
    return max(1, round(few + (seconds - times[0]) / each))


def hidden(seconds: Sequence[float], none: Sequence[float], compute: Sequence[float]) -> float:
    """The share of the communication that computation hides, from times by round.

    >>> hidden([1.1, 2.2], none=[2.0, 3.0], compute=[1.0, 2.0])
    0.85
    """
    rest, whole = (statistics.median(map(operator.sub, times, compute)) for times in (seconds, none))
    return round(1 - rest / whole, 12)


def take_cores(rank: int, size: int, each: int = 1) -> None:
    """Pin this rank to its own cores, if all ranks are on this machine and it has enough of them."""
    cores = sorted(os.sched_getaffinity(0))
    if each * size <= len(cores):
        os.sched_setaffinity(0, cores[each * rank : each * (rank + 1)])


class Trained:
    """A model trained on `samples` an update and rank; all ranks make it together.

    Args:
        world: all ranks.
        samples: of an update on a rank.
        exchange_of: the model's parts -> its exchange, with two arrays where it is doubled.
        doubled: double buffering.
        model: as a recipe has it.
    Attributes:
        model: its weights are the same for the same number of updates, if the exchange gives the mean.
    """

    def __init__(
        self,
        world: Any,
        *,
        samples: int,
        exchange_of: Callable[[Any], Any],
        doubled: bool = False,
        model: str = MODEL,
    ) -> None:
        from trainers.build import build
        from trainers.norm_groups import NormGroups
        from trainers.request import TrainRequest, prepare
        from trainers.updater import RecipeUpdater

        batch = f"batch={{global: {samples * world.size}, norm_span: {samples}}}"
        doubling = f"updater.double_buffering={str(doubled).lower()}"
        overrides = (f"model={model}", batch, "learning_rate.reference=0.001", doubling)
        prepared = prepare(TrainRequest(recipe=RECIPE, overrides=overrides), workers=world.size)
        parts = build(prepared.opened.recipe, prepared.opened.dataset)
        groups = NormGroups(prepared.opened.recipe.evaluation)
        groups.install(parts.model)
        self._world = world
        self.model = parts.model
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

    def seconds(self, updates: int) -> tuple[float, float]:
        """An update's, on the slowest rank, while it trains; and of them those of processors, the mean of the ranks."""
        from mpi4py import MPI

        self._world.Barrier()
        self._updater.update()
        began, of_processor = time.perf_counter(), time.process_time()
        for _ in range(updates):
            self._updater.update()
        own = (time.perf_counter() - began, time.process_time() - of_processor)
        self._updater.pending_arrays()  # nothing is on its way when the next one takes its turn
        slowest = self._world.allreduce(own[0], op=MPI.MAX)
        return slowest / updates, self._world.allreduce(own[1]) / self._world.size / updates

    def communication_seconds(self) -> float:
        """Of one exchange of all gradients, nothing else going on."""
        from mpi4py import MPI

        def run() -> float:
            self._world.Barrier()
            began = time.perf_counter()
            self.exchange.begin(scale=1.0).finish()
            return self._world.allreduce(time.perf_counter() - began, op=MPI.MAX)

        return _median_of(run, 3)

    def compute_seconds(self) -> float:
        """Of an update, where nothing is exchanged."""
        return _median_of(lambda: self.seconds(2)[0], 3)

    def close(self) -> None:
        """Give memory, thread and communicators back; all ranks together."""
        self.exchange.close()


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
        """Of an update on a rank, for which communication takes `ratio` times as long as computing."""
        return samples_for(self.communication_seconds / ratio, self.compute_seconds)


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


def in_turns(trained: Mapping[str, Trained], *, rounds: int, updates: int) -> dict[str, dict[str, list[float]]]:
    """`Trained.seconds` of each by round, the first of them another one each time: `seconds`, `processor_seconds`."""
    seconds: dict[str, list[float]] = {name: [] for name in trained}
    of_processor: dict[str, list[float]] = {name: [] for name in trained}
    for number in range(rounds):
        first = number % len(trained)
        for name in [*trained][first:] + [*trained][:first]:
            one, other = trained[name].seconds(updates)
            seconds[name].append(one)
            of_processor[name].append(other)
    return {"seconds": seconds, "processor_seconds": of_processor}


def _median_of(run: Callable[[], float], times: int) -> float:
    """The median, after one call that is not counted."""
    run()
    return statistics.median(run() for _ in range(times))
