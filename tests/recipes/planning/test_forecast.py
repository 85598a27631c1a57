"""Time of whole runs: published ones within their bars, refusals, ranges, and the scan over all numbers of devices."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from recipes import open_cluster
from recipes.planning import scan as scan_module
from recipes.planning.division import PlanError
from recipes.planning.forecast import by_micro_batch, forecast, num_evaluations
from recipes.planning.hardware import Coordination, Input, MeasuredAllReduce
from recipes.planning.memory import Bytes, Model, ModelCosts
from recipes.planning.planner import Plan, plan
from recipes.planning.scan import scan
from recipes.planning.timing import timing_of
from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary

MIB = Bytes(per_sample=2**20)


@pytest.mark.parametrize(
    ("recipe", "cluster", "workers", "published_seconds", "bar"),
    [
        ("akiba2017", "mn1", 1024, 900, 0.15),
        ("goyal2017", "big-basin", 256, 3600, 0.10),
        ("suzuki2018", "mn1", 32, 6.96 * 3600, 0.15),
        ("suzuki2018/10gbe_double_buffering", "mn1-10gbe", 32, 7.71 * 3600, 0.15),
    ],
)
def test_published_runs_are_within_their_bars(
    recipe: str, cluster: str, workers: int, published_seconds: float, bar: float, foretold: Callable
) -> None:
    wire = {"akiba2017": "float16", "suzuki2018/10gbe_double_buffering": "float16"}.get(recipe, "float32")
    where = open_cluster(cluster, vocabulary=vocabulary())
    where = replace(where, exchange=replace(where.exchange, wire=wire))
    made = foretold(recipe, where, workers)
    assert made.seconds == pytest.approx(published_seconds, rel=bar)
    low, high = made.range_seconds
    assert low <= published_seconds <= high


def test_fewest_devices_for_15_minutes_are_about_those_that_took_them(planned: Callable) -> None:
    times = scan(planned("akiba2017", "mn1", 1024))
    assert 900 <= times.fewest(15 * 60) <= 1100
    assert times.fewest(1.0) is None


def test_a_scan_gives_what_a_forecast_gives(planned: Callable) -> None:
    made = planned("suzuki2018", "mn1", 32)
    numbers = [8, 16, 24, 32, 40, 100, 128, 1024]
    times = scan(made, numbers)
    for number, seconds in zip(numbers, times.seconds, strict=True):
        assert forecast(planned("suzuki2018", "mn1", number)).seconds == pytest.approx(float(seconds), rel=1e-3)


MODEL = Model(
    num_parameters=10**6,
    num_state_values=1,
    costs={None: ModelCosts(parameter_sizes=(10**6,), activations=MIB, moments=(MIB,))},
)
RAMP = "batch.global=[{from: 0, size: 1024}, {from: 45, size: 8192}]"


@pytest.mark.parametrize(
    ("recipe", "cluster", "changed", "how"),
    [
        ("goyal2017", "dgx-a100", ("precision.compute=mixed16",), {"micro_batch_size": "auto", "model": MODEL}),
        ("goyal2017", "mn1", ("batch.norm_span=512",), {"micro_batch_size": "auto", "model": MODEL}),
        ("goyal2017", "mn1", (), {"micro_batch_size": "auto"}),
        ("goyal2017", "mn1", (), {"micro_batch_size": 128}),  # two rates, each for micro-batches of its own
        ("goyal2017", "mn1", (), {"micro_batch_size": 200, "exact": True}),
        ("goyal2017", "mn1", (RAMP,), {}),  # more devices than samples at first
        ("goyal2017", "mn1", ("optimizer={kind: AdaScale, weight_decay: 1e-4}",), {"micro_batch_size": 128}),
        ("goyal2017", "mn1", (), {"micro_batch_size": 512, "model": MODEL}),  # few devices have no memory for as many
        ("goyal2017", "mn1", (), {"micro_batch_size": 512, "model": MODEL, "exact": True}),
        ("goyal2017", "mn1", (RAMP, "batch.norm_span=512"), {"micro_batch_size": 512, "model": MODEL}),
        ("goyal2017", "mn1", ("optimizer={kind: AdaScale, weight_decay: 1e-4}",), {"model": MODEL}),
        ("goyal2017", "h200", ("precision.compute=mixed16",), {"micro_batch_size": 100}),
    ],
)
def test_a_scan_gives_what_a_forecast_gives_on_every_number_of_devices(
    recipe: str, cluster: str, changed: tuple[str, ...], how: dict
) -> None:
    opened = open_recipe(recipe, vocabulary=vocabulary(), overrides=changed)
    where = open_cluster(cluster, vocabulary=vocabulary())
    where = replace(where, nodes=2000 if where.hardware.network else 1, device_memory_bytes=300 * 2**20)
    where = replace(where, micro_batch_size=how.get("micro_batch_size", 32))
    case = {"recipe": opened.recipe, "dataset": opened.dataset, "cluster": where}
    case |= {name: how[name] for name in ("model", "exact") if name in how}
    numbers = [*range(1, 48), 63, 64, 65, 100, 128, 129, 250, 256, 1000, 4096, 8192, 8193]
    numbers = [number for number in numbers if number <= where.num_workers]
    times = scan(plan(**case, workers=min(where.num_workers, 1024)), numbers)
    for number in numbers:
        try:
            one = forecast(plan(**case, workers=number))
            expected = (one.seconds, *one.range_seconds)
        except PlanError:
            expected = (np.inf,) * 3
        assert times.at(number) == pytest.approx(expected, rel=1e-9), number


def test_a_scan_takes_what_a_probe_timed_for_that_number_of_devices_only(planned: Callable) -> None:
    timed = MeasuredAllReduce(workers=32, nodes=8, bytes_=(1000, 10**8), milliseconds=(1.0, 3000.0))
    made = {number: planned("suzuki2018", "mn1", number) for number in (8, 24, 32, 64)}
    where = replace(made[8].cluster, hardware=replace(made[8].cluster.hardware, all_reduces=(timed,)))
    for last in (32, 64):
        times = scan(replace(made[8], cluster=where), [number for number in made if number <= last])
        for number, seconds in zip(times.devices.tolist(), times.seconds, strict=True):
            expected = forecast(replace(made[number], cluster=where)).seconds
            assert expected == pytest.approx(float(seconds), rel=1e-3), number


@pytest.mark.parametrize("size", [16, 32, 64, 256])  # norm groups of 32
def test_the_time_in_other_micro_batches_is_that_of_a_plan_which_asks_for_them(size: int, planned: Callable) -> None:
    made = planned("akiba2017", "mn1", 64)
    asked = plan(recipe=made.recipe, dataset=made.dataset, cluster=made.cluster, workers=64, micro_batch_size=size)
    assert by_micro_batch(made, [size])[size].seconds == forecast(asked).seconds
    assert forecast(asked).shares_norm_groups is (size < 32)


def test_evaluations_are_those_of_the_run() -> None:
    cluster = open_cluster("laptop", vocabulary=vocabulary())
    for overrides, number in (
        (["epochs=4.05", "batch.global=512"], 4),  # the update that reaches epoch 4 reaches 4.05, the end, too
        (["epochs=4", "evaluation.every=0.5ep", "batch.global=[{from: 0, size: 1024}, {from: 2, size: 96}]"], 7),
        (["epochs=4", "batch.global=512", "evaluation.every=update", "evaluation.offset=2"], 7),
    ):
        opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
        made, evaluation = (
            plan(recipe=opened.recipe, dataset=opened.dataset, cluster=cluster, workers=1),
            opened.recipe.evaluation,
        )
        assert (
            num_evaluations(made) == number == len([*made.timeline.all_due(evaluation.every, offset=evaluation.offset)])
        )
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=["epochs=6000000000000"])
    made = plan(recipe=opened.recipe, dataset=opened.dataset, cluster=cluster, workers=1)
    assert num_evaluations(made) == 6_000_000_000_000, "a stranger's recipe is not counted one by one"


def test_a_hundred_thousand_devices_are_scanned_as_arrays(planned: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []

    def timing(*given, **more):
        timed.append(more)
        return timing_of(*given, **more)

    monkeypatch.setattr(scan_module, "timing_of", timing)
    times = scan(planned("akiba2017", "mn1", 1024))
    assert 0 < len(timed) < 100
    assert len(times.devices) == 100_000
    assert np.isinf(times.seconds[32768:]).all()  # more devices than samples


@pytest.mark.parametrize("size", ["auto", 64])
def test_where_the_most_sums_of_exact_mode_fit_no_number_of_devices_is_asked_for_by_itself(
    size: int | str, planned: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = replace(planned("goyal2017", "mn1", 256), model=MODEL, exact=True, micro_batch_size=size)
    (segment,), has_room_on, sure = made.timeline.segments, Plan.has_room_on, []
    for megabytes in (70, 100, 120, 160, 200, 300):
        small = replace(made, cluster=replace(made.cluster, device_memory_bytes=megabytes << 20))
        sure.append(small.has_room_on_any(segment))
        assert not sure[-1] or all(has_room_on(small, number, segment) for number in range(1, 257))
    assert sure == sorted(sure)
    assert not sure[0]
    assert sure[-1]
    monkeypatch.setattr(Plan, "has_room_on", None)  # asked, it raises
    assert np.isfinite(scan(made).at(256)[0])


def test_parts_add_up_and_integers_stay_integers(foretold: Callable) -> None:
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


def test_one_device_is_its_own_measure(foretold: Callable) -> None:
    made = foretold("goyal2017/256", "dgx-1", 1)
    assert made.efficiency["one_device"] == pytest.approx(1.0)
    assert made.share("exposed") == made.share("straggling") == 0


def test_slow_input_and_coordination_bound_an_update(foretold: Callable) -> None:
    where = open_cluster("mn1", vocabulary=vocabulary())
    slow = replace(where, hardware=replace(where.hardware, input=Input(decoded_per_second=500, source="by hand")))
    made = foretold("akiba2017", slow, 1024)
    assert made.bound_by == "waiting_for_input"
    assert made.samples_per_second == pytest.approx(128 * 500)
    small = Coordination(microseconds=1e6, microseconds_per_doubling=0.0)
    late = replace(where, hardware=replace(where.hardware, coordination=small))
    assert foretold("akiba2017", late, 1024).bound_by == "coordination"
    assert foretold("akiba2017", late, 1).share("coordination") == 0


def test_workers_that_share_norm_groups_wait_for_their_statistics(foretold: Callable) -> None:
    (alone,) = foretold("goyal2017", "dgx-1", 512, "batch.norm_span=16").segments
    assert alone.planned.division.team_size == 1
    assert alone.update.coordination == 0
    (team,) = foretold("goyal2017", "dgx-1", 512, "batch.norm_span=8192").segments
    assert team.planned.division.team_size == 512  # 64 nodes of 8: three hops in a node, six between nodes
    hops = 2 * 53 * (3 * 4e-6 + 6 * 14e-6)
    gathered = 2 * 26_560 * 16 * (7 / 100e9 + 8 * 8 * 63 / (0.88 * 4 * 100e9 / 8))
    assert team.update.coordination == pytest.approx(hops + gathered)
    assert team.update.total == pytest.approx(alone.update.total + hops + gathered, rel=1e-6)


def test_a_time_that_leaves_out_shared_norm_groups_says_so(planned: Callable) -> None:
    mn1 = open_cluster("mn1", vocabulary=vocabulary())
    rate = replace(mn1.hardware.rates[0], model="SmallResNet", image_size=8, parameter_arrays=(10**5,))
    where = replace(mn1, hardware=replace(mn1.hardware, rates=(rate,)))
    for span, warnings in ((8, 0), (256, 1)):
        made = planned("digits/large_batch", where, 64, f"batch.norm_span={span}")
        assert len(forecast(made).warnings) == warnings
        assert scan(made, [64]).leaves_out.tolist() == [bool(warnings)]
        assert by_micro_batch(made, [4]) == {}
        for channels in ((), (8, 16)):  # of a model that was measured
            costs = {None: ModelCosts(parameter_sizes=(10**5,), norm_channels=channels)}
            measured = replace(made, model=Model(num_parameters=10**5, num_state_values=1, costs=costs))
            assert forecast(measured).warnings == ()
            assert len(by_micro_batch(measured, [4])) == 1
            assert (forecast(measured).seconds_in("coordination") > 0) is bool(warnings and channels)


def test_every_figure_has_a_range_that_the_constants_give(foretold: Callable) -> None:
    tree = foretold("goyal2017", open_cluster("aws-p3.16xlarge", vocabulary=vocabulary()), 128).as_tree()
    for name, (low, high) in tree["ranges"].items():
        assert low <= tree.get(name, low) <= high, name
    # A published rate: a fifth. Network cards of a data sheet over TCP: as slow as half.
    segment = tree["segments"][0]
    assert segment["ranges"]["compute"] == [
        pytest.approx(segment["compute"] / 1.2),
        pytest.approx(segment["compute"] * 1.2),
    ]
    assert segment["ranges"]["communication"][1] == pytest.approx(2 * segment["communication"])
    assert segment["ranges"]["samples_per_second"][1] == pytest.approx(
        8192 / segment["ranges"]["seconds_per_update"][0]
    )
    hours = [128 * seconds / 3600 for seconds in tree["range_seconds"]]
    assert tree["ranges"]["device_hours"] == pytest.approx(hours)
    assert tree["ranges"]["dollars"] == pytest.approx([3.06 * each for each in hours])
    assert (tree["bases"]["compute"], tree["bases"]["exposed"]) == ("published rate", "spec sheet")


def test_a_scan_has_the_ranges_of_a_forecast(planned: Callable) -> None:
    made = planned("suzuki2018", "mn1", 32)
    times = scan(made, [8, 32, 100])
    low, high = forecast(made).range_seconds
    assert times.at(32) == (pytest.approx(forecast(made).seconds), pytest.approx(low), pytest.approx(high))
