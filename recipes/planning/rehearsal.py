"""A run without its model: order of samples, rates, checkpoints, restarts and the load on storage, computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from recipes.planning.division import Division
from recipes.planning.forecast import Forecast, checkpoint_bytes, seconds_of_a_checkpoint
from recipes.planning.order_check import SAMPLE_BYTES, Order, OrderCheck, Shares, check_order, taken
from recipes.planning.planner import Plan
from recipes.planning.rates import batch_size_at, learning_rate_at, momentum_at
from recipes.planning.stream import stream_of

_COMPARED_EPOCHS = 1.0  # after a failure, sample by sample
_UPDATE_BYTES = 100  # of memory for an update: its rate and, at most, its evaluation and checkpoint


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A rank that dies while an update is under way.

    Args:
        rank: which, from 0.
        update: which, from 0; it is not finished.
    """

    rank: int
    update: int


@dataclass(frozen=True, kw_only=True)
class Restart:
    """What follows a failure.

    Args:
        failure: of the run.
        workers: that go on.
        update: updates that the newest checkpoint has done: the restart begins there; 0 without a checkpoint.
        repeated_updates, repeated_samples: done twice, without the update that was under way.
        compared: updates whose samples were compared one by one with those of the run without failures.
        faults: what differs from that run, in words; empty where all is equal.
    """

    failure: Failure
    workers: int
    update: int
    repeated_updates: int
    repeated_samples: int
    compared: range
    faults: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Storage:
    """What is known of the storage.

    Args:
        reads: whether images are read while the run goes on, and not kept in memory.
        image_bytes: of the file of a training image, on average.
        images_per_second: that all workers train together.
        workers_per_node: to count what a node reads.
    """

    reads: bool = True
    image_bytes: float | None = None
    images_per_second: float | None = None
    workers_per_node: int | None = None


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a run will do.

    Args:
        plan: of the run.
        order: see there.
        learning_rates: of each update, float64 (updates,).
        checkpoints, evaluations: numbers of updates done after which one is written or made.
        restarts: one for each failure, in the order of time.
        storage: what is known of it.
    """

    plan: Plan
    order: OrderCheck
    learning_rates: np.ndarray
    checkpoints: tuple[int, ...]
    evaluations: tuple[int, ...]
    restarts: tuple[Restart, ...]
    storage: Storage

    @property
    def holds(self) -> bool:
        """Whether no fault was found."""
        return not self.order.faults and not any(restart.faults for restart in self.restarts)

    @property
    def checkpoint_bytes(self) -> int | None:
        """As of `forecast.checkpoint_bytes`."""
        return checkpoint_bytes(self.plan)

    def seconds(self, time: Forecast, time_after: Forecast) -> tuple[float, float]:
        """Of the run without its failures, and with them.

        Args:
            time: the forecast of the plan.
            time_after: that of the plan after a failure.
        """
        last = self.plan.timeline.num_updates
        now, at, taken = time, 0, time.start_seconds
        for restart in self.restarts:
            died = restart.failure.update
            taken += self._seconds_of(now, at, died) + now.seconds_of(died, died + 1) + time_after.start_seconds
            now, at = time_after, restart.update
        return time.start_seconds + self._seconds_of(time, 0, last), taken + self._seconds_of(now, at, last)

    def _seconds_of(self, time: Forecast, first: int, stop: int) -> float:
        """From when `first` updates are done to when `stop` are, with the evaluations and checkpoints between."""
        evaluations, checkpoints = (
            sum(first < update <= stop for update in due) for due in (self.evaluations, self.checkpoints)
        )
        each_evaluation = time.evaluation_seconds / max(len(self.evaluations), 1)
        each_checkpoint = seconds_of_a_checkpoint(time.plan)
        return time.seconds_of(first, stop) + evaluations * each_evaluation + checkpoints * each_checkpoint

    @property
    def longest_gap(self) -> int:
        """Updates that a failure costs at most: between two checkpoints, the one under way included."""
        return max(b - a for a, b in zip((0, *self.checkpoints), self.checkpoints, strict=False))

    def as_tree(self) -> dict[str, Any]:
        """The rehearsal as plain data, for JSON."""
        plan, timeline, order = self.plan, self.plan.timeline, asdict(self.order)
        return {
            "recipe": plan.recipe.name,
            "dataset": plan.dataset.name,
            "workers": plan.workers,
            "holds": self.holds,
            "num_updates": timeline.num_updates,
            "num_samples": timeline.num_samples,
            "order": order,
            "segments": [self._segment_tree(index) for index in range(len(plan.segments))],
            "evaluations": list(self.evaluations),
            "checkpoints": {
                "updates": list(self.checkpoints),
                "bytes": self.checkpoint_bytes,
                "longest_gap_updates": self.longest_gap,
            },
            "restarts": [self._restart_tree(restart) for restart in self.restarts],
            "storage": self._storage_tree(),
            "notes": list(self.notes),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What a run may do otherwise than was rehearsed."""
        recipe, notes = self.plan.recipe, []
        if hasattr(recipe.optimizer, "gain"):
            name = type(recipe.optimizer).__name__
            notes.append(f"{name} multiplies the rates by a gain that it measures while it trains")
        if self.plan.dataset.on_bad_image != "refuse":
            notes.append("an image that cannot be decoded is replaced by the next one; that is not rehearsed")
        if recipe.augmentation.mix and any(planned.division.team_size > 1 for planned in self.plan.segments):
            notes.append("workers that share a norm group also read the images that are mixed into theirs: up to twice")
        return (*self.plan.warnings, *notes)

    def _segment_tree(self, index: int) -> dict[str, Any]:
        planned = self.plan.segments[index]
        segment, division = planned.segment, planned.division
        rates = self.learning_rates[segment.update : segment.update + segment.num_updates]
        samples = self._samples_of(division)
        last = segment.update + segment.num_updates - 1
        epochs = [self.plan.timeline.epoch_at(update) for update in (segment.update, last)]
        momenta = [momentum_at(self.plan.recipe, epoch) for epoch in epochs]
        return {
            "epoch": epochs[0],
            "update": segment.update,
            "num_updates": segment.num_updates,
            "global_batch_size": segment.global_batch_size,
            "samples_per_worker": [int(samples.min()), int(samples.max())],
            "learning_rate": {
                "first": float(rates[0]),
                "last": float(rates[-1]),
                "lowest": float(rates.min()),
                "highest": float(rates.max()),
            },
            "momentum": dict(zip(("first", "last"), momenta, strict=True)),
        }

    def _samples_of(self, division: Division) -> np.ndarray:
        return np.array([division.samples_of(rank) for rank in range(division.workers)])

    def _storage_tree(self) -> dict[str, Any]:
        """Images, bytes and reads a second of all workers, of the busiest worker and of the busiest node."""
        known, images = self.storage, self.plan.dataset.num_train
        busiest: dict[str, float] = {"all": 1.0, "worker": 0.0}
        for planned in self.plan.segments:
            shares = self._samples_of(planned.division) / planned.segment.global_batch_size
            busiest["worker"] = max(busiest["worker"], shares.max())
            if known.workers_per_node is not None:
                nodes = np.add.reduceat(shares, np.arange(0, len(shares), known.workers_per_node))
                busiest["node"] = max(busiest.get("node", 0.0), nodes.max())

        def each(number: float | None) -> dict[str, float] | None:
            return None if number is None else {who: float(number * share) for who, share in busiest.items()}

        rate, size = known.images_per_second, known.image_bytes
        return {
            "reads": known.reads,
            "images_an_epoch": each(images),
            "images_an_evaluation": self.plan.dataset.num_eval,
            "image_bytes": size,
            "bytes_an_epoch": each(size and size * images),
            "images_per_second": each(rate),
            "bytes_per_second": each(rate and size and rate * size),
            "checkpoint_bytes": self.checkpoint_bytes and self.checkpoint_bytes * len(self.checkpoints),
        }

    def _restart_tree(self, restart: Restart) -> dict[str, Any]:
        timeline = self.plan.timeline
        return {
            "rank": restart.failure.rank,
            "dies_in_update": restart.failure.update,
            "epoch": timeline.epoch_at(restart.failure.update),
            "restarts_after_updates": restart.update,
            "restarts_at_epoch": timeline.epoch_at(restart.update),
            "workers": restart.workers,
            "repeated_updates": restart.repeated_updates,
            "repeated_samples": restart.repeated_samples,
            "repeated_epochs": restart.repeated_samples / timeline.num_train,
            "compared_updates": [restart.compared.start, restart.compared.stop - 1],
            "faults": list(restart.faults),
        }


