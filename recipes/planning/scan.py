"""The time of a run on every number of devices, and what follows: devices for a time, batch for an accuracy, trials.

Time is not monotone in the devices at a fixed batch (norm groups and samples do not divide evenly), so all numbers of
devices are computed, in one call on arrays.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from recipes.errors import InputRefused
from recipes.planning.division import PlanError
from recipes.planning.forecast import PARTS, case_of, checkpoint_seconds, num_evaluations
from recipes.planning.planner import Plan
from recipes.planning.timeline import Segment
from recipes.planning.timing import End, TimedCase, calibration_of, timing_of
from recipes.schema import Recipe
from recipes.schema.vocabulary import kind_of

MOST_DEVICES = 100_000


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """Epochs to 75.9 % of ResNet-50 on ImageNet with LARS at a batch: mean, least and most of at least 10 runs."""

    batch: int
    norm_span: int
    epochs: float
    least: float
    most: float


# MLPerf Training's reference convergence points. Hyperparameters: recipes `mlperf/lars_*`.
CONVERGENCE = tuple(
    Convergence(batch=batch, norm_span=norm_span, epochs=epochs, least=least, most=most)
    for batch, norm_span, epochs, least, most in (
        (1632, 204, 35.0, 33, 37),
        (3264, 204, 35.2, 34, 37),
        (4096, 64, 40.0, 39, 42),
        (8192, 64, 42.0, 41, 44),
        (13056, 204, 45.4, 44, 46),
        (32768, 128, 56.0, 55, 57),
        (49152, 256, 68.0, 67, 69),
        (58880, 230, 79.9, 78, 81),
    )
)
CONVERGENCE_TARGET = 0.759


def epochs_to_target(batch: int) -> tuple[float, float, float]:
    """Mean, least and most epochs to 75.9 % at a batch, linear in its logarithm between the reference points.

    Raises:
        InputRefused: the batch lies outside the points.

    >>> epochs_to_target(32768)
    (56.0, 55.0, 57.0)
    """
    sizes = [point.batch for point in CONVERGENCE]
    if not sizes[0] <= batch <= sizes[-1]:
        known = f"{sizes[0]:,} to {sizes[-1]:,}"
        goal = f"{100 * CONVERGENCE_TARGET:.1f} %"
        raise InputRefused(f"epochs to {goal} are published for batches of {known}, not of {batch:,}")
    at = min(bisect_right(sizes, batch), len(sizes) - 1)
    low, high = CONVERGENCE[at - 1], CONVERGENCE[at]
    share = math.log(batch / low.batch) / math.log(high.batch / low.batch)
    values = [(getattr(low, name), getattr(high, name)) for name in ("epochs", "least", "most")]
    return tuple(float(first + share * (last - first)) for first, last in values)


@dataclass(frozen=True, kw_only=True)
class Scan:
    """The time of a run on each number of devices; infinite where they cannot serve it.

    Args:
        devices: rising, shape (n,).
        seconds: of the run, shape (n,).
        fast, slow: the same, with every constant at that end of its range.
        parts: of the updates, seconds by part, each of shape (n,).
        other: evaluations, checkpoints and start, in seconds, shape (n,).
        leaves_out: whether workers share norm groups whose time is not known, shape (n,).
    """

    devices: np.ndarray
    seconds: np.ndarray
    fast: np.ndarray
    slow: np.ndarray
    parts: dict[str, np.ndarray]
    other: np.ndarray
    leaves_out: np.ndarray

    def at(self, devices: int) -> tuple[float, float, float]:
        """Seconds on so many devices: expected, fast and slow."""
        place = int(np.flatnonzero(self.devices == devices)[0])
        return float(self.seconds[place]), float(self.fast[place]), float(self.slow[place])

    def fewest(self, seconds: float, times: np.ndarray | None = None) -> int | None:
        """The fewest devices on which the run takes at most so long, or that of `times`; None if none of them do."""
        fit = np.flatnonzero((self.seconds if times is None else times) <= seconds)
        return int(self.devices[fit[0]]) if len(fit) else None

    @property
    def fastest(self) -> int:
        """The fewest devices on which the run is fastest."""
        return int(self.devices[np.argmin(self.seconds)])


def fullest_shares(
    *,
    global_batch_size: int,
    norm_span: int,
    devices: np.ndarray,
    micro_batch_size: int,
    whole_groups: bool = False,
    aligned: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The most micro-batches of a worker, and the size that makes them the most samples of one.

    The rules are those of `division.divide` and `forecast.fullest_division`, on an array of numbers of workers.

    Args:
        whole_groups: no norm group is shared by workers.
        aligned: as of `Division`.
    Returns:
        the size, then their number; 0 where the workers cannot hold a norm group.
    """
    groups = global_batch_size // norm_span
    needed = -(-norm_span // micro_batch_size)
    team = 1 if whole_groups else _team_sizes(groups, norm_span, devices, needed)
    each = -(-groups // np.maximum(devices // team, 1))
    held = max(1, micro_batch_size // norm_span)
    steps = -(-each // held)
    if aligned:
        steps = _most_nodes(groups, devices, 1 << held.bit_length() - 1)
    serves = needed == 1 if whole_groups else devices >= needed
    return np.where(serves, -(-each * -(-norm_span // team) // steps), 0), np.where(serves, steps, 0)


def _team_sizes(groups: int, norm_span: int, devices: np.ndarray, needed: int) -> np.ndarray:
    """Workers that share a norm group, of which `needed` have room for one."""
    return np.minimum(np.maximum(needed, devices // groups), norm_span)


def _most_nodes(groups: int, workers: np.ndarray, largest: int) -> np.ndarray:
    """`Division.most_micro_batches` of aligned micro-batches of up to `largest` groups, for all these workers at once.

    A scan has up to 100,000 of them; the formulas are those of `Division._shares_by_alignment` and of `_num_nodes`.
    """
    each, more = np.divmod(groups, workers)
    period = np.minimum(largest, _highest_bit(each + (more > 0)))
    most = np.zeros_like(workers)
    kinds = ((each + 1, 0 * more, more), (each, more * (each + 1), workers - more))  # groups, the first one, how many
    for number in range(int(np.minimum(workers, period).max())):
        for length, begin, count in kinds:
            here = np.flatnonzero(number < np.minimum(count, period))
            start = (begin + number * length)[here]
            stop = start + length[here]
            node = np.minimum(largest, _highest_bit(start ^ stop))
            first, last = -(-start // node) * node, stop // node * node
            nodes = (last - first) // node + np.bitwise_count(first - start) + np.bitwise_count(stop - last)
            most[here] = np.maximum(most[here], nodes)
    return most


def _highest_bit(numbers: np.ndarray) -> np.ndarray:
    """The largest power of two up to each number, at least 1."""
    return 1 << np.maximum(np.frexp(numbers)[1] - 1, 0).astype(np.int64)


def scan(plan: Plan, devices: Sequence[int] | np.ndarray | None = None) -> Scan:
    """The time of a plan's run on other numbers of devices of its cluster, or of a larger one of its kind.

    Args:
        plan: on a cluster with `hardware`; its number of workers does not matter.
        devices: rising; from 1 to 100,000 by default.
    Raises:
        NoForecast: the cluster lacks a figure.
    """
    numbers = np.arange(1, MOST_DEVICES + 1) if devices is None else np.asarray(devices)
    timed = [each.workers for each in getattr(plan.cluster.hardware, "all_reduces", ())]
    apart = (numbers <= plan.cluster.workers_per_node) | np.isin(numbers, timed)
    evaluations = num_evaluations(plan)
    found = [_scanned(plan, one, evaluations) for one in numbers[apart, None]]
    if not apart.all():
        found.append(_scanned(plan, numbers[~apart], evaluations))
    order = np.argsort(np.concatenate([each.devices for each in found]))

    def rising(arrays: Iterable[np.ndarray]) -> np.ndarray:
        return np.concatenate(list(arrays))[order]

    return Scan(
        devices=numbers,
        seconds=rising(each.seconds for each in found),
        fast=rising(each.fast for each in found),
        slow=rising(each.slow for each in found),
        parts={part: rising(each.parts[part] for each in found) for part in PARTS},
        other=rising(each.other for each in found),
        leaves_out=rising(each.leaves_out for each in found),
    )


def _scanned(plan: Plan, devices: np.ndarray, evaluations: int) -> Scan:
    """Of numbers of devices that one calibration serves: one within a node or timed by a probe, or any others."""
    parts = {part: np.zeros(len(devices)) for part in PARTS}
    ends: dict[End, np.ndarray] = {"fast": np.zeros(len(devices)), "slow": np.zeros(len(devices))}
    factors = {end: np.ones(len(devices)) for end in ends}
    scoring, leaves_out = np.zeros(len(devices)), np.zeros(len(devices), dtype=bool)
    serves = devices <= max(planned.segment.global_batch_size for planned in plan.segments)
    for planned in plan.segments:
        micro, steps, team = _shares(plan, planned.segment, devices)
        serves = _with_room(plan, planned.segment, devices, team, serves & (micro > 0))
        case, batch = case_of(plan, planned.segment), planned.segment.global_batch_size
        updates = planned.segment.num_updates
        for size, here in _by_calibration(case, micro, devices):
            timing = timing_of(case, micro_batch_size=size, devices=int(devices[-1]))
            how = {"devices": devices[here], "micro_batch_size": micro[here], "steps": steps[here], "samples": batch}
            how["team_size"] = team[here]
            made = timing.update(**how)
            for part in PARTS:
                parts[part][here] += updates * getattr(made, part)
            for end in ends:
                ends[end][here] += updates * timing.update(**how, end=end).total
                factors[end][here] = timing.factor(devices[here], end)
            scoring[here] = timing.scoring_seconds
            leaves_out[here] |= (team[here] > 1) & (timing.network.norm_channels is None)
    scored = evaluations * -(-plan.dataset.num_eval // devices) * scoring
    other = scored + checkpoint_seconds(plan) + plan.cluster.hardware.start_seconds
    return Scan(
        devices=devices,
        seconds=np.where(serves, sum(parts.values()) + other, np.inf),
        **{end: np.where(serves, ends[end] + other * factors[end], np.inf) for end in ends},
        parts=parts,
        other=other,
        leaves_out=leaves_out,
    )


def _shares(plan: Plan, segment: Segment, devices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`fullest_shares` of a plan's segment, and how many workers share a norm group."""
    batch, span = segment.global_batch_size, segment.norm_span
    by_group = getattr(plan.recipe.optimizer, "needs_group_gradients", False)
    largest = plan.most_samples_anywhere(segment)
    largest, whole_groups = min(largest, span) if by_group else largest, by_group or plan.exact
    shares = fullest_shares(
        global_batch_size=batch,
        norm_span=span,
        devices=devices,
        micro_batch_size=largest,
        whole_groups=whole_groups,
        aligned=plan.exact,
    )
    alone = np.ones_like(devices)
    return *shares, alone if whole_groups else _team_sizes(batch // span, span, devices, -(-span // largest))


def _with_room(plan: Plan, segment: Segment, devices: np.ndarray, team: np.ndarray, serves: np.ndarray) -> np.ndarray:
    """Of the numbers of devices that serve a segment, those that `plan` does not refuse for want of memory.

    It is asked once for all numbers whose workers hold alike shares. In exact mode none do, as partial sums depend on
    where a worker's groups lie in the tree; there it is first asked for all together.
    """
    if plan.model is None or not serves.any():
        return serves
    if plan.exact and plan.cluster.device == "gpu" and plan.has_room_on_any(segment):
        return serves
    groups = segment.global_batch_size // segment.norm_span
    alike = [np.minimum(devices, groups)]
    if plan.cluster.device == "cpu":
        alike = [np.zeros_like(devices)]
    elif not plan.exact:
        teams = np.maximum(devices // team, 1)
        alike = [-(-segment.norm_span // team), groups // teams, -(-groups // teams)]
    _, first, which = np.unique(np.stack(alike)[:, serves], axis=1, return_index=True, return_inverse=True)
    has_room = np.array([plan.has_room_on(int(number), segment) for number in devices[serves][first]], dtype=bool)
    found = serves.copy()
    found[serves] = has_room[which.ravel()]
    return found


def _by_calibration(case: TimedCase, micro: np.ndarray, devices: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """A micro-batch, and where those are that are timed as it is; those of 0 are not timed."""
    sizes = np.unique(micro[micro > 0]).tolist()
    found: dict[Any, list[int]] = {}
    for size in sizes:
        found.setdefault(calibration_of(case, micro_batch_size=size, devices=int(devices[-1])), []).append(size)
    for alike in found.values():
        yield alike[-1], np.flatnonzero(np.isin(micro, alike))


def has_convergence_points(plan: Plan, top1: float) -> bool:
    """Whether the published epochs by batch are for a plan's model and data set, and for this accuracy."""
    return model_and_dataset(plan) == ("ResNet50", "imagenet") and abs(top1 - CONVERGENCE_TARGET) <= 5e-4


def model_and_dataset(plan: Plan) -> tuple[str, str]:
    """The kind of a plan's model, and the name of its data set."""
    return kind_of(plan.recipe.model), plan.dataset.name


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A way to reach an accuracy.

    Args:
        batch, epochs: and the least and most epochs of published runs.
        devices: on which it takes `seconds`.
        range_devices: fewest at the least epochs and the fast end of the constants, and at the most and the slow end;
            None where none suffice, and without a time to reach both `devices`.
        seconds: expected; at the least epochs and the fast end of the constants; at the most and the slow end.
    """

    batch: int
    epochs: tuple[float, float, float]
    devices: int
    range_devices: tuple[int | None, int | None]
    seconds: tuple[float, float, float]


def choices(plan_at: Any, *, batches: Sequence[int], devices: int, within: float | None) -> list[Choice]:
    """For each batch the fewest devices that reach 75.9 % in time, or without a time all that are of use.

    Args:
        plan_at: (batch, epochs) -> the plan of a run of that batch and length.
        batches: to try, within the reference points.
        devices: the most to take.
        within: seconds; None for the fastest.
    """
    found = []
    for batch in batches:
        epochs = epochs_to_target(batch)
        try:
            whole = plan_at(batch, epochs[0])
        except PlanError:  # more workers than there are would share a norm group
            continue
        times = scan(whole, np.arange(1, min(devices, batch) + 1))
        number = times.fastest if within is None else times.fewest(within)
        if number is None or not math.isfinite(times.at(number)[0]):
            continue
        least, most = (share / epochs[0] for share in epochs[1:])
        mean, fast, slow = times.at(number)
        ends = (number, number)
        if within is not None:
            ends = (times.fewest(within, least * times.fast), times.fewest(within, most * times.slow))
        seconds = (mean, least * fast, most * slow)
        found.append(Choice(batch=batch, epochs=epochs, devices=number, range_devices=ends, seconds=seconds))
    return found


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """Devices shared among trials of a search.

    Args:
        devices_each: of one trial.
        at_once: trials side by side.
        rounds: one after another.
        trial_seconds, seconds: of one trial, and of all.
        range_seconds: of all, with every constant at the fast and at the slow end of its range.
    """

    devices_each: int
    at_once: int
    rounds: int
    trial_seconds: float
    seconds: float
    range_seconds: tuple[float, float]


def sharings(times: Scan, *, trials: int, devices: int) -> list[Sharing]:
    """Every way to share `devices` evenly among trials, from one device each to all for one; only those that serve."""
    found = []
    for each in (number for number in range(1, devices + 1) if devices % number == 0):
        trial, fast, slow = times.at(each)
        if not math.isfinite(trial):
            continue
        at_once = min(devices // each, trials)
        rounds = -(-trials // at_once)
        found.append(
            Sharing(
                devices_each=each,
                at_once=at_once,
                rounds=rounds,
                trial_seconds=trial,
                seconds=rounds * trial,
                range_seconds=(rounds * fast, rounds * slow),
            )
        )
    return found


SEQUENTIAL_ROUNDS = 10  # assumed: a sampler that learns needs so many rounds to use what it learned


def best_sharing(found: Sequence[Sharing], *, sequential: bool) -> Sharing:
    """The fastest; for a sampler that learns from ended trials, of those with at least ten rounds where there are."""
    fit = [each for each in found if each.rounds >= SEQUENTIAL_ROUNDS] if sequential else []
    return min(fit or found, key=lambda each: (each.seconds, each.devices_each))


def at_batch(plan: Plan, batch: int, epochs: float) -> Recipe:
    """The recipe of a plan at another batch and length, for planning only: its rates are not adapted."""
    return _at_batch(plan, batch, epochs, math.gcd(batch, plan.recipe.batch.norm_span.sizes[0]))


def at_point(plan: Plan, batch: int, epochs: float) -> Recipe:
    """The same, at a batch of the reference points with the norm span of their runs."""
    of_point = {point.batch: point.norm_span for point in CONVERGENCE}
    return _at_batch(plan, batch, epochs, of_point[batch]) if batch in of_point else at_batch(plan, batch, epochs)


def _at_batch(plan: Plan, batch: int, epochs: float, norm_span: int) -> Recipe:
    ramp, span = plan.recipe.batch.global_, plan.recipe.batch.norm_span
    one = replace(plan.recipe.batch, global_=type(ramp)(boundaries=(0.0,), sizes=(batch,)))
    one = replace(one, norm_span=type(span)(boundaries=(0.0,), sizes=(norm_span,)))
    return replace(plan.recipe, batch=one, epochs=epochs)
