"""Time, cost and what bounds a run, of a plan on a cluster whose hardware is described, before it starts.

Each figure is expected to lie between two others: those of the same model with every constant at the fast and at the
slow end of its range.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recipes.planning.division import PlanError
from recipes.planning.planner import Plan, PlannedSegment
from recipes.planning.timeline import Segment
from recipes.planning.timing import End, NoForecast, TimedCase, Timing, timing_of
from recipes.planning.update_time import UpdateTime
from recipes.schema.image_size import sides_by_size
from recipes.schema.vocabulary import kind_of

_COUNTED = 10**5  # evaluations up to which each is looked up
PARTS = ("compute", "exposed", "contention", "straggling", "waiting_for_input", "coordination")
Range = tuple[float, float]  # low, high


@dataclass(frozen=True, kw_only=True)
class SegmentForecast:
    """One segment of the timeline.

    Args:
        planned: which.
        update: seconds of one update of it.
        fast, slow: the same, with every constant at that end of its range.
        timing: what they rest on.
    """

    planned: PlannedSegment
    update: UpdateTime
    fast: UpdateTime
    slow: UpdateTime
    timing: Timing

    @property
    def seconds(self) -> float:
        """Of all its updates."""
        return float(self.update.total) * self.planned.segment.num_updates

    @property
    def samples_per_second(self) -> float:
        return self.planned.segment.global_batch_size / float(self.update.total)

    def range_of(self, part: str) -> Range:
        """Seconds of an update in a part of it, or in `total`."""
        ends = sorted(float(getattr(update, part)) for update in (self.fast, self.slow))
        return ends[0], ends[1]

    def as_tree(self) -> dict[str, Any]:
        """The segment as plain data."""
        segment, parts = self.planned.segment, ("communication", *PARTS)
        low, high = self.range_of("total")
        return {
            "update": segment.update,
            "seconds": self.seconds,
            "seconds_per_update": float(self.update.total),
            **{part: float(getattr(self.update, part)) for part in parts},
            "samples_per_second": self.samples_per_second,
            "ranges": {
                "seconds": [low * segment.num_updates, high * segment.num_updates],
                "seconds_per_update": [low, high],
                **{part: list(self.range_of(part)) for part in parts},
                "samples_per_second": [segment.global_batch_size / high, segment.global_batch_size / low],
            },
        }


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Time and cost of a run.

    Args:
        plan: which.
        segments: of its timeline.
        evaluation_seconds, checkpoint_seconds, start_seconds: in all.
    """

    plan: Plan
    segments: tuple[SegmentForecast, ...]
    evaluation_seconds: float
    checkpoint_seconds: float
    start_seconds: float

    @property
    def update_seconds(self) -> float:
        return sum(segment.seconds for segment in self.segments)

    @property
    def seconds(self) -> float:
        """Of the whole run."""
        return self.update_seconds + self.evaluation_seconds + self.checkpoint_seconds + self.start_seconds

    def seconds_of(self, first: int, stop: int) -> float:
        """Of the updates from `first` up to before `stop`, without evaluations."""
        total = 0.0
        for each in self.segments:
            begin = each.planned.segment.update
            end = begin + each.planned.segment.num_updates
            total += max(0, min(stop, end) - max(first, begin)) * float(each.update.total)
        return total

    @cached_property
    def ranges(self) -> dict[str, Range]:
        """Where each figure of the run is expected, and the seconds of the run in each part."""
        updates = {part: self._range_of(part) for part in (*PARTS, "total")}
        found = {part: updates[part] for part in PARTS} | {"update_seconds": updates["total"]}
        ends: tuple[End, End] = ("fast", "slow")
        factors = [float(self.segments[-1].timing.factor(self.plan.workers, end)) for end in ends]
        for name in ("evaluation_seconds", "checkpoint_seconds", "start_seconds"):
            found[name] = (getattr(self, name) * factors[0], getattr(self, name) * factors[1])
        names = ("update_seconds", "evaluation_seconds", "checkpoint_seconds", "start_seconds")
        low, high = (sum(found[name][end] for name in names) for end in (0, 1))
        hours = (self.plan.workers * low / 3600, self.plan.workers * high / 3600)
        found |= {"seconds": (low, high), "device_hours": hours}
        samples = self.plan.timeline.num_samples
        found["samples_per_second"] = (samples / updates["total"][1], samples / updates["total"][0])
        if self.dollars is not None:
            found["dollars"] = tuple(self.plan.cluster.dollars(self.plan.workers, end) for end in (low, high))
        return found

    def _range_of(self, part: str) -> Range:
        each = [(s.planned.segment.num_updates, s.range_of(part)) for s in self.segments]
        return sum(count * low for count, (low, _) in each), sum(count * high for count, (_, high) in each)

    @property
    def range_seconds(self) -> Range:
        """Where the time of the run is expected, with nine in ten runs of this kind inside."""
        return self.ranges["seconds"]

    @cached_property
    def bases(self) -> dict[str, str]:
        """What each part of the time rests on, in two or three words."""
        known: dict[str, list[str]] = {}
        for each in self.segments:
            for part, words in each.timing.bases.items():
                known.setdefault(part, []).append(words)
        found = {part: "; ".join(dict.fromkeys(words)) for part, words in known.items()}
        scored = self.segments[-1].timing.rate.scored_per_second
        return {
            "compute": found["compute"],
            "exposed": found["exposed"],
            "contention": found["contention"],
            "straggling": found["straggling"],
            "waiting_for_input": "cluster's file",
            "coordination": found["exposed"] if self.shares_norm_groups else "cluster's file",
            "evaluation_seconds": "a third of a sample's training time" if scored is None else "probe",
            "checkpoint_seconds": "cluster's file",
            "start_seconds": "cluster's file",
        }

    @property
    def shares_norm_groups(self) -> bool:
        """Whether workers wait for each other's statistics in any of the updates."""
        return any(each.planned.division.team_size > 1 for each in self.segments)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the time leaves out."""
        unknown = any(each.timing.network.norm_channels is None for each in self.segments)
        if not self.shares_norm_groups or not unknown:
            return ()
        model = self.segments[0].timing.case.model
        what = "workers share norm groups, and this time leaves out how they wait for each other's statistics"
        return (f"{what}: the planner does not know the normalisation layers of {model}",)

    def seconds_in(self, part: str) -> float:
        """Seconds of the run in one of `PARTS`."""
        return sum(s.planned.segment.num_updates * float(getattr(s.update, part)) for s in self.segments)

    @property
    def device_hours(self) -> float:
        return self.plan.workers * self.seconds / 3600

    @property
    def dollars(self) -> float | None:
        return self.plan.cluster.dollars(self.plan.workers, self.seconds)

    @property
    def samples_per_second(self) -> float:
        """Over all updates, without evaluations."""
        return self.plan.timeline.num_samples / self.update_seconds

    def share(self, part: str) -> float:
        """Of the time of all updates that a part takes, one of `PARTS`."""
        return self.seconds_in(part) / self.update_seconds

    @property
    def bound_by(self) -> str:
        """The largest part of the time of the updates."""
        return max(PARTS, key=self.share)

    @cached_property
    def efficiency(self) -> dict[str, float]:
        """Rate a device over that of one device, and of one full node, at the same micro-batches and accumulation."""
        found = {}
        for name, devices in (("one_device", 1), ("one_node", self.plan.cluster.workers_per_node)):
            alone = 0.0
            for each in self.segments:
                division, segment = fullest_division(each.planned), each.planned.segment
                parts = segment.global_batch_size / math.prod(division.values())  # fullest devices that it would fill
                size = division["micro_batch_size"]
                timing = timing_of(
                    each.timing.case, micro_batch_size=size, devices=devices
                )  # of its own rate, if probed
                one = float(timing.update(devices=devices, **division).total)
                alone += segment.num_updates * one * parts / self.plan.workers
            found[name] = alone / self.update_seconds
        return found

    @property
    def rests_on(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line for each in self.segments for line in each.timing.rests_on))

    def as_tree(self) -> dict[str, Any]:
        """The forecast as plain data, for YAML and JSON."""
        return {
            "seconds": self.seconds,
            "range_seconds": list(self.range_seconds),
            "update_seconds": self.update_seconds,
            "evaluation_seconds": self.evaluation_seconds,
            "checkpoint_seconds": self.checkpoint_seconds,
            "start_seconds": self.start_seconds,
            "device_hours": self.device_hours,
            "dollars": self.dollars,
            **({} if self.dollars is None else {"billed_devices": self.plan.cluster.billed_devices(self.plan.workers)}),
            "updates": self.plan.timeline.num_updates,
            "samples": self.plan.timeline.num_samples,
            "samples_per_second": self.samples_per_second,
            "efficiency": self.efficiency,
            "bound_by": self.bound_by,
            "shares": {part: self.share(part) for part in PARTS},
            "segments": [each.as_tree() for each in self.segments],
            "ranges": {name: list(ends) for name, ends in self.ranges.items()},
            "bases": self.bases,
            "rests_on": list(self.rests_on),
        }


def fullest_division(planned: PlannedSegment) -> dict[str, int]:
    """The most steps of a worker, and the micro-batch that makes them the most samples of one."""
    division = planned.division
    steps = division.most_micro_batches
    return {"micro_batch_size": -(-division.samples_of(0) // steps), "steps": steps}


def case_of(plan: Plan, segment: Segment) -> TimedCase:
    """What is timed of a plan in one of its segments."""
    recipe = plan.recipe
    return TimedCase(
        cluster=plan.cluster,
        model=kind_of(recipe.model),
        image_size=sides_by_size(recipe).get(segment.image_size, segment.image_size),
        precision=recipe.precision.compute,
        num_classes=plan.dataset.num_classes,
        num_parameters=plan.model.num_parameters if plan.model else None,
        norm_channels=plan.model.norm_channels if plan.model else None,
        double_buffering=recipe.updater.double_buffering,
        exact=plan.exact,
        untimed_because=recipe.updater.why_not_exact,
    )


def forecast(plan: Plan) -> Forecast:
    """The time of a plan.

    Args:
        plan: on a cluster with `hardware`.
    Raises:
        NoForecast: the cluster lacks a figure.
    """
    segments = []
    for planned in plan.segments:
        division = fullest_division(planned)
        timing = timing_of(
            case_of(plan, planned.segment), micro_batch_size=division["micro_batch_size"], devices=plan.workers
        )
        made, fast, slow = (
            timing.update(
                devices=plan.workers,
                samples=planned.segment.global_batch_size,
                team_size=planned.division.team_size,
                **division,
                end=end,
            )
            for end in ("expected", "fast", "slow")
        )
        segments.append(SegmentForecast(planned=planned, update=made, fast=fast, slow=slow, timing=timing))
    evaluations = num_evaluations(plan)
    each = -(-plan.dataset.num_eval // plan.workers)
    return Forecast(
        plan=plan,
        segments=tuple(segments),
        evaluation_seconds=evaluations * each * segments[-1].timing.scoring_seconds,
        checkpoint_seconds=checkpoint_seconds(plan),
        start_seconds=plan.cluster.hardware.start_seconds,
    )


def by_micro_batch(plan: Plan, sizes: Sequence[int]) -> dict[int, Forecast]:
    """The run as if it had been asked for micro-batches of each size.

    Without sizes that `plan` refuses, and those that divide norm groups where the time leaves out what that costs.
    """
    spans, found = max(planned.segment.norm_span for planned in plan.segments), {}
    for size in sizes:
        with suppress(PlanError):
            time = forecast(plan.in_micro_batches(size))
            if size >= spans or not time.warnings:
                found[size] = time
    return found


def forecast_tree(plan: Plan) -> dict[str, Any] | None:
    """A plan's forecast as plain data; None where its cluster lacks a figure."""
    try:
        return forecast(plan).as_tree()
    except NoForecast:
        return None