def least_memory(plan: Plan) -> int:
    """Bytes of memory without which `rehearse` cannot go through a run."""
    largest = max(planned.segment.global_batch_size for planned in plan.segments)
    return SAMPLE_BYTES * (plan.dataset.num_train + largest) + _UPDATE_BYTES * plan.timeline.num_updates


def rehearse(
    plan: Plan,
    *,
    checkpoint_every: float | Literal["update"],
    failures: Sequence[Failure] = (),
    restart_plan: Plan | None = None,
    storage: Storage = Storage(),
    stream: Order | None = None,
    tell: Callable[[int, int], None] = lambda done, of: None,
) -> Rehearsal:
    """Go through a whole run without its model.

    Args:
        plan: of the run.
        checkpoint_every: epochs, or `update`.
        failures: ranks that die; each is followed by a restart from the newest checkpoint.
        restart_plan: of the same recipe on the workers that go on after a failure; left out, the same.
        storage: what is known of it.
        stream: the order of the samples; the recipe's if left out.
        tell: called with the epochs that are checked and their number.
    """
    timeline, recipe = plan.timeline, plan.recipe
    stream = stream or stream_of(recipe, plan.dataset)
    order = check_order(plan, stream, tell=tell)
    rates = np.array([learning_rate_at(recipe, timeline.epoch_at(update)) for update in range(timeline.num_updates)])
    checkpoints = tuple(timeline.all_due(checkpoint_every))
    restarts = [
        _restart(plan, restart_plan or plan, failure, checkpoints=checkpoints, rates=rates, stream=stream)
        for failure in sorted(failures, key=lambda failure: failure.update)
    ]
    return Rehearsal(
        plan=plan,
        order=order,
        learning_rates=rates,
        checkpoints=checkpoints,
        evaluations=tuple(timeline.all_due(recipe.evaluation.every, offset=recipe.evaluation.offset)),
        restarts=tuple(restarts),
        storage=storage,
    )


