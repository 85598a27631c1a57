import math

import pytest

from lr_schedules import (
    Constant,
    Cosine,
    CosineRestarts,
    Exponential,
    MultiStep,
    PiecewiseLinear,
    Polynomial,
    SlowStart,
    StableDecay,
)


def test_constant_is_the_same_everywhere():
    assert [Constant(factor=0.25)(epoch) for epoch in (0.0, 45.0, 1000.0)] == [0.25, 0.25, 0.25]
    assert Constant()(7.0) == 1.0


def test_multi_step_falls_at_the_boundary_and_not_before():
    schedule = MultiStep(boundaries=(30.0, 60.0, 80.0), factor=0.5)
    by_hand = {0.0: 1.0, 29.999: 1.0, 30.0: 0.5, 59.999: 0.5, 60.0: 0.25, 79.999: 0.25, 80.0: 0.125, 500.0: 0.125}
    assert {epoch: schedule(epoch) for epoch in by_hand} == by_hand


@pytest.mark.parametrize(
    ("power", "end", "epoch", "factor"),
    [
        (1.0, 0.0, 0.0, 1.0),
        (1.0, 0.0, 2.5, 0.75),
        (1.0, 0.0, 10.0, 0.0),
        (1.0, 0.0, 11.0, 0.0),
        (2.0, 0.0, 5.0, 0.25),
        (2.0, 0.0, 7.5, 0.0625),
        (2.0, 0.5, 5.0, 0.625),  # 0.5 + 0.5 * 0.25
        (2.0, 0.5, 99.0, 0.5),
        (0.5, 0.0, 7.5, 0.5),
    ],
)
def test_polynomial_by_hand(power, end, epoch, factor):
    assert Polynomial(epochs=10.0, power=power, end=end)(epoch) == factor


@pytest.mark.parametrize(
    ("end", "epoch", "factor"),
    [
        (0.0, 0.0, 1.0),
        (0.0, 10.0, 0.75),  # cos 60 degrees = 1/2
        (0.0, 15.0, 0.5),
        (0.0, 20.0, 0.25),
        (0.0, 30.0, 0.0),
        (0.0, 45.0, 0.0),  # stays down where a cosine would rise
        (0.5, 15.0, 0.75),
        (0.5, 60.0, 0.5),
    ],
)
def test_cosine_by_hand(end, epoch, factor):
    assert Cosine(epochs=30.0, end=end)(epoch) == pytest.approx(factor, abs=1e-15)


def test_exponential_by_hand():
    assert [Exponential(ratio=0.25)(epoch) for epoch in (0.0, 0.5, 1.0, 2.0)] == [1.0, 0.5, 0.25, 0.0625]


def test_piecewise_linear_passes_through_its_points_and_is_flat_outside():
    schedule = PiecewiseLinear(points=((1.0, 0.5), (3.0, 1.0), (7.0, 0.0)))
    by_hand = {0.0: 0.5, 1.0: 0.5, 2.0: 0.75, 3.0: 1.0, 4.0: 0.75, 6.0: 0.25, 7.0: 0.0, 8.0: 0.0}
    assert {epoch: schedule(epoch) for epoch in by_hand} == by_hand


def test_piecewise_linear_of_one_point_is_constant():
    schedule = PiecewiseLinear(points=((5.0, 0.5),))
    assert [schedule(epoch) for epoch in (0.0, 5.0, 10.0)] == [0.5, 0.5, 0.5]


def test_slow_start_defaults_are_akiba2017s_stages():
    by_hand = {0.0: 0.5, 39.999: 0.5, 40.0: 0.075, 69.999: 0.075, 70.0: 0.01, 84.999: 0.01, 85.0: 0.001, 89.0: 0.001}
    assert {epoch: SlowStart()(epoch) for epoch in by_hand} == by_hand


