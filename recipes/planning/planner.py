"""recipe x data set x cluster -> plan: what every worker does in every update."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from recipes.planning.cluster import Cluster
from recipes.planning.division import Division, PlanError, divide, largest_divisor
from recipes.planning.memory import SPREAD, TORCH_SPREAD, USABLE, Model, largest_that_fits
from recipes.planning.rates import learning_rate_at
from recipes.planning.timeline import Segment, Timeline, timeline_of
from recipes.schema import Dataset, Recipe
from recipes.schema.image_size import sides_by_size

_AUTO_MICRO_BATCH_SIZE = 64  # samples, at least a norm group; on GPUs as many as fit, where that is known
_AUTO_OF_SMALL_IMAGES, _SMALL_IMAGE = 256, 32  # samples; pixels a side, at most: operations on fewer are too short

_LEAST_MEMORY = 10**6  # bytes of a device; less was given in another unit


class NormGroupTooLarge(PlanError):
    """A norm group that one worker must compute whole does not fit its micro-batch."""


@dataclass(frozen=True, kw_only=True)
class PlannedSegment:
    """A segment of the timeline with its division over the workers."""

    segment: Segment
    division: Division


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A recipe on `workers` workers of a cluster, with a division for each segment of the timeline of all updates.

    Args:
        model: sizes for the memory, or None where they are not known.
        exact: divided so that the bits of the run do not depend on the number of workers.
        why_not_exact: what keeps the bits from that, and a way out; None where `exact`.
        micro_batch_size: the most samples of one forward on one worker that was asked for, or `auto`.
    """

    recipe: Recipe
    dataset: Dataset
    cluster: Cluster
    workers: int
    timeline: Timeline
    segments: tuple[PlannedSegment, ...]
    model: Model | None = None
    exact: bool = False
    why_not_exact: str | None = None
    micro_batch_size: int | str = "auto"

    def division_of(self, update: int) -> Division:
        """How an update is divided."""
        wanted = self.timeline.segment_of(update)
        return next(planned.division for planned in self.segments if planned.segment is wanted)

    def limited(self, micro_batch_size: int) -> Plan:
        """The same plan in micro-batches of at most `micro_batch_size` samples, yet at least one norm group."""
        return self.divided_as([planned.division.limited(micro_batch_size) for planned in self.segments])

    def in_micro_batches(self, size: int) -> Plan:
        """The plan of the same run that was asked for micro-batches of at most `size` samples.

        Raises:
            PlanError: as `plan` does.
        """
        divided = self.divided_as([self._divided(planned.segment, size) for planned in self.segments])
        made = replace(divided, micro_batch_size=size)
        _require_memory(made)
        return made

    def divided_as(self, divisions: Sequence[Division]) -> Plan:
        """The same plan with these divisions, one a segment."""
        pairs = zip(self.segments, divisions, strict=True)
        return replace(self, segments=tuple(replace(planned, division=division) for planned, division in pairs))

    def without_exact(self, why: str, micro_batch_size: int | None) -> Plan:
        """The same run divided without equal bits on any number of workers; `micro_batch_size` as for `plan`."""
        return plan(
            recipe=self.recipe,
            dataset=self.dataset,
            cluster=self.cluster,
            workers=self.workers,
            model=self.model,
            micro_batch_size=micro_batch_size,
            why_not_exact=why,
        )

    @property
    def busy(self) -> float:
        """The share of the workers' time in which they have samples to compute, in (0, 1]; the rest they wait."""
        each = [(planned.segment, planned.division.samples_of(0)) for planned in self.segments]  # no worker has more
        done = sum(segment.num_updates * segment.global_batch_size for segment, _ in each)
        return done / (self.workers * sum(segment.num_updates * most for segment, most in each))

    def memory_of(self, planned: PlannedSegment, division: Division | None = None) -> dict[str, int | None]:
        """Bytes of a device in the updates of a segment, by what they are; as if it were divided as `division`."""
        return self.model.memory_with(
            division or planned.division,
            image_size=planned.segment.image_size,
            compute=self.recipe.precision.compute,
            exact=self.exact,
            on_gpu=self.cluster.device == "gpu",
        )

    def most_samples(self, planned: PlannedSegment) -> int:
        """The largest micro-batch of a segment that fits a device; 0: not even one sample."""
        room = int(USABLE * self.cluster.device_memory_bytes)
        whole = self._divided(planned.segment, planned.segment.global_batch_size)
        return largest_that_fits(whole, lambda division: self.memory_of(planned, division)["total_bytes"], room)

    def most_samples_anywhere(self, segment: Segment) -> int:
        """The most samples of one forward of a segment, on any number of workers; they may have fewer.

        Where `auto` was asked for, it is what one worker would take for the whole batch.
        """
        size = self.micro_batch_size
        if size == "auto" and self.model is not None:
            alone = replace(self, workers=1)
            size = _fitting(alone, PlannedSegment(segment=segment, division=alone._divided(segment, "auto")))
        return largest_micro_batch(size, self.recipe, segment)

    def has_room_on(self, workers: int, segment: Segment) -> bool:
        """Whether `plan` lets so many workers take the updates of a segment; it never refuses a CPU's activations."""
        if self.model is None:
            return True
        needed = sum(self.model.memory(self.recipe.precision.compute).values())
        if self.cluster.device == "gpu":
            among = replace(self, workers=workers)
            planned = PlannedSegment(segment=segment, division=among._divided(segment, self.micro_batch_size))
            if self.micro_batch_size == "auto":
                planned = replace(planned, division=among._divided(segment, _fitting(among, planned)))
            needed = max(needed, self.memory_of(planned)["total_bytes"] or 0)
        return needed <= self.cluster.device_memory_bytes

    def has_room_on_any(self, segment: Segment) -> bool:
        """Whether that surely holds for any number of workers of exact mode: False says nothing.

        No worker holds more than one that has the whole batch and, of n norm groups, twice as many sums as n has bits.
        """
        auto = self.micro_batch_size == "auto"  # then a micro-batch of one norm group is enough
        size, share = (segment.norm_span, USABLE) if auto else (self.micro_batch_size, 1.0)
        division = replace(self, workers=1)._divided(segment, size)
        memory = self.memory_of(PlannedSegment(segment=segment, division=division))
        if memory["total_bytes"] is None:
            return False
        sums = 2 * division.num_groups.bit_length() * memory["weights_bytes"]
        return memory["total_bytes"] - memory["sums_bytes"] + sums <= share * self.cluster.device_memory_bytes

    def _divided(self, segment: Segment, micro_batch_size: int | str) -> Division:
        return _division(self.recipe, segment, self.workers, micro_batch_size, exact=self.exact, by_group=False)

    @property
    def fullest(self) -> PlannedSegment:
        """The segment whose updates need the most memory; the first one where that is not known."""
        return max(self.segments, key=lambda planned: self.memory_of(planned)["total_bytes"] or 0)

    def _memory_tree(self) -> dict[str, Any]:
        """Memory of a device in the segment that needs most, and what other micro-batches would cost there."""
        planned, device = self.fullest, {"device_bytes": self.cluster.device_memory_bytes}
        memory = self.memory_of(planned)
        if memory["total_bytes"] is None:
            return {**memory, **device}
        own, most, rows = planned.division.largest, self.most_samples(planned), {}
        for size in filter(None, (most, own, own // 2, own // 4)):
            with suppress(PlanError):  # a part of a norm group, for want of workers
                division = self._divided(planned.segment, size)
                rows[division.largest] = {
                    "micro_batch_size": division.largest,
                    "accumulation_steps": division.most_micro_batches,
                    "total_bytes": self.memory_of(planned, division)["total_bytes"],
                }
        choices = [rows[size] for size in sorted(rows, reverse=True)]
        held = sum(self.model.memory(self.recipe.precision.compute).values())
        kernels, total = None if self.cluster.device == "gpu" else self.model.cpu_kernels, memory["total_bytes"]
        spread = TORCH_SPREAD if kernels == "torch" else SPREAD
        memory["range_bytes"] = [max(held, int(total / spread)), int(total * spread)]
        memory["rests_on"] = "counted; activations and workspace by a measurement of the model on a CPU"
        if kernels == "torch":
            memory["rests_on"] += ", with a share for the gaps that PyTorch's kernels leave"
        elif kernels == "chainer":
            memory["range_bytes"] = None
            memory["rests_on"] += " with NumPy's kernels; Chainer's need much more, which is not counted"
        return {**memory, **device, "update": planned.segment.update, "largest_that_fits": most, "choices": choices}

    @property
    def workers_all_busy(self) -> list[int]:
        """The nearest numbers of workers, below and above, of which none would wait for another's samples."""
        groups = math.gcd(*(planned.division.num_groups for planned in self.segments))
        fit = [number for number in range(1, min(groups, 10**6) + 1) if groups % number == 0]
        return [*[n for n in fit if n < self.workers][-1:], *[n for n in fit if n > self.workers][:1]]

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the plan can do, yet not as the user would want it."""
        return self.warnings_after(0)

    def warnings_after(self, update: int) -> tuple[str, ...]:
        """Those of a run that goes on after so many updates."""
        rows = []
        for planned in self.segments:
            idle, end = planned.division.idle_workers, planned.segment.update + planned.segment.num_updates
            if idle and update < end:
                groups = planned.division.num_groups
                rows.append(
                    f"from update {planned.segment.update} on {idle} of {self.workers} workers have no samples, "
                    f"because batch.norm_span {planned.segment.norm_span} makes {groups} norm "
                    f"group{'s' * (groups > 1)} of an update; fewer workers or a smaller norm_span would use them all"
                    + (", or --fast, where workers share norm groups" if self.exact else "")
                )
        return (*rows, *([too_large] if (too_large := _too_large(self)) else []))

    @property
    def without_noise_scale(self) -> tuple[str, ...]:
        """Where the noise scale cannot be measured, and why."""
        rows = []
        for planned in self.segments:
            shares, first = planned.division.num_whole_micro_batches, planned.segment.update
            if shares < 2:
                why = "each update is one micro-batch" if shares else "each norm group lies on several workers"
                way_out = "a smaller --micro-batch-size" if shares else "a larger micro-batch or fewer workers"
                rows.append(
                    f"from update {first} on no noise scale is measured: {why}, and it compares micro-batches that "
                    f"hold whole norm groups; {way_out} would give several"
                )
        return tuple(rows)

    def as_tree(self) -> dict[str, Any]:
        """The plan as plain data, for YAML and JSON."""
        return {
            "recipe": self.recipe.name,
            "dataset": self.dataset.name,
            "cluster": self.cluster.name,
            "workers": self.workers,
            "compute": self.recipe.precision.compute,
            "exact": self.exact,
            **({"why_not_exact": self.why_not_exact} if self.why_not_exact else {}),
            "num_updates": self.timeline.num_updates,
            "num_samples": self.timeline.num_samples,
            **({"held_out": self.dataset.num_eval} if self.dataset.validation is not None else {}),
            "busy": self.busy,
            "segments": [self._segment_tree(planned) for planned in self.segments],
            "memory": self._memory_tree() if self.model else None,
            "warnings": list(self.warnings),
        }

    def _segment_tree(self, planned: PlannedSegment) -> dict[str, Any]:
        segment, division = planned.segment, planned.division
        ends = (segment.update, segment.update + segment.num_updates - 1)
        return {
            **asdict(segment),
            "epoch": self.timeline.epoch_at(segment.update),
            "num_groups": division.num_groups,
            "team_size": division.team_size,
            "num_teams": division.num_teams,
            "idle_workers": division.idle_workers,
            "samples_per_worker": [division.samples_of(rank) for rank in range(self.workers)],
            "micro_batch_size": division.largest,
            "accumulation_steps": division.most_micro_batches,
            "num_shares": division.num_whole_micro_batches,
            "learning_rate": [learning_rate_at(self.recipe, self.timeline.epoch_at(u)) for u in ends],
        }


def plan(
    *,
    recipe: Recipe,
    dataset: Dataset,
    cluster: Cluster,
    workers: int | None = None,
    micro_batch_size: int | None = None,
    model: Model | None = None,
    exact: bool = False,
    why_not_exact: str | None = None,
    by_group: bool = False,
) -> Plan:
    """Divide a recipe over workers.

    Args:
        recipe, dataset, cluster: what is trained, on what, and where.
        workers: how many of the cluster's workers; all of them by default.
        micro_batch_size: the most samples of one forward on one worker; the cluster's by default.
        model: sizes for the memory.
        exact: divide it so that the bits of the run do not depend on the number of workers.
        why_not_exact: where not `exact`, what keeps the bits from that.
        by_group: with `exact`, give each norm group a forward of its own, whose gradient can be measured.
    Raises:
        NormGroupTooLarge: `exact`, and a norm group is larger than the micro-batch.
        PlanError: no workers, more than the cluster has or than the largest global batch has samples, a norm group that
            they cannot hold, or a device that is too small for the weights, or a GPU for a micro-batch; the message
            says what fits.
    """
    workers = cluster.num_workers if workers is None else workers
    whole = timeline_of(recipe, dataset)
    _require_workers(workers, cluster, whole)
    if micro_batch_size is not None and micro_batch_size < 1:
        raise PlanError(f"a micro-batch of {micro_batch_size} samples holds nothing; ask for at least 1")
    largest = micro_batch_size or cluster.micro_batch_size

    def planned(sizes: Sequence[int | str]) -> tuple[PlannedSegment, ...]:
        return tuple(
            PlannedSegment(
                segment=segment,
                division=_division(recipe, segment, workers, size, exact=exact, by_group=by_group),
            )
            for segment, size in zip(whole.segments, sizes, strict=True)
        )

    made = Plan(
        recipe=recipe,
        dataset=dataset,
        cluster=cluster,
        workers=workers,
        timeline=whole,
        segments=planned([largest] * len(whole.segments)),
        model=model,
        exact=exact,
        why_not_exact=why_not_exact,
        micro_batch_size=largest,
    )
    if largest == "auto" and model is not None:
        made = replace(made, segments=planned([_fitting(made, each) for each in made.segments]))
    _require_memory(made)
    return made


def _fitting(made: Plan, planned: PlannedSegment) -> int | str:
    """The micro-batch of a segment where the cluster leaves it open.

    On GPUs the largest that fits; on CPUs that of `auto`, or if that does not fit the largest that does, though whole
    norm groups: workers that share one would change the bits.
    """
    total = made.memory_of(planned)["total_bytes"]
    on_gpu = made.cluster.device == "gpu"
    if total is None or (not on_gpu and total <= USABLE * made.cluster.device_memory_bytes):
        return "auto"
    most = made.most_samples(planned)
    return (most or "auto") if on_gpu else max(most, planned.segment.norm_span)


def _require_workers(workers: int, cluster: Cluster, whole: Timeline) -> None:
    """Refuse more workers than the cluster has, or so many that some would have no sample in any update."""
    if not 1 <= workers <= cluster.num_workers:
        raise PlanError(
            f"{workers} workers asked of cluster {cluster.name}, which has {cluster.num_workers} "
            f"({cluster.nodes} x {cluster.workers_per_node}); ask for 1 to {cluster.num_workers}"
        )
    largest_batch = max(segment.global_batch_size for segment in whole.segments)
    if workers > largest_batch:
        raise PlanError(
            f"{workers:,} workers are more than the {largest_batch:,} samples of the largest global batch: some would "
            f"never have one; ask for at most {largest_batch:,} with -n, or for a larger batch.global"
        )


def largest_micro_batch(asked: int | str, recipe: Recipe, segment: Segment) -> int:
    """The most samples of one forward in a segment, where `asked` may be `auto`."""
    if asked != "auto":
        return asked
    side = sides_by_size(recipe).get(segment.image_size)
    small = side is not None and side <= _SMALL_IMAGE
    return max(segment.norm_span, _AUTO_OF_SMALL_IMAGES if small else _AUTO_MICRO_BATCH_SIZE)


def _division(
    recipe: Recipe, segment: Segment, workers: int, largest: int | str, *, exact: bool, by_group: bool
) -> Division:
    """How the updates of a segment are divided, at most `largest` samples a forward."""
    batch, span = segment.global_batch_size, segment.norm_span
    size = largest_micro_batch(largest, recipe, segment)
    who = None
    if getattr(recipe.optimizer, "needs_group_gradients", False):
        who, by_group = f"{type(recipe.optimizer).__name__} needs the gradient of", True
    elif exact:
        who = "to have the same bits on any number of ranks takes"
    if who is None:
        return divide(global_batch_size=batch, norm_span=span, workers=workers, micro_batch_size=size)
    if size < span:
        raise NormGroupTooLarge(
            f"{who} each norm group of {span} samples from one worker, whose micro-batch is {size}; what fits: "
            f"norm_span {largest_divisor(size, [span])}, or a micro-batch of {span}"
        )
    divided = divide(
        global_batch_size=batch, norm_span=span, workers=workers, micro_batch_size=span if by_group else size
    )
    return replace(divided, team_size=1, aligned=exact)


def _require_memory(made: Plan) -> None:
    """Refuse a device without room for the weights, gradients and optimizer state, and a GPU without for a micro-batch.

    A worker on a CPU may have more memory than its cluster file says: there the plan only warns.
    """
    if made.model is None:
        return
    held = sum(made.model.memory(made.recipe.precision.compute).values())
    if held > (has := made.cluster.device_memory_bytes):
        way_out = "choose a smaller model or a cluster with larger devices"
        if has < _LEAST_MEMORY:
            way_out = "write device_memory_bytes of the cluster's file in bytes"
        raise PlanError(
            f"weights, gradients and optimizer state need {held:,} bytes, a device of cluster {made.cluster.name} has "
            f"{has:,}; {way_out}"
        )
    if made.cluster.device == "gpu" and (too_large := _too_large(made)):
        raise PlanError(too_large)


def _too_large(made: Plan) -> str | None:
    """Why the micro-batches of a plan do not fit a device, and what does; None where they do, or it is not known."""
    if made.model is None:
        return None
    planned = made.fullest
    memory, has = made.memory_of(planned), made.cluster.device_memory_bytes
    total = memory["total_bytes"]
    if total is None or total <= has:
        return None
    most = made.most_samples(planned)
    way_out = f"micro-batches of {most} fit: --micro-batch-size {most}, or micro_batch_size in the cluster file"
    if 0 < most < planned.segment.norm_span:
        team = -(-planned.segment.norm_span // most)
        way_out += f"; {team} workers then share a norm group of {planned.segment.norm_span}"
    if not most:
        way_out = "not even one sample fits; choose a smaller model or image, or a cluster with larger devices"
    return (
        f"micro-batches of {planned.division.largest} samples need {total:,} bytes on a device, "
        f"{memory['activations_bytes']:,} of them activations, and one of cluster {made.cluster.name} has {has:,}; "
        f"{way_out}"
    )
