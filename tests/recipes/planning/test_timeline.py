"""The timeline: whole updates, boundaries by samples, the end of the run."""

import math
from fractions import Fraction

import pytest

from lr_schedules import BatchRamp
from recipes.planning.timeline import timeline
from recipes.schema.positions import last_multiple


def constant(size):
    return BatchRamp(boundaries=(0.0,), sizes=(size,))


def simulated(boundaries, sizes, epochs, num_train):
    """Updates one by one, compared as exact fractions: an independent implementation."""
    samples, updates = 0, []
    while samples < Fraction(str(epochs)) * num_train:
        now = [
            size for start, size in zip(boundaries, sizes, strict=True) if samples >= Fraction(str(start)) * num_train
        ]
        updates.append((samples, now[-1]))
        samples += now[-1]
    return updates, samples


def test_akiba_makes_3519_updates():
    made = timeline(global_batch_size=constant(32768), norm_span=constant(32), epochs=90, num_train=1281167)
    assert (made.num_updates, made.num_samples) == (3519, 3519 * 32768)


@pytest.mark.parametrize(
    ("boundaries", "sizes", "epochs", "num_train"),
    [
        ((0.0,), (96,), 3.0, 1500),
        ((0.0, 1.0), (96, 192), 3.0, 1500),
        ((0.0, 0.3, 1.1), (7, 11, 13), 2.7, 10),
        ((0.0, 30.0), (2048, 4096), 90.0, 1281167),
        ((0.0, 0.01, 2.0), (64, 128, 4096), 3.0, 1500),  # a segment that one update passes over
        ((0.0, 0.02, 0.03), (100, 50, 10), 0.1, 1500),  # a segment without an update
    ],
)
def test_updates_are_those_of_a_simulation_in_fractions(boundaries, sizes, epochs, num_train):
    updates, total = simulated(boundaries, sizes, epochs, num_train)
    made = timeline(
        global_batch_size=BatchRamp(boundaries=boundaries, sizes=sizes),
        norm_span=constant(1),
        epochs=epochs,
        num_train=num_train,
    )
    result = [(made.samples_at(u), made.segment_of(u).global_batch_size) for u in range(made.num_updates)]
    assert result == updates
    assert made.num_samples == total


def test_first_update_at_is_the_first_that_starts_at_or_after():
    made = timeline(
        global_batch_size=BatchRamp(boundaries=(0.0, 1.0), sizes=(96, 192)),
        norm_span=constant(32),
        epochs=3.0,
        num_train=1500,
    )
    starts = [made.epoch_at(update) for update in range(made.num_updates)]
    for epoch in [0.0, 0.01, 0.064, 1.0, 1.023, 1.024, 1.1, 2.5, 2.99]:
        expected = next((u for u, start in enumerate(starts) if start >= epoch), made.num_updates)
        assert made.first_update_at(epoch) == expected, epoch


def test_norm_span_moves_with_its_own_ramp():
    made = timeline(
        global_batch_size=BatchRamp(boundaries=(0.0, 30.0), sizes=(2048, 4096)),
        norm_span=BatchRamp(boundaries=(0.0, 30.0), sizes=(64, 128)),
        epochs=90.0,
        num_train=1281167,
    )
    assert [(s.update, s.norm_span) for s in made.segments] == [(0, 64), (18768, 128)]  # ceil(30 * 1281167 / 2048)


def ramp_of_two(num_train=1500):
    ramp = BatchRamp(boundaries=(0.0, 1.0), sizes=(96, 192))
    return timeline(global_batch_size=ramp, norm_span=constant(32), epochs=3.0, num_train=num_train)


@pytest.mark.parametrize("every", [1.0, 0.1, 0.3, 0.128, 2.5, 7.0, 1e-9, 1 / 3])
@pytest.mark.parametrize("num_train", [1500, 10, 7777])
def test_a_thing_is_due_after_the_first_update_that_reaches_a_multiple_and_after_the_last(every, num_train):
    made = ramp_of_two(num_train)
    passed = [last_multiple(made.epoch_at(update), every) for update in range(made.num_updates + 1)]
    due = [update for update in range(1, made.num_updates + 1) if passed[update] > passed[update - 1]]
    expected = sorted({*due, made.num_updates})
    assert list(made.all_due(every)) == expected
    one_by_one = [n for n in range(1, made.num_updates + 1) if made.next_due(every, after=n - 1) == n]
    assert one_by_one == expected


@pytest.mark.parametrize("offset", [0.1, 0.3, 1.0, 2.0, 2.99, 5.0])
@pytest.mark.parametrize("every", [1.0, 0.1, 0.128, 7.0, 1e-9, 1 / 3, "update"])
def test_with_an_offset_a_thing_is_first_due_there_and_multiples_count_from_there(every, offset):
    made = ramp_of_two()
    starts = [made.epoch_at(update) for update in range(made.num_updates + 1)]
    due = {update for update in range(1, made.num_updates) if starts[update] >= offset}
    if every not in ("update", 1e-9):
        first, step = (Fraction(position).limit_denominator(10**6) for position in (offset, every))
        positions = [float(first + number * step) for number in range(math.ceil(5 / every))]
        due = {next((n for n, start in enumerate(starts) if start >= at), made.num_updates) for at in positions}
    expected = sorted({*due, made.num_updates})
    assert list(made.all_due(every, offset=offset)) == expected
    each = range(1, made.num_updates + 1)
    assert [n for n in each if made.next_due(every, after=n - 1, offset=offset) == n] == expected


def test_every_update_is_due_where_that_is_asked():
    made = ramp_of_two()
    assert list(made.all_due("update")) == list(range(1, made.num_updates + 1))


def test_the_update_of_a_sample_is_the_one_that_takes_it():
    made = ramp_of_two()
    takes = [update for update in range(made.num_updates) for _ in range(made.segment_of(update).global_batch_size)]
    assert [made.update_of(sample) for sample in range(made.num_samples)] == takes
    assert made.update_of(made.num_samples) == made.num_updates