@pytest.mark.parametrize(
    ("times", "epoch", "factor"),
    [
        (1.0, 0.0, 1.0),
        (1.0, 5.0, 0.5),
        (1.0, 10.0, 1.0),
        (1.0, 35.0, 0.5),
        (2.0, 10.0, 1.0),  # periods of 10, 20, 40
        (2.0, 20.0, 0.5),
        (2.0, 30.0, 1.0),
        (2.0, 40.0, (1 + math.sqrt(0.5)) / 2),  # a quarter of the third: cos 45 degrees
        (2.0, 50.0, 0.5),
        (2.0, 70.0, 1.0),
        (1.5, 25.0, 1.0),  # periods of 10, 15
        (1.5, 36.25, 0.5),  # of 22.5
    ],
)
def test_cosine_with_restarts_by_hand(times, epoch, factor):
    assert CosineRestarts(first=10.0, times=times)(epoch) == pytest.approx(factor, abs=1e-15)


def test_restarts_begin_lower_and_end_at_their_share():
    schedule = CosineRestarts(first=10.0, end=0.5, peak=0.5)
    assert [schedule(10.0 * number) for number in range(4)] == [1.0, 0.5, 0.25, 0.125]
    assert schedule(math.nextafter(20.0, 0.0)) == pytest.approx(0.25)


def test_a_restart_falls_on_the_sample_of_its_multiple_whatever_the_float_of_the_period():
    """100 periods of 7 samples of 10: 0.7 is no float, and 3 * 0.7 is more than 2.1."""
    schedule = CosineRestarts(first=7 / 10)
    assert [samples for samples in range(700) if schedule(samples / 10) == 1.0] == [*range(0, 700, 7)]


@pytest.mark.parametrize(("first", "times"), [(1e-9, 1.0), (1e-25, 1.0), (5e-324, 1.0), (1e-9, 1.0 + 1e-9)])
def test_tiny_periods_of_restarts_are_counted_at_once(first, times):
    assert CosineRestarts(first=first, times=times).restarts(0.5) > 10**8
    assert 0 <= CosineRestarts(first=max(first, 1e-9), times=times)(0.5) <= 1


@pytest.mark.parametrize(("first", "times", "epoch", "restarts"), [(6e-9, 1.0, 6e-6, 1000), (10.0, 1e308, 80.0, 1)])
def test_restarts_of_extreme_periods_by_hand(first, times, epoch, restarts):
    assert CosineRestarts(first=first, times=times).restarts(epoch) == restarts
    assert CosineRestarts(first=first, times=times)(epoch) == 1.0


def test_many_periods_of_unequal_length_follow_their_sum():
    """The 1,500th period of 0.01 * 1.001^i begins at 0.01 * (1.001^1500 - 1) / 0.001."""
    schedule = CosineRestarts(first=0.01, times=1.001)
    start = 0.01 * (1.001**1500 - 1) / 0.001
    assert (schedule.restarts(start * (1 - 1e-9)), schedule.restarts(start * (1 + 1e-9))) == (1499, 1500)


def test_piecewise_linear_jumps_at_two_points_of_one_position():
    schedule = PiecewiseLinear(points=((0.0, 1.0), (4.0, 0.5), (4.0, 0.25), (8.0, 0.25), (8.0, 0.0)))
    by_hand = {0.0: 1.0, 2.0: 0.75, math.nextafter(4.0, 0.0): 0.5, 4.0: 0.25, 7.999: 0.25, 8.0: 0.0, 9.0: 0.0}
    assert {epoch: schedule(epoch) for epoch in by_hand} == pytest.approx(by_hand)
    assert schedule(4.0) == 0.25
    assert PiecewiseLinear(points=((0.0, 0.5), (0.0, 1.0)))(0.0) == 1.0


def test_stable_decay_falls_by_one_minus_the_root_at_the_end():
    schedule = StableDecay(decay_from=4.0, epochs=8.0)
    by_hand = {0.0: 1.0, 4.0: 1.0, 5.0: 0.5, 8.0: 0.0, 9.0: 0.0}
    assert {epoch: schedule(epoch) for epoch in by_hand} == by_hand
    assert StableDecay(decay_from=4.0, epochs=8.0, end=0.5)(5.0) == 0.75
