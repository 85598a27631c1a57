"""At which updates the schedules of a recipe are looked at."""

import pytest

from recipes.planning.looked_at import knots, looked_at
from recipes.planning.rates import learning_rate_at
from recipes.planning.timeline import timeline_of

WARM = "warmup: {kind: GradualWarmup, epochs: 2, joins: %s}"


def test_a_short_run_is_looked_at_at_each_update(opened):
    result = opened(line_5="epochs: 20up")
    timeline = timeline_of(result.recipe, result.dataset)
    assert looked_at(result.recipe, result.dataset) == [timeline.epoch_at(update) for update in range(20)]


def test_of_a_long_run_the_ends_and_the_updates_around_a_knot_are_among_them(opened):
    points = "schedule: {kind: PiecewiseLinear, points: [[0, 1], [4.005, 1], [4.006, 9], [4.007, 1]]}"
    result = opened(
        line_5="epochs: 400",
        line_6="batch: {global: 6}",
        line_7=f"learning_rate: {{reference: 0.05, per: 6, {points}}}",
    )
    timeline, epochs = timeline_of(result.recipe, result.dataset), looked_at(result.recipe, result.dataset)
    assert {0.0, timeline.epoch_at(timeline.num_updates - 1), 4.004, 4.008} <= {*epochs}
    assert 1000 <= len(epochs) < 1020


@pytest.mark.parametrize(("joins", "knot"), [("before", 7.0), ("multiply", 5.0), ("over", 5.0)])
def test_a_knot_moves_with_the_clock_of_its_schedule(opened, joins, knot):
    steps = f"schedule: {{kind: Product, factors: [{{kind: MultiStep, boundaries: [5]}}]}}, {WARM % joins}"
    assert knots(opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, {steps}}}").recipe) == {0.0, 2.0, knot}


def test_with_a_rate_that_is_read_now_and_then_a_knot_counts_where_it_is_read(opened):
    steps = "every: 3, schedule: {kind: MultiStep, boundaries: [5]}"
    recipe = opened(line_7=f"learning_rate: {{reference: 0.05, per: 32, {steps}}}").recipe
    assert {3.0, 6.0} <= knots(recipe)
    assert learning_rate_at(recipe, 5.5) > learning_rate_at(recipe, 6.0)
