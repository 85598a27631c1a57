import pytest

from lr_schedules import (
    Constant,
    Exponential,
    GradualWarmup,
    Joined,
    MultiStep,
    Polynomial,
    Product,
)


def test_product_multiplies_on_one_clock():
    schedule = Product(
        factors=(Constant(factor=0.5), Exponential(ratio=0.5), MultiStep(boundaries=(2.0,), factor=0.25))
    )
    assert [schedule(epoch) for epoch in (0.0, 1.0, 2.0)] == [0.5, 0.25, 0.03125]


# A warmup of 4 epochs from 0 and a straight line from 1 down to 0: the three ways differ only in the line's clock.
@pytest.mark.parametrize(
    ("joins", "by_hand"),
    [
        ("multiply", {0.0: 0.0, 2.0: 0.5 * 0.75, 4.0: 0.5, 6.0: 0.25, 8.0: 0.0}),
        ("before", {0.0: 0.0, 2.0: 0.5, 4.0: 1.0, 6.0: 0.75, 8.0: 0.5, 12.0: 0.0}),
        ("over", {0.0: 0.0, 2.0: 0.5, 3.0: 0.75, 4.0: 0.5, 6.0: 0.25, 8.0: 0.0}),
    ],
)
def test_three_ways_to_join_by_hand(joins, by_hand):
    schedule = Joined(warmup=GradualWarmup(epochs=4.0), schedule=Polynomial(epochs=8.0), joins=joins)
    assert {epoch: schedule(epoch) for epoch in by_hand} == by_hand


def test_before_warms_up_to_where_the_decay_starts():
    """A schedule that starts below 1 must not jump when the warmup ends."""
    schedule = Joined(warmup=GradualWarmup(epochs=4.0), schedule=Constant(factor=0.5), joins="before")
    assert [schedule(epoch) for epoch in (2.0, 4.0)] == [0.25, 0.5]


def test_the_three_ways_agree_while_the_schedule_is_flat():
    warmup, schedule = GradualWarmup(epochs=5.0, start=0.5), Constant()
    joined = [Joined(warmup=warmup, schedule=schedule, joins=joins) for joins in ("multiply", "before", "over")]
    for epoch in (0.0, 2.5, 5.0, 20.0):
        assert len({join(epoch) for join in joined}) == 1