def checkpoint_seconds(plan: Plan) -> float:
    """Of one checkpoint an epoch."""
    return math.ceil(plan.recipe.epochs) * seconds_of_a_checkpoint(plan)


def seconds_of_a_checkpoint(plan: Plan) -> float:
    """To write it; 0 where the disk's rate or the model's size is not known."""
    rate, size = plan.cluster.hardware.write_gb_per_second, checkpoint_bytes(plan)
    return 0.0 if rate is None or size is None else size / (rate * 1e9)


def checkpoint_bytes(plan: Plan) -> int | None:
    """Size of a checkpoint without running statistics and loss scale; None where the model's size is not known.

    With PowerSGD a little less or more: errors are counted of all weights, and its matrices are not.
    """
    if plan.model is None:
        return None
    updater, memory = plan.recipe.updater, plan.model.memory()
    weights, state = memory["weights_bytes"], memory["optimizer_state_bytes"]
    of_each = weights + state if updater.local_steps else weights * (updater.power_sgd_rank is not None)
    copies = 1 + plan.model.num_averages + updater.double_buffering
    return copies * weights + state + plan.workers * of_each


def num_evaluations(plan: Plan) -> int:
    """Evaluations of a run: after the first update that reaches each multiple, and at the end."""
    every, offset = plan.recipe.evaluation.every, plan.recipe.evaluation.offset
    if every == "update":  # may be millions
        return plan.timeline.num_updates - max(0, plan.timeline.first_update_at(offset) - 1)
    if (most := (plan.recipe.epochs - offset) / every) > _COUNTED:
        return min(plan.timeline.num_updates, math.ceil(most))
    return sum(1 for _ in plan.timeline.all_due(every, offset=offset))
