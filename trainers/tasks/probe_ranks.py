"""What ranks reach together: all-reduces by size, updates that send nothing, and both beside each other.

`kilobatch probe` measures this on ranks that it starts or as ranks of mpiexec, and `slow_network.py` between updates.
"""

from __future__ import annotations

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from mpi4py import MPI

from recipes.planning.cluster import GradientExchange
from recipes.planning.forecast import fullest_division
from recipes.planning.networks import known_network
from recipes.planning.stream import stream_of
from recipes.schema import Updater
from recipes.schema.image_size import sides_by_size
from trainers import kernels
from trainers.augmentations import decoders
from trainers.communicators import Auto, Dummy
from trainers.communicators.mpi_messages import barrier, wait_for
from trainers.communicators.wire import WIRES, FullWire
from trainers.datasets.loader import StreamIterator
from trainers.gradients.exchange import mean
from trainers.launch.request import Prepared
from trainers.models.batch_norm import NormGroups
from trainers.training.build import build, build_exchange
from trainers.training.updater import RecipeUpdater

SIZES = tuple(4 * 4**power for power in range(4, 12))  # bytes of a buffer: 1 kB to 17 MB
_LINK_SECONDS, _REPEATS = 0.2, 50  # of one size, back to back; at most so many
_UPDATES = 3  # beside all-reduces
_ROUNDS, _ROUND_SECONDS = 3, 20.0  # rounds; none begins later
_LONGEST_REST = 0.5  # seconds
_SLOW_UPDATE = 3.0  # seconds; a longer one is not timed beside all-reduces


