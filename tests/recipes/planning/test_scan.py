"""Questions backwards: shares on arrays are those of the division; epochs by batch; trials side by side."""

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from recipes.errors import InputRefused
from recipes.planning.division import PlanError, divide
from recipes.planning.forecast import PARTS, forecast
from recipes.planning.planner import plan
from recipes.planning.scan import (
    CONVERGENCE,
    Convergence,
    Scan,
    at_point,
    best_sharing,
    epochs_to_target,
    fullest_shares,
    sharings,
)


def scan_of(seconds: dict[int, float]) -> Scan:
    number = len(seconds)
    empty = {part: np.zeros(number) for part in PARTS}
    expected = np.array(list(seconds.values()))
    ends = {"fast": expected / 2, "slow": 2 * expected}
    return Scan(
        devices=np.array(list(seconds)),
        seconds=expected,
        **ends,
        parts=empty,
        other=np.zeros(number),
        leaves_out=expected < 0,
    )


@pytest.mark.parametrize("how", [{}, {"whole_groups": True}, {"whole_groups": True, "aligned": True}])
def test_shares_on_arrays_are_those_of_the_division(how: dict[str, bool]) -> None:
    draw = random.Random(0)
    compared = 0
    for _ in range(400):
        span = draw.choice([1, 2, 3, 8, 32, 64])
        case = {"global_batch_size": span * draw.randint(1, 60), "norm_span": span}
        largest = draw.choice([1, 4, 16, 32, 64, 100])
        numbers = np.arange(1, min(case["global_batch_size"], 200) + 1)
        micro, steps = fullest_shares(**case, devices=numbers, micro_batch_size=largest, **how)
        for number in draw.sample(list(numbers), min(5, len(numbers))):
            try:
                division = divide(**case, workers=int(number), micro_batch_size=largest)
                if how and largest < span:
                    raise PlanError
            except PlanError:
                assert micro[number - 1] == 0
                continue
            if how:
                division = replace(division, team_size=1, aligned="aligned" in how)
            assert steps[number - 1] == division.most_micro_batches
            assert micro[number - 1] == -(-division.samples_of(0) // division.most_micro_batches)
            compared += 1
    assert compared > 800


def test_time_is_not_monotone_in_devices() -> None:
    micro, steps = fullest_shares(
        global_batch_size=1024, norm_span=32, devices=np.array([16, 17, 31, 32]), micro_batch_size=64
    )
    assert (micro * steps).tolist() == [64, 64, 64, 32]


def test_published_batches_have_their_published_epochs() -> None:
    for point in CONVERGENCE:
        assert epochs_to_target(point.batch) == (point.epochs, point.least, point.most)


@pytest.mark.parametrize("point", CONVERGENCE, ids=lambda point: str(point.batch))
def test_a_published_batch_is_planned_with_the_norm_span_of_its_recipe(point: Convergence, planned: Callable) -> None:
    made = planned("mlperf/lars_4096", "dgx-1", 256)
    own = planned(f"mlperf/lars_{point.batch}", "dgx-1", 256)
    recipe = at_point(made, point.batch, own.recipe.epochs)
    assert recipe.batch == own.recipe.batch
    there = plan(recipe=recipe, dataset=made.dataset, cluster=made.cluster, workers=256)
    assert forecast(there).seconds == pytest.approx(forecast(own).seconds, rel=1e-9)


def test_between_points_epochs_are_linear_in_the_logarithm_of_the_batch() -> None:
    middle, least, most = epochs_to_target(16384)
    assert 45.4 < middle < 56.0
    assert least < middle < most


@pytest.mark.parametrize("batch", [256, 100_000])
def test_batches_outside_the_points_are_refused(batch: int) -> None:
    with pytest.raises(InputRefused, match="published for batches of 1,632 to 58,880"):
        epochs_to_target(batch)


def test_trials_are_shared_over_divisors_of_the_devices() -> None:
    times = scan_of({1: 100.0, 2: 52.0, 4: 30.0, 8: np.inf})
    found = sharings(times, trials=10, devices=8)
    assert [(each.devices_each, each.at_once, each.rounds, each.seconds) for each in found] == [
        (1, 8, 2, 200.0),
        (2, 4, 3, 156.0),
        (4, 2, 5, 150.0),
    ]
    assert best_sharing(found, sequential=False).devices_each == 4
    assert found[0].range_seconds == (100.0, 400.0)


def test_a_sampler_that_learns_gets_ten_rounds_where_that_is_possible() -> None:
    times = scan_of({1: 100.0, 2: 60.0, 4: 40.0})
    found = sharings(times, trials=16, devices=4)
    assert best_sharing(found, sequential=False).devices_each == 1
    assert best_sharing(found, sequential=True).rounds == 16
    assert best_sharing(found[:1], sequential=True).rounds == 4  # no other way is there


def test_more_devices_than_trials_stay_idle() -> None:
    assert sharings(scan_of({1: 5.0, 2: 3.0}), trials=1, devices=2)[0].at_once == 1


def test_fewest_and_fastest() -> None:
    times = scan_of({1: 10.0, 2: 6.0, 3: 7.0, 4: 5.0, 5: 5.0})
    assert (times.fewest(6.5), times.fewest(4.0), times.fastest) == (2, None, 4)
    assert (times.fewest(4.0, times.fast), times.fewest(4.0, times.slow)) == (2, None)
