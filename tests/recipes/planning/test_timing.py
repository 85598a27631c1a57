"""Calibration: which rate is taken, what is extrapolated, and what is refused."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from recipes import open_cluster
from recipes.planning.cluster import Cluster
from recipes.planning.forecast import case_of
from recipes.planning.hardware import MeasuredAllReduce, Rate
from recipes.planning.timing import NoForecast, TimedCase, timing_of
from trainers.launch.vocabulary import vocabulary


def test_a_calibrated_case_returns_its_rate(planned: Callable) -> None:
    made = planned("goyal2017", "big-basin", 8, "batch.global=256")
    timing = timing_of(case_of(made, made.segments[0].segment), micro_batch_size=32, devices=8)
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
    timing = timing_of(replace(case_of(made, made.segments[0].segment), cluster=where), micro_batch_size=32, devices=1)
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
    with pytest.raises(NoForecast, match="^cluster laptop describes no hardware; `kilobatch probe` measures it"):
        foretold("digits/large_batch", "laptop", 2)


def test_extrapolations_are_said_and_widen_the_range(foretold: Callable) -> None:
    plain = foretold("goyal2017", "dgx-1", 64, "batch.norm_span=128").segments[0].timing
    small = foretold("goyal2017/256", "dgx-1", 64).segments[0].timing
    assert not any("extrapolated" in line for line in plain.rests_on)
    assert any("extrapolated to micro-batches of" in line for line in small.rests_on)
    assert small.spread > plain.spread
    smaller = "augmentation.train=[{kind: RandomResizedCrop, size: 128}, {kind: Normalize, with: imagenet}]"
    sized = foretold("goyal2017", "dgx-1", 64, "batch.norm_span=128", smaller).segments[0].timing
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


def _probed(planned: Callable, exact: bool = False) -> TimedCase:
    """Two ranks: each makes 100 samples/s alone, 80 beside the other, and 70 where they also send 1 MB of gradients."""
    made = planned("digits/large_batch", "mn1", 2)
    how = {"basis": "probe", "source": "by hand"}
    one = Rate(model="Own", image_size=8, micro_batch_size=64, samples_per_second=100.0, **how)
    both = replace(one, devices=2, samples_per_second=160.0, exchanged=False, backward_share=0.5)
    both = replace(both, parameter_arrays=(100_000, 150_000), backward_microseconds=(300, 100))
    sent = replace(one, devices=2, samples_per_second=140.0)
    timed = MeasuredAllReduce(
        workers=2, nodes=1, bytes_=(1000, 1_000_000), milliseconds=(0.1, 100.0), contention=0.2, slowdown=0.3
    )
    hardware = replace(
        made.cluster.hardware, device="cpu", rates=(one, both, sent), variation=0.0, all_reduces=(timed,), network=None
    )
    cluster = Cluster(name="a", nodes=1, workers_per_node=2, device="cpu", device_memory_bytes=10**9, hardware=hardware)
    return TimedCase(cluster=cluster, model="Own", image_size=8, num_parameters=250_000, exact=exact)


def test_ranks_that_computed_beside_each_other_and_sent_nothing_are_taken_as_they_were(planned: Callable) -> None:
    case = _probed(planned)
    timing = timing_of(case, micro_batch_size=64, devices=2)
    assert timing.rate.exchanged is False
    assert timing.bases["contention"] == timing.bases["exposed"] == "probe"
    update = timing.update(devices=2, micro_batch_size=64)
    assert float(update.compute) == pytest.approx(64 / 80)
    # In buckets: 600 kB are ready after a quarter of the last half, and hidden; 400 kB at the end, and not.
    assert float(update.communication) == pytest.approx(0.1, rel=1e-3)
    assert float(update.exposed) == pytest.approx(0.04, rel=1e-2)
    # What is hidden costs compute 0.2 of it and communication 0.3, and the later one counts.
    assert float(update.contention) == pytest.approx(0.3 * 0.06, rel=1e-2)
    doubled = timing_of(replace(case, double_buffering=True), micro_batch_size=64, devices=2)
    assert float(doubled.update(devices=2, micro_batch_size=64).total) == pytest.approx(64 / 80 + 0.2 * 0.1, rel=1e-3)
    alone = timing_of(case, micro_batch_size=64, devices=1)
    assert float(alone.update(devices=1, micro_batch_size=64).total) == pytest.approx(64 / 100)


def test_exact_mode_overlaps_nothing_and_takes_the_rate_of_a_trained_run(planned: Callable) -> None:
    timing = timing_of(_probed(planned, exact=True), micro_batch_size=64, devices=2)
    assert timing.rate.exchanged
    assert timing.bases["exposed"] == "links fitted to a probe"  # its own all-reduces were not timed
    update = timing.update(devices=2, micro_batch_size=64)
    assert 128 / float(update.total) == pytest.approx(140.0)
    assert float(update.exposed) == float(update.communication) > 0
