"""Time of whole runs: published ones within their bars, refusals, ranges, and the scan over all numbers of devices."""

import time
from dataclasses import replace

import numpy as np
import pytest

from recipes import open_cluster, open_recipe
from recipes.planning.backward import scan
from recipes.planning.cluster import Cluster
from recipes.planning.forecast import Forecast, case_of, forecast
from recipes.planning.hardware import Coordination, Input, MeasuredAllReduce, Rate
from recipes.planning.planner import Plan, plan
from recipes.planning.timing import NoForecast, timing_of
from trainers.launch.vocabulary import vocabulary

SIDES = {None: 224}


def planned(recipe: str, cluster: str | Cluster, workers: int, *overrides: str) -> Plan:
    words = vocabulary()
    opened = open_recipe(recipe, vocabulary=words, overrides=overrides)
    where = open_cluster(cluster, vocabulary=words) if isinstance(cluster, str) else cluster
    return plan(recipe=opened.recipe, dataset=opened.dataset, cluster=where, workers=workers)


def foretold(recipe: str, cluster: str | Cluster, workers: int, *overrides: str) -> Forecast:
    return forecast(planned(recipe, cluster, workers, *overrides), SIDES)


@pytest.mark.parametrize(
    ("recipe", "cluster", "workers", "published_seconds", "bar"),
    [
        ("akiba2017", "mn1", 1024, 898, 0.10),
        ("goyal2017", "big-basin", 256, 3600, 0.10),
        ("suzuki2018", "mn1", 32, 6.96 * 3600, 0.15),
        ("suzuki2018/10gbe_double_buffering", "mn1-10gbe", 32, 7.71 * 3600, 0.15),
    ],
)
def test_published_runs_are_within_their_bars(
    recipe: str, cluster: str, workers: int, published_seconds: float, bar: float
) -> None:
    wire = {"akiba2017": "float16", "suzuki2018/10gbe_double_buffering": "float16"}.get(recipe, "float32")
    where = open_cluster(cluster, vocabulary=vocabulary())
    where = replace(where, exchange=replace(where.exchange, wire=wire))
    made = foretold(recipe, where, workers)
    assert made.seconds == pytest.approx(published_seconds, rel=bar)
    low, high = made.range_seconds
    assert low <= published_seconds <= high


def test_fewest_devices_for_15_minutes_are_about_those_that_took_them() -> None:
    times = scan(planned("akiba2017", "mn1", 1024), SIDES)
    assert 900 <= times.fewest(15 * 60) <= 1100
    assert times.fewest(1.0) is None


def test_a_scan_gives_what_a_forecast_gives() -> None:
    made = planned("suzuki2018", "mn1", 32)
    numbers = [8, 16, 24, 32, 40, 100, 128, 1024]
    times = scan(made, SIDES, numbers)
    for number, seconds in zip(numbers, times.seconds, strict=True):
        assert forecast(planned("suzuki2018", "mn1", number), SIDES).seconds == pytest.approx(float(seconds), rel=1e-3)


def test_a_hundred_thousand_devices_are_scanned_far_faster_than_the_bar_of_two_seconds() -> None:
    made = planned("akiba2017", "mn1", 1024)
    began = time.process_time()
    times = scan(made, SIDES)
    assert time.process_time() - began < 2.0
    assert len(times.devices) == 100_000
    assert np.isinf(times.seconds[32768:]).all()  # more devices than samples


def test_a_calibrated_case_returns_its_rate() -> None:
    made = planned("goyal2017", "big-basin", 8, "batch.global=256")
    timing = timing_of(case_of(made, 224), micro_batch_size=32, devices=8)
    update = timing.update(devices=8, micro_batch_size=32)
    assert 256 / float(update.total) == pytest.approx(timing.rate.samples_per_second, rel=1e-9)


def test_two_probed_rates_give_the_fixed_time() -> None:
    made = planned("goyal2017", "big-basin", 8, "batch.global=256")
    rates = tuple(
        Rate(
            model="ResNet50",
            image_size=224,
            micro_batch_size=size,
            samples_per_second=size / (0.050 + 0.002 * size),
            basis="probe",
            source="by hand",
        )
        for size in (16, 64)
    )
    where = replace(made.cluster, hardware=replace(made.cluster.hardware, rates=rates, variation=0.0))
    timing = timing_of(replace(case_of(made, 224), cluster=where), micro_batch_size=32, devices=1)
    assert timing.compute.fixed_seconds == pytest.approx(0.050, rel=1e-6)
    assert timing.compute.seconds_per_sample == pytest.approx(0.002, rel=1e-6)


