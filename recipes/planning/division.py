"""One update divided over workers: teams, shares, micro-batches. Arithmetic only, all of it exact.

And divisors of batches and norm groups, which a refusal suggests instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recipes.errors import InputRefused


def largest_divisor(limit: int, sizes: Sequence[int]) -> int:
    """The largest number up to `limit` (and a million, which bounds the search) that divides all sizes.

    >>> largest_divisor(40, [64, 96])
    32
    """
    return next(number for number in range(min(limit, 10**6), 0, -1) if not any(size % number for size in sizes))


def nearest_divisor(span: int, sizes: Sequence[int], *, most: int) -> int:
    """The common divisor of all sizes, at most `most`, that is nearest to `span`, the smaller of two.

    >>> nearest_divisor(16, [100], most=100), nearest_divisor(16, [8], most=8)
    (20, 8)
    """
    fits = [number for number in range(1, min(most, 2 * span) + 1) if not any(size % number for size in sizes)]
    return min(fits, key=lambda number: (abs(number - span), number))


class PlanError(InputRefused):
    """A recipe that these workers cannot serve; the message names what fits nearest."""


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Samples of one forward and backward on one worker.

    Args:
        offset: of its first sample within the update, from 0.
        size: samples.
        num_groups: norm groups in it, all of the same size; 1 where it is a team member's part of a group.
        first_group: number of its first norm group within the update.
    """

    offset: int
    size: int
    num_groups: int
    first_group: int

    @property
    def by_group(self) -> tuple[MicroBatch, ...]:
        """The same samples in micro-batches of one whole norm group each."""
        span = self.size // self.num_groups
        return tuple(
            MicroBatch(offset=self.offset + n * span, size=span, num_groups=1, first_group=self.first_group + n)
            for n in range(self.num_groups)
        )