class RankProbe:
    """All ranks make it and call its methods together; each figure is that of the slowest rank.

    Args:
        mpi: all ranks.
        updater: trains without an exchange, each array of gradients a bucket of its own; None: links alone are timed.
        communicator: as a cluster's file names it; None: that of a run.
        sizes: bytes of the buffers that are timed; the gradients of the updater are one more.
    Attributes:
        updates: seconds of each update, and until each array of gradients was there, on the last rank that had it.
    """

    def __init__(
        self, mpi: Any, updater: RecipeUpdater | None, *, communicator: Any = None, sizes: tuple[int, ...] = SIZES
    ) -> None:
        self._mpi, self._updater = mpi, updater
        self._gradient_bytes = 0 if updater is None else 4 * updater.exchange.flat.values.size
        self._sizes = sorted({*sizes, *filter(None, [self._gradient_bytes])})
        self._connection = (communicator or Auto()).connect(mpi.Dup())
        self._values = self._connection.allocate(self._sizes[-1] // 4, np.float32)
        self._wires = {"float32": FullWire(np.dtype(np.float32))} if mpi.size > 1 else {}
        if mpi.size > 1 and not self._connection.sends_nothing():
            self._wires["float16"] = WIRES["float16"]()
        self._links: dict[str, list[list[float]]] = {wire: [] for wire in self._wires}
        self._rates: dict[str, list[tuple[float, float]]] = {wire: [] for wire in self._wires}
        self.updates: list[tuple[float, list[float]]] = []

    def measure(self) -> None:
        """Everything, in at most three rounds."""
        began = time.perf_counter()
        if self._updater is not None:
            self.time_update()  # not counted
            self.updates = []
        for _ in range(_ROUNDS):
            self.time_round()
            if self._mpi.bcast(time.perf_counter() - began) > _ROUND_SECONDS:
                break

    def time_round(self) -> None:
        """Time an update, all-reduces, and both beside each other; where an update takes long, nothing beside it."""
        slow = self._updater is None or self.time_update() > _SLOW_UPDATE
        self.time_links()
        if not slow:
            self.time_beside()

    def time_links(self) -> None:
        """Time all-reduces by size on each wire, back to back as buckets go; one rank has none."""
        for wire in self._wires:
            self._links[wire].append([self._all_reduce_seconds(size // 4, wire) for size in self._sizes])

    def time_update(self) -> float:
        """Time an update that all ranks begin together, and when the last of them has each array of gradients.

        Cores rest before it as they do in a run while gradients cross; after a rest they are faster.
        """
        updater, found = self._updater, []
        updater.exchange.observe = lambda number, began, ended: found.append(began)
        time.sleep(min(self._gradient_seconds(), _LONGEST_REST))
        barrier(self._mpi)
        began = time.perf_counter()
        self._update()
        seconds = self._slowest(time.perf_counter() - began)
        self.updates.append((seconds, self._slowest(np.array(found) - began)))
        return seconds

    def time_beside(self) -> None:
        """Time updates and all-reduces of their gradients that begin together, on each wire.

        Ranks that share cores, or memory, slow each other down.
        """
        for wire in self._wires:
            before, each = self._timed(self._updates_in_turn), self._gradient_seconds(wire)
            calls = max(1, round(before / each))
            computed, sent = self._both(calls, self._gradient_bytes // 4, wire)
            after = self._timed(self._updates_in_turn)  # the machine's speed changes
            rates = rates_beside(computed, sent, computed_alone=(before + after) / 2, sent_alone=calls * each)
            self._rates[wire].append(rates)

    def _gradient_seconds(self, wire: str = "float32") -> float:
        """Of the last all-reduce of all gradients; 0 before the first."""
        timed = self._links.get(wire)
        return timed[-1][self._sizes.index(self._gradient_bytes)] if timed else 0.0

    def _both(self, calls: int, number: int, wire: str) -> tuple[float, float]:
        """Seconds of three updates and of so many all-reduces that begin with them."""
        ended: list[float] = []

        def communicate() -> None:
            for _ in range(calls):
                self._mean(number, wire)
            ended.append(time.perf_counter())

        self._connection.set_beside_backward(True)
        thread = threading.Thread(target=communicate)
        barrier(self._mpi)
        began = time.perf_counter()
        thread.start()
        self._updates_in_turn()
        computed = self._slowest(time.perf_counter() - began)
        thread.join()
        self._connection.set_beside_backward(False)
        return computed, self._slowest(ended[0] - began)

    def as_tree(self, updates: list[tuple[float, list[float]]] | None = None) -> dict[str, Any]:
        """What was measured, medians, as `all_reduces` and `rates` of a cluster's file.

        Args:
            updates: that count; all by default.
        """
        shared = self._mpi.Split_type(MPI.COMM_TYPE_SHARED)
        nodes = self._mpi.allreduce(int(shared.rank == 0))
        shared.Free()
        who = {"workers": self._mpi.size, "nodes": nodes}
        found: list[dict[str, Any]] = []
        for wire, links in self._links.items():
            milliseconds = [float(f"{1000 * statistics.median(times):.4g}") for times in zip(*links, strict=True)]
            found.append({**who, "wire": wire, "bytes": self._sizes, "milliseconds": milliseconds})
            if self._rates[wire]:
                own, sending = (max(statistics.median(each), 0.01) for each in zip(*self._rates[wire], strict=True))
                found[-1]["contention"] = float(f"{max(0.0, 1 - own) / sending:.3g}")
                found[-1]["slowdown"] = float(f"{max(0.0, 1 - sending) / own:.3g}")
        rates = [] if self._updater is None else [self._rate(self.updates if updates is None else updates)]
        return {**who, "all_reduces": found, "rates": rates}

    def close(self) -> None:
        self._connection.close()

    def _rate(self, updates: list[tuple[float, list[float]]]) -> dict[str, Any]:
        """Of updates that send nothing. Backward begins with the first gradient, and holds all that follows."""
        plan = self._updater.plan
        planned, recipe, model = plan.segments[0], plan.recipe, type(plan.recipe.model).__name__
        division, size = fullest_division(planned), planned.segment.image_size
        seconds = statistics.median(each for each, _ in updates)
        ready = [statistics.median(times) for times in zip(*(each for _, each in updates), strict=True)]
        rate = {
            "model": model,
            "image_size": sides_by_size(recipe).get(size) or size or 1,
            "precision": recipe.precision.compute,
            "micro_batch_size": division["micro_batch_size"],
            "accumulation_steps": division["steps"],
            "devices": plan.workers,
            "samples_per_second": float(f"{plan.workers * math.prod(division.values()) / seconds:.6g}"),
            "exchanged": False,
            "backward_share": float(f"{1 - ready[0] / seconds:.4g}"),
            "basis": "probe",
        }
        if known_network(model):
            return rate
        sizes = [slot.span.stop - slot.span.start for slot in self._updater.exchange.flat.slots]
        steps = [1, *(max(1, round(1e6 * (after - before))) for before, after in itertools.pairwise(ready))]
        return rate | {"parameter_arrays": sizes[::-1], "backward_microseconds": steps[::-1]}

    def _all_reduce_seconds(self, number: int, wire: str) -> float:
        once = self._timed(lambda: self._mean(number, wire))  # it may choose an algorithm, and registers memory
        if once > _LINK_SECONDS:
            return statistics.median([once, *(self._timed(lambda: self._mean(number, wire)) for _ in range(2))])
        repeats = min(round(_LINK_SECONDS / once), _REPEATS)
        return self._timed(lambda: [self._mean(number, wire) for _ in range(repeats)]) / repeats

    def _timed(self, call: Callable[[], object]) -> float:
        barrier(self._mpi)
        began = time.perf_counter()
        call()
        return self._slowest(time.perf_counter() - began)

    def _updates_in_turn(self) -> None:
        for _ in range(_UPDATES):
            self._update()

    def _update(self) -> None:
        self._updater.get_iterator("main").update = 0  # always the first one
        self._updater.update()

    def _mean(self, number: int, wire: str) -> None:
        mean(self._values[:number], self._connection, self._wires[wire], 1.0)

    def _slowest(self, seconds: Any) -> Any:
        most = np.array(seconds, np.float64)
        wait_for([self._mpi.Iallreduce(MPI.IN_PLACE, most, MPI.MAX)])
        return most.tolist()


def rates_beside(computed: float, sent: float, *, computed_alone: float, sent_alone: float) -> tuple[float, float]:
    """The rates of compute and of communication while both go on, as shares of those alone.

    Args:
        computed, sent: seconds until each had ended; both began together, and the later one went on alone.
        computed_alone, sent_alone: seconds of each without the other.

    >>> rates_beside(2.0, 2.5, computed_alone=1.5, sent_alone=2.1)  # compute slows down by 3/4, the other one by 4/5
    (0.75, 0.8)
    """
    both, rest = min(computed, sent), abs(computed - sent)
    compute, send = (computed_alone, sent_alone - rest) if computed < sent else (computed_alone - rest, sent_alone)
    return round(compute / both, 12), round(send / both, 12)


def silent_updater(prepared: Prepared, mpi: Any) -> RecipeUpdater:
    """Trains a plan without exact mode on these ranks, and sends no gradients; all of them call this together."""
    kernels.settle()
    decoders.use(None)
    recipe, dataset, plan = prepared.opened.recipe, prepared.opened.dataset, prepared.plan
    recipe = replace(recipe, updater=Updater())
    parts, groups = build(recipe, dataset), NormGroups(recipe.evaluation)
    groups.install(parts.model)
    iterator = StreamIterator(
        plan=plan, rank=mpi.rank, stream=stream_of(recipe, dataset), load=parts.load_train, mixing=parts.mixing
    )
    settings = GradientExchange(communicator=Dummy(), bucket_bytes=1)
    return RecipeUpdater(
        iterator,
        parts.optimizer,
        loss=parts.loss,
        plan=replace(plan, recipe=recipe),
        exchange=build_exchange(settings, parts, mpi),
        mpi=mpi,
        norm_groups=groups,
    )
