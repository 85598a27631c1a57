"""Calibration: which rate is taken, what is extrapolated, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from recipes import open_cluster
from recipes.planning.forecast import case_of, forecast
from recipes.planning.hardware import MeasuredAllReduce, Rate
from recipes.planning.timing import NoForecast, timing_of
from trainers.launch.vocabulary import vocabulary

SIDES = {None: 224}


def test_a_calibrated_case_returns_its_rate(planned: Callable) -> None:
    made = planned("goyal2017", "big-basin", 8, "batch.global=256")
    timing = timing_of(case_of(made, 224), micro_batch_size=32, devices=8)
    update = timing.update(devices=8, micro_batch_size=32)
    assert 256 / float(update.total) == pytest.approx(timing.rate.samples_per_second, rel=1e-9)


def test_two_probed_rates_give_the_fixed_time(planned: Callable) -> None:
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


def test_timed_all_reduces_are_taken_for_their_number_of_workers_only(foretold: Callable) -> None:
    where = open_cluster("mn1", vocabulary=vocabulary())
    timed = MeasuredAllReduce(workers=64, nodes=8, wire="float16", bytes_=(1000, 10**9), milliseconds=(500.0, 500.0))
    slow = replace(where, hardware=replace(where.hardware, all_reduces=(timed,)))
    assert float(foretold("akiba2017", slow, 64).segments[0].update.communication) == pytest.approx(0.5)
    other = foretold("akiba2017", slow, 128).segments[0].update.communication
    assert float(other) == float(foretold("akiba2017", where, 128).segments[0].update.communication)


def test_what_the_file_lacks_is_refused_by_name_with_a_way_out(foretold: Callable) -> None:
    with pytest.raises(NoForecast, match="no rate of ResNet50 in float32, only of ResNet50 in mixed16; .*probe RECIPE"):
        foretold("goyal2017", "h200", 8)
    with pytest.raises(NoForecast, match="no rate of SmallResNet in float32, only of"):
        foretold("digits/large_batch", "mn1", 8)
    with pytest.raises(NoForecast, match="describes no hardware"):
        foretold("digits/large_batch", "laptop", 2)


def test_extrapolations_are_said_and_widen_the_range(planned: Callable, foretold: Callable) -> None:
    plain = foretold("goyal2017", "dgx-1", 64, "batch.norm_span=128").segments[0].timing
    small = foretold("goyal2017/256", "dgx-1", 64).segments[0].timing
    assert not any("extrapolated" in line for line in plain.rests_on)
    assert any("extrapolated to micro-batches of" in line for line in small.rests_on)
    assert small.spread > plain.spread
    sized = forecast(planned("goyal2017", "dgx-1", 64, "batch.norm_span=128"), {None: 128}).segments[0].timing
    assert any("extrapolated from images of 224 pixels" in line for line in sized.rests_on)
    assert sized.compute.seconds_per_sample < plain.compute.seconds_per_sample / 2.5
    assert plain.factor(4000, "slow") > plain.factor(3000, "slow") == 1 + plain.spread
    assert plain.factor(3000, "fast") == 1 / (1 + plain.spread)


def test_a_rate_that_contradicts_the_links_is_refused(foretold: Callable) -> None:
    where = open_cluster("big-basin", vocabulary=vocabulary())
    fast = replace(where.hardware.rates[0], samples_per_second=1e6)
    wrong = replace(where, hardware=replace(where.hardware, rates=(fast,)))
    with pytest.raises(NoForecast, match="contradicts its links or hardware.fixed_ms"):
        foretold("goyal2017", wrong, 256)
