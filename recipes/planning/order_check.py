"""Whether all workers together take every sample once an epoch: counted over a whole run, not assumed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from recipes.planning.division import Division
from recipes.planning.planner import Plan

_THREADS = 4  # at most
_HELD = 2 * 10**7  # samples of the epochs that are counted at a time; more only where one epoch has more
SAMPLE_BYTES = 170  # of memory for each of them, measured
_FIRST = 20  # samples by which the orders of epochs are told apart
_NAMED = 5  # faults at most


class Order(Protocol):
    """An order of samples to check: `recipes.planning.stream.Stream`, or one in its place."""

    num_samples: int
    repeats: int

    def at(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Keys of the draws and indices of the samples at some positions, int64 (positions,)."""


@dataclass(frozen=True, kw_only=True)
class OrderCheck:
    """What was counted.

    Args:
        num_samples: of the training set; the ids 0 ... num_samples - 1 are counted in every epoch.
        whole_epochs: epochs that the run takes whole. Each id comes once in each of them; with `repeats` r,
            ceil(num_samples / r) ids come r times, the last of them perhaps less often.
        rest: samples that the last update takes of the epoch after these; none of them comes twice.
        repeats: how often a sample comes in a row.
        drawn: samples of all updates, over all workers.
        faults: what is wrong, in words; empty where all holds.
    """

    num_samples: int
    whole_epochs: int
    rest: int
    repeats: int
    drawn: int
    faults: tuple[str, ...]


class Shares:
    """The positions within an update that the workers take, rank after rank and micro-batch after micro-batch.

    Attributes:
        positions: int64 (samples,), from 0; a right division has each of them once.
        ranks: int64 (samples,): who takes it.
    """

    def __init__(self, division: Division) -> None:
        parts = [(rank, part) for rank in range(division.workers) for part in division.micro_batches(rank)]
        self.positions = np.concatenate([np.arange(part.offset, part.offset + part.size) for _, part in parts])
        self.ranks = np.repeat([rank for rank, _ in parts], [part.size for _, part in parts])

    def faults(self, size: int) -> Iterator[str]:
        """What is wrong with them as shares of an update of `size` samples."""
        counts = np.bincount(self.positions, minlength=size)
        for position in np.flatnonzero(counts != 1)[:_NAMED]:
            takers = self.ranks[self.positions == position].tolist()
            who = f"ranks {', '.join(map(str, takers))} take" if takers else "no rank takes"
            yield f"{who} sample {position} of {size:,}"


def taken(plan: Plan, shares: list[Shares], updates: range) -> Iterator[tuple[Shares, np.ndarray]]:
    """What the workers take in some updates, segment after segment.

    Args:
        plan: of the run.
        shares: of its segments.
        updates: of the run.
    Yields:
        the shares, and the positions in the stream that they are, int64 (updates, samples).
    """
    for planned, held in zip(plan.segments, shares, strict=True):
        segment = planned.segment
        first = max(updates.start, segment.update)
        here = range(first, min(updates.stop, segment.update + segment.num_updates))
        if here:
            starts = segment.samples + (np.array(here) - segment.update) * segment.global_batch_size
            yield held, starts[:, None] + held.positions


