"""One update divided: nothing dropped, padded or doubled, whatever the workers."""

import itertools
from dataclasses import replace

import pytest

from recipes.planning.division import PlanError, divide


def shares(**options):
    division = divide(**options)
    return division, [division.micro_batches(rank) for rank in range(options["workers"])]


CASES = [
    {"global_batch_size": b, "norm_span": s, "workers": w, "micro_batch_size": m}
    for b, s, w, m in itertools.product([96, 192, 512], [8, 16, 32, 96], [1, 2, 3, 4, 5, 7, 16], [16, 32, 40, 64, 512])
    if b % s == 0 and -(-s // m) <= w
]


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
def test_every_sample_is_computed_once_within_the_micro_batch(options):
    division, parts = shares(**options)
    offsets = [p for own in parts for m in own for p in range(m.offset, m.offset + m.size)]
    assert sorted(offsets) == list(range(options["global_batch_size"]))
    assert all(m.size <= max(options["micro_batch_size"], 1) for own in parts for m in own)
    assert sum(not own for own in parts) == division.idle_workers
    assert [division.num_micro_batches(rank) for rank in range(len(parts))] == [len(own) for own in parts]
    assert [division.samples_of(rank) for rank in range(len(parts))] == [sum(m.size for m in own) for own in parts]
    assert division.largest == max(m.size for own in parts for m in own)
    assert division.num_whole_micro_batches == (sum(map(len, parts)) if division.team_size == 1 else 0)
    # A norm group is whole on one worker, or one slot of each of a team.
    span = options["norm_span"]
    if division.team_size == 1:
        assert all(m.offset % span == 0 and m.size == m.num_groups * span for own in parts for m in own)
        return
    for team in range(division.num_teams):
        members = range(team * division.team_size, (team + 1) * division.team_size)
        for slot in zip(*(parts[rank] for rank in members), strict=True):
            sizes = [m.size for m in slot]
            assert (sum(sizes), slot[0].offset % span) == (span, 0)
            assert sizes == sorted(sizes, reverse=True)
            assert sizes[0] - sizes[-1] <= 1


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 8, 64])
@pytest.mark.parametrize("workers", [1, 2, 3, 5, 7, 16, 40])
@pytest.mark.parametrize("groups", [1, 2, 3, 6, 16, 21, 33])
def test_aligned_micro_batches_are_nodes_of_one_tree(groups, workers, limit):
    sizes = {"global_batch_size": 8 * groups, "norm_span": 8, "workers": workers, "micro_batch_size": 8 * limit}
    division = replace(divide(**sizes), team_size=1, aligned=True)
    parts = [division.micro_batches(rank) for rank in range(workers)]
    assert [g for own in parts for m in own for g in range(m.first_group, m.first_group + m.num_groups)] == list(
        range(groups)
    )
    for own in parts:
        assert all(m.num_groups.bit_count() == 1 and m.first_group % m.num_groups == 0 for m in own)
        assert all(m.num_groups <= limit and (m.offset, m.size) == (8 * m.first_group, 8 * m.num_groups) for m in own)
        siblings = [
            one
            for one, other in itertools.pairwise(own)
            if one.num_groups == other.num_groups and one.first_group % (2 * one.num_groups) == 0
        ]
        assert all(2 * one.num_groups > limit for one in siblings), "they are as large as they can be"
    assert [division.num_micro_batches(rank) for rank in range(workers)] == [len(own) for own in parts]
    assert division.most_micro_batches == max(map(len, parts))
    assert [division.num_groups_of(rank) for rank in range(workers)] == [sum(m.num_groups for m in p) for p in parts]
    assert division.largest == max(m.size for own in parts for m in own)
    for part in parts[0]:
        assert [(one.first_group, one.offset) for one in part.by_group] == [
            (g, 8 * g) for g in range(part.first_group, part.first_group + part.num_groups)
        ]


@pytest.mark.parametrize("options", CASES, ids=lambda o: "-".join(map(str, o.values())))
def test_the_next_smaller_micro_batch_is_half_in_whole_groups_and_what_a_smaller_limit_would_plan(options):
    division, tried = divide(**options), [divide(**options).largest]
    while (size := division.next_smaller) is not None:
        division = division.limited(size)
        planned = divide(**{**options, "micro_batch_size": size})
        assert [division.micro_batches(r) for r in range(9)] == [planned.micro_batches(r) for r in range(9)]
        assert size == division.largest
        assert (size % options["norm_span"], size < tried[-1]) == (0, True)
        tried.append(size)
    assert division.team_size > 1 or division.largest == options["norm_span"]
    assert len(tried) <= 1 + tried[0].bit_length()


def test_by_hand_192_samples_on_five_workers():
    division, parts = shares(global_batch_size=192, norm_span=32, workers=5, micro_batch_size=64)
    assert division.team_size == 1
    assert [sum(m.size for m in own) for own in parts] == [64, 32, 32, 32, 32]


def test_by_hand_a_span_above_the_micro_batch_takes_teams():
    division, parts = shares(global_batch_size=96, norm_span=32, workers=5, micro_batch_size=16)
    assert (division.team_size, division.num_teams, division.idle_workers) == (2, 2, 1)
    assert [[(m.offset, m.size) for m in own] for own in parts] == [
        [(0, 16), (32, 16)],
        [(16, 16), (48, 16)],
        [(64, 16)],
        [(80, 16)],
        [],
    ]


def test_more_workers_than_groups_share_them_in_teams():
    division, parts = shares(global_batch_size=96, norm_span=32, workers=7, micro_batch_size=64)
    assert (division.team_size, division.idle_workers) == (2, 1)
    assert [sum(m.size for m in own) for own in parts] == [16] * 6 + [0]


def test_accumulation_is_split_evenly():
    _, parts = shares(global_batch_size=160, norm_span=32, workers=1, micro_batch_size=64)
    assert [m.size for m in parts[0]] == [64, 64, 32]


def test_a_group_that_the_workers_cannot_hold_is_refused_with_what_fits():
    with pytest.raises(
        PlanError, match=r"needs 4 workers .* there are 2; what fits: norm_span 16, or a micro-batch of 16"
    ):
        divide(global_batch_size=96, norm_span=32, workers=2, micro_batch_size=8)