def test_parts_add_up_and_integers_stay_integers() -> None:
    made = foretold("suzuki2018", "mn1", 32)
    tree = made.as_tree()
    for segment in tree["segments"]:
        parts = sum(segment[name] for name in tree["shares"])
        assert parts == pytest.approx(segment["seconds_per_update"], rel=1e-12)
    assert sum(tree["shares"].values()) == pytest.approx(1.0)
    assert tree["updates"] == 37535
    assert isinstance(tree["samples"], int)
    assert tree["bound_by"] == "compute"
    assert 0.5 < tree["efficiency"]["one_device"] < tree["efficiency"]["one_node"] < 1


def test_one_device_is_its_own_measure() -> None:
    made = foretold("goyal2017/256", "dgx-1", 1)
    assert made.efficiency["one_device"] == pytest.approx(1.0)
    assert made.share("exposed") == made.share("straggling") == 0


def test_slow_input_and_coordination_bound_an_update() -> None:
    where = open_cluster("mn1", vocabulary=vocabulary())
    slow = replace(where, hardware=replace(where.hardware, input=Input(decoded_per_second=500, source="by hand")))
    made = foretold("akiba2017", slow, 1024)
    assert made.bound_by == "waiting_for_input"
    assert made.samples_per_second == pytest.approx(128 * 500)
    small = Coordination(microseconds=1e6, microseconds_per_doubling=0.0)
    late = replace(where, hardware=replace(where.hardware, coordination=small))
    assert foretold("akiba2017", late, 1024).bound_by == "coordination"
    assert foretold("akiba2017", late, 1).share("coordination") == 0


def test_timed_all_reduces_are_taken_for_their_number_of_workers_only() -> None:
    where = open_cluster("mn1", vocabulary=vocabulary())
    timed = MeasuredAllReduce(workers=64, nodes=8, wire="float16", bytes_=(1000, 10**9), milliseconds=(500.0, 500.0))
    slow = replace(where, hardware=replace(where.hardware, all_reduces=(timed,)))
    assert float(foretold("akiba2017", slow, 64).segments[0].update.communication) == pytest.approx(0.5)
    other = foretold("akiba2017", slow, 128).segments[0].update.communication
    assert float(other) == float(foretold("akiba2017", where, 128).segments[0].update.communication)


def test_what_the_file_lacks_is_refused_by_name_with_a_way_out() -> None:
    with pytest.raises(NoForecast, match="no rate of ResNet50 in float32, only of ResNet50 in mixed16; .*probe RECIPE"):
        foretold("goyal2017", "h200", 8)
    with pytest.raises(NoForecast, match="no rate of SmallResNet in float32, only of"):
        foretold("digits/large_batch", "mn1", 8)
    with pytest.raises(NoForecast, match="describes no hardware"):
        foretold("digits/large_batch", "laptop", 2)


def test_extrapolations_are_said_and_widen_the_range() -> None:
    plain = foretold("goyal2017", "dgx-1", 64, "batch.norm_span=128").segments[0].timing
    small = foretold("goyal2017/256", "dgx-1", 64).segments[0].timing
    assert not any("extrapolated" in line for line in plain.rests_on)
    assert any("extrapolated to micro-batches of" in line for line in small.rests_on)
    assert small.spread > plain.spread
    sized = forecast(planned("goyal2017", "dgx-1", 64, "batch.norm_span=128"), {None: 128}).segments[0].timing
    assert any("extrapolated from images of 224 pixels" in line for line in sized.rests_on)
    assert sized.compute.seconds_per_sample < plain.compute.seconds_per_sample / 2.5
    assert plain.spread_at(4000) > plain.spread_at(3000) == plain.spread


def test_a_rate_that_contradicts_the_links_is_refused() -> None:
    where = open_cluster("big-basin", vocabulary=vocabulary())
    fast = replace(where.hardware.rates[0], samples_per_second=1e6)
    wrong = replace(where, hardware=replace(where.hardware, rates=(fast,)))
    with pytest.raises(NoForecast, match="contradicts its links or hardware.fixed_ms"):
        foretold("goyal2017", wrong, 256)