@dataclass(frozen=True, kw_only=True)
class Division:
    """How `workers` share an update of `num_groups` norm groups of `norm_span` samples each.

    Teams of `team_size` consecutive workers hold whole groups; within a team a group is split evenly, the first
    workers one sample more. The groups are given to the teams contiguously, the first teams one more. Workers that are
    left over have no samples and still join every collective call. Where workers share a group, a micro-batch holds one
    group at most: either no more fits, or there are not more groups than teams.

    With `aligned`, exact mode's, a micro-batch holds 2^k groups and begins at a multiple of 2^k: it is a node of
    `trainers.communicators.tree_sum.TreeSum`, whoever computes it. Teams then have one worker.
    """

    workers: int
    num_groups: int
    norm_span: int
    team_size: int
    groups_per_micro_batch: int
    aligned: bool = False

    @property
    def num_teams(self) -> int:
        return self.workers // self.team_size

    @property
    def idle_workers(self) -> int:
        """Workers without a sample."""
        return self.workers - self.team_size * min(self.num_teams, self.num_groups)

    @property
    def num_whole_micro_batches(self) -> int:
        """Micro-batches of an update over all workers; 0 where a team shares a norm group: none holds a whole group."""
        return sum(map(self.num_micro_batches, range(self.workers))) if self.team_size == 1 else 0

    def team_of(self, rank: int) -> int | None:
        """The number of a worker's team, or None for a worker that is left over."""
        team = rank // self.team_size
        return team if team < self.num_teams else None

    def groups_of(self, team: int) -> range:
        """The norm groups of a team."""
        return _share(self.num_groups, self.num_teams, team)

    def micro_batches(self, rank: int) -> tuple[MicroBatch, ...]:
        """What a worker computes in one update, in order."""
        team = self.team_of(rank)
        if team is None:
            return ()
        groups = self.groups_of(team)
        span, steps = self.norm_span, self.num_micro_batches(rank)
        if self.team_size > 1:
            part = self._part_of_group(rank)
            return tuple(
                MicroBatch(offset=g * span + part.start, size=len(part), num_groups=1, first_group=g) for g in groups
            )
        cut = _nodes(groups, self._largest_node) if self.aligned else _even(groups, steps)
        return tuple(
            MicroBatch(offset=held.start * span, size=len(held) * span, num_groups=len(held), first_group=held.start)
            for held in cut
        )

    def num_micro_batches(self, rank: int) -> int:
        """Micro-batches of a worker in one update; counted without making them: there may be millions."""
        team = self.team_of(rank)
        groups = range(0) if team is None else self.groups_of(team)
        if self.aligned:
            return _num_nodes(groups, self._largest_node)
        return -(-len(groups) // self.groups_per_micro_batch)

    @property
    def most_micro_batches(self) -> int:
        """Micro-batches of the worker that has most; aligned ones of a later worker may be more than the first's."""
        if not self.aligned:
            return self.num_micro_batches(0)
        return max(_num_nodes(groups, self._largest_node) for groups in self._shares_by_alignment())

    def most_sums(self, *, by_group: bool = False) -> int:
        """The most arrays of partial sums that a worker's `TreeSum` holds at a time.

        Args:
            by_group: each norm group is added by itself, not a micro-batch at once.
        """
        largest = 1 if by_group else self._largest_node
        return max(_num_sums(groups, largest) for groups in self._shares_by_alignment())

    def _shares_by_alignment(self) -> Iterator[range]:
        """The groups of some teams, among them one for each number of groups and place of the first in the tree.

        A node in n groups has at most 2^floor(log2 n), and modulo that the first groups of the teams repeat.
        """
        each, more = divmod(self.num_groups, self.num_teams)
        period = 1 << (each + (more > 0)).bit_length() - 1
        for first, stop in ((0, more), (more, self.num_teams)):
            for team in range(first, min(first + period, stop)):
                yield self.groups_of(team)

    def num_groups_of(self, rank: int) -> int:
        """Norm groups of which a worker computes all or a part in one update."""
        team = self.team_of(rank)
        return 0 if team is None else len(self.groups_of(team))

    @property
    def _largest_node(self) -> int:
        """Groups of the largest micro-batch allowed, a power of two."""
        return 1 << self.groups_per_micro_batch.bit_length() - 1

    def samples_of(self, rank: int) -> int:
        """Samples of a worker in one update."""
        team = self.team_of(rank)
        return 0 if team is None else len(self.groups_of(team)) * len(self._part_of_group(rank))

    @property
    def largest(self) -> int:
        """Samples of the largest micro-batch."""
        if self.aligned:  # the first worker's begins at 0, and no other has more groups
            held = len(self.groups_of(0))
            return min(self._largest_node, 1 << held.bit_length() - 1) * self.norm_span
        # Five groups, at most four at a time, become three and two; a worker with four groups has all four at once.
        counts = (len(self.groups_of(team)) for team in (0, self.num_teams - 1))
        groups = max(-(-count // -(-count // self.groups_per_micro_batch)) for count in counts if count)
        return groups * len(self._part_of_group(0))

    def _part_of_group(self, rank: int) -> range:
        """A worker's samples within each of its team's norm groups."""
        return _share(self.norm_span, self.team_size, rank % self.team_size)

    @property
    def next_smaller(self) -> int | None:
        """Samples of half the largest micro-batch, rounded up to whole norm groups; None where it has one at most."""
        groups = self.largest // self.norm_span
        return -(-groups // 2) * self.norm_span if groups > 1 else None

    def limited(self, micro_batch_size: int) -> Division:
        """The same shares in micro-batches of at most `micro_batch_size` samples, yet at least one norm group."""
        groups = max(1, min(self.groups_per_micro_batch, micro_batch_size // self.norm_span))
        return replace(self, groups_per_micro_batch=groups)


def _even(groups: range, parts: int) -> list[range]:
    """Groups in so many parts, the first ones one more."""
    return [groups[share.start : share.stop] for share in (_share(len(groups), parts, part) for part in range(parts))]


def _nodes(groups: range, largest: int) -> list[range]:
    """Groups in parts of 2^k that begin at a multiple of 2^k, each as large as it can be.

    >>> _nodes(range(5, 11), 4)
    [range(5, 6), range(6, 8), range(8, 10), range(10, 11)]
    """
    parts, start = [], groups.start
    while start < groups.stop:
        size = min(largest, start & -start or largest, 1 << (groups.stop - start).bit_length() - 1)
        parts.append(range(start, start + size))
        start += size
    return parts


def _num_nodes(groups: range, largest: int) -> int:
    """len(_nodes(groups, largest)), counted without making them."""
    if not groups:
        return 0
    node = min(largest, 1 << (groups.start ^ groups.stop).bit_length() - 1)  # the largest there is room for
    first, last = -(-groups.start // node) * node, groups.stop // node * node
    return (last - first) // node + (first - groups.start).bit_count() + (groups.stop - last).bit_count()


def _num_sums(groups: range, largest: int) -> int:
    """The most nodes of the tree that make up a beginning of `groups`, which are added in nodes of up to `largest`.

    >>> _num_sums(range(0, 7), 4), _num_sums(range(6, 12), 1)  # 0-3, 4-5 and 6; 6-7, 8-9 and 10
    (3, 3)
    """
    if not groups:
        return 0
    top = 1 << (groups.start ^ groups.stop).bit_length() - 1
    middle = groups.stop & -top  # nodes grow up to here, and shrink from here on
    before, after = middle - groups.start, groups.stop - middle
    most = before.bit_count() + max((after // largest + 1).bit_length() - 1, after.bit_count())
    for bit in range(before.bit_length()):
        if before >> bit & 1:  # a node of 2^bit groups, while it is made of halves
            most = max(most, (before & (1 << bit) - 1).bit_count() + max(1, bit + 1 - largest.bit_length()))
    return most


def _share(total: int, parts: int, part: int) -> range:
    """The contiguous share of part `part` of `parts`; the first ones have one more."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return range(start, start + each + (part < more))


def divide(*, global_batch_size: int, norm_span: int, workers: int, micro_batch_size: int) -> Division:
    """Divide one update.

    Args:
        global_batch_size: samples, a multiple of `norm_span`.
        norm_span: samples whose statistics are shared, at least 1.
        workers: at least 1.
        micro_batch_size: the most samples of one forward on one worker, at least 1.
    Raises:
        PlanError: a norm group needs more workers than there are.

    >>> division = divide(global_batch_size=96, norm_span=32, workers=2, micro_batch_size=64)
    >>> [division.samples_of(rank) for rank in range(2)]
    [64, 32]
    """
    num_groups, rest = divmod(global_batch_size, norm_span)
    assert rest == 0, "the recipe's loader refuses this"
    needed = -(-norm_span // micro_batch_size)
    if needed > workers:
        fits = largest_divisor(workers * micro_batch_size, [norm_span])
        raise PlanError(
            f"a norm group of {norm_span} samples needs {needed} workers at a micro-batch of {micro_batch_size}, "
            f"there are {workers}; what fits: norm_span {fits}, or a micro-batch of "
            f"{-(-norm_span // workers)}, or {needed} workers"
        )
    team_size = min(max(needed, workers // num_groups), norm_span)
    return Division(
        workers=workers,
        num_groups=num_groups,
        norm_span=norm_span,
        team_size=team_size,
        groups_per_micro_batch=max(1, micro_batch_size // norm_span),
    )