def _restart(
    plan: Plan, then: Plan, failure: Failure, *, checkpoints: Sequence[int], rates: np.ndarray, stream: Order
) -> Restart:
    timeline, died = plan.timeline, failure.update
    begin = max((update for update in checkpoints if update <= died), default=0)
    stop = timeline.first_update_at(timeline.epoch_at(died) + _COMPARED_EPOCHS)
    compared = range(begin, max(stop, died + 1))
    faults = [*_other_steps(plan, then, begin, rates), *_other_samples(plan, then, compared, stream)]
    return Restart(
        failure=failure,
        workers=then.workers,
        update=begin,
        repeated_updates=died - begin,
        repeated_samples=timeline.samples_at(died) - timeline.samples_at(begin),
        compared=compared,
        faults=tuple(faults),
    )


def _other_steps(plan: Plan, then: Plan, begin: int, rates: np.ndarray) -> list[str]:
    """The first update, if any, whose start, batch or rate is another after a restart.

    The restarted run is stepped from what its checkpoint stores, updates and samples done; no timeline is asked.
    """
    recipe, timeline = then.recipe, plan.timeline
    samples = timeline.samples_at(begin)
    for update in range(begin, timeline.num_updates):
        epoch = samples / then.dataset.num_train
        actual = samples, batch_size_at(recipe, epoch), learning_rate_at(recipe, epoch), momentum_at(recipe, epoch)
        size = timeline.segment_of(update).global_batch_size
        momentum = momentum_at(plan.recipe, timeline.epoch_at(update))
        if actual != (expected := (timeline.samples_at(update), size, rates[update], momentum)):
            names = ("samples before it", "batch", "rate", "momentum")
            differ = (f"{n} {a}, not {e}" for n, a, e in zip(names, actual, expected, strict=True) if a != e)
            return [f"update {update}: {', '.join(differ)}"]
        samples += size
    return []


def _other_samples(plan: Plan, then: Plan, updates: range, stream: Order) -> list[str]:
    """The first update, if any, of which the workers of a restart take other samples or in another order."""
    shares = [[Shares(planned.division) for planned in each.segments] for each in (plan, then)]
    step = max(1, 2**20 // max(planned.segment.global_batch_size for planned in plan.segments))
    for first in range(updates.start, updates.stop, step):
        here = range(first, min(first + step, updates.stop))
        whole, again = (_in_order(each, held, here, stream) for each, held in zip((plan, then), shares, strict=True))
        if not np.array_equal(whole, again):
            return [f"updates {here.start} to {here.stop - 1}: other samples, or in another order"]
    return []


def _in_order(plan: Plan, shares: list[Shares], updates: range, stream: Order) -> np.ndarray:
    """What the workers draw in some updates, sorted by the position at which they take it: (position, sample)."""
    drawn = [positions.ravel() for _, positions in taken(plan, shares, updates)]
    positions = np.concatenate(drawn)
    _, ids = stream.at(positions)
    order = np.argsort(positions, kind="stable")
    return np.stack([positions[order], ids[order]])