def check_order(plan: Plan, stream: Order, *, tell: Callable[[int, int], None] = lambda done, of: None) -> OrderCheck:
    """Draw every sample of the run for every worker, and count.

    Args:
        plan: of the run, with the division over its workers.
        stream: the order of the samples.
        tell: called with the epochs that are done and their number.
    """
    timeline, size = plan.timeline, stream.num_samples
    shares = [Shares(planned.division) for planned in plan.segments]
    faults = [
        f"from update {planned.segment.update} on: {fault}"
        for planned, held in zip(plan.segments, shares, strict=True)
        for fault in held.faults(planned.segment.global_batch_size)
    ]
    whole, rest = divmod(timeline.num_samples, size)
    epochs = range(whole + bool(rest))
    threads = max(1, min(_THREADS, os.cpu_count() or 1, _HELD // size))
    pool = ThreadPoolExecutor(threads)
    drawn, seen = 0, {}
    try:
        for counted in pool.map(lambda epoch: _counted(plan, shares, stream, epoch), epochs):
            drawn += counted.drawn
            faults += counted.faults
            like = seen.setdefault(counted.first or counted.epoch, counted.epoch)
            if like != counted.epoch:
                faults.append(f"epochs {like} and {counted.epoch} begin in the same order")
            tell(counted.epoch + 1, len(epochs))
    finally:
        pool.shutdown(cancel_futures=True)
    more = len(faults) - _NAMED
    named = [*faults[:_NAMED], *([f"and {more} more of the kind"] if more > 0 else [])]
    return OrderCheck(
        num_samples=size, whole_epochs=whole, rest=rest, repeats=stream.repeats, drawn=drawn, faults=tuple(named)
    )


@dataclass(frozen=True, kw_only=True)
class _Counted:
    """One epoch: samples drawn, the first of them in the order of the stream (few samples: none), what is wrong."""

    epoch: int
    drawn: int
    first: tuple[int, ...]
    faults: list[str]


def _counted(plan: Plan, shares: list[Shares], stream: Order, epoch: int) -> _Counted:
    size, timeline = stream.num_samples, plan.timeline
    low, high = epoch * size, min((epoch + 1) * size, timeline.num_samples)
    updates = range(timeline.update_of(low), timeline.update_of(high - 1) + 1)
    inside = [positions[(positions >= low) & (positions < high)] for _, positions in taken(plan, shares, updates)]
    positions = np.concatenate(inside)
    _, ids = stream.at(positions)
    strangers = ids[(ids < 0) | (ids >= size)]
    faults = [f"epoch {epoch}: {stranger} is no sample" for stranger in strangers[:_NAMED].tolist()]
    counts = np.bincount(ids[(ids >= 0) & (ids < size)] if len(strangers) else ids, minlength=size)
    if not _comes_right(counts, high - low, stream.repeats):
        often, never = np.flatnonzero(counts > stream.repeats), np.flatnonzero(counts == 0)
        texts = []
        if len(often):
            places = np.unique(positions[ids == often[0]])[:_NAMED]
            who = (_takers(plan, shares, position) for position in places.tolist())
            texts.append(f"{len(often):,} samples come too often, such as {often[0]} ({', '.join(who)})")
        if len(never) and high - low == size and stream.repeats == 1:
            texts.append(f"{len(never):,} samples do not come, such as {never[0]}")
        text = "; ".join(texts) or f"not every sample comes {stream.repeats} times"
        faults.append(f"epoch {epoch}: {text}")
    number = _FIRST * stream.repeats
    begin = np.flatnonzero(positions < low + number)
    first = ids[begin[np.argsort(positions[begin])]] if high - low >= number else ids[:0]
    return _Counted(epoch=epoch, drawn=len(ids), first=tuple(first.tolist()), faults=faults)


def _comes_right(counts: np.ndarray, number: int, repeats: int) -> bool:
    """Whether `number` samples in a row are different ones, each `repeats` times, only the last perhaps less often."""
    full, rest = divmod(number, repeats)
    expected = np.zeros(repeats + 1, dtype=np.int64)
    expected[repeats] = full
    expected[rest] += rest > 0
    expected[0] = len(counts) - expected.sum()
    return np.array_equal(np.bincount(counts, minlength=repeats + 1), expected)


def _takers(plan: Plan, shares: list[Shares], position: int) -> str:
    update = plan.timeline.update_of(position)
    held, positions = next(taken(plan, shares, range(update, update + 1)))
    ranks = held.ranks[positions[0] == position]
    return f"rank {' and '.join(map(str, ranks))} in update {update}"
