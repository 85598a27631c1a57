"""What a run's folder teaches the planner, and what a stranger's folder cannot."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from recipes.errors import InputRefused
from recipes.planning.forecast import forecast
from recipes.planning.phase_times import PHASES
from recipes.planning.planner import plan
from recipes.planning.scan import Choice
from recipes.reading.open import open_cluster, open_recipe
from recipes.reports.planning import outcome
from recipes.reports.record import open_run
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.planning import _cheapest, advise, best_choice, devices_within, learned, noise_of_run, rates_of
from trainers.tasks.targets import Target

SEGMENT = {"update": 0, "num_updates": 40, "image_size": None, "micro_batch_size": 32, "accumulation_steps": 4}
PARTS = ("compute", "waiting_for_input", "communication", "exposed", "straggling", "coordination")
FORECAST = {
    "seconds": 8.0,
    "range_seconds": [7.0, 9.0],
    "rests_on": [],
    "segments": [{"update": 0, "seconds_per_update": 0.1, **dict.fromkeys(PARTS, 0.1)}],
}


def write_run(
    folder: Path,
    *,
    seconds: Sequence[float] = (0.1,) * 7,
    starts: Mapping = {0: 1},
    model: object = None,
    **plan: object,
) -> Path:
    """A run whose updates took so long; `starts` has the first update and the workers of each session."""
    folder.mkdir()
    plan = {"workers": [*starts.values()][-1], "segments": [SEGMENT], "forecast": FORECAST} | plan
    recipe = {"model": {"kind": "SmallResNet"} if model is None else model}
    (folder / "run.yaml").write_text(yaml.safe_dump({"recipe": recipe, "plan": plan, "dataset": {}, "origins": {}}))
    (folder / "environment.json").write_text("{}")
    lines, momentum = [], {"learning_rate": 0.1, "momentum": 0.9}
    for update, each in enumerate(seconds):
        if update in starts:
            start = {"update": update, "workers": starts[update]}
            lines.append({"key": "run_start", "value": "digits-baseline", "time_ms": update, **start})
        place = {"update": update, "epoch": update / 10, "samples": 128 * update, "global_batch_size": 128}
        phases = {f"{name}_seconds": each / 4 for name in PHASES} | {"exchange_seconds": each / 2}
        line = {"key": "train_loss", "value": 1.0, "time_ms": update, "update_seconds": each}
        lines.append(line | place | phases | momentum)
    lines.append({"key": "run_stop", "value": "success", "time_ms": len(seconds)})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_whole_nodes_are_paid_so_that_the_fewest_devices_are_not_the_cheapest() -> None:
    words = vocabulary()
    opened = open_recipe("goyal2017", vocabulary=words, overrides=["precision.compute=mixed16"])
    where = open_cluster("aws-p5", vocabulary=words)
    made = plan(recipe=opened.recipe, dataset=opened.dataset, cluster=where, workers=64)
    times, fewest, cheapest = devices_within(made, 3600)
    assert (fewest.devices, fewest.billed_devices, cheapest.devices, cheapest.billed_devices) == (6, 8, 8, 8)
    assert fewest.device_hours == pytest.approx(6 * fewest.seconds / 3600)
    assert fewest.dollars == pytest.approx(98.32 * fewest.seconds / 3600)  # of an instance
    nodes = np.ceil(times.devices / 8)
    fit = (times.seconds <= 3600) & (times.devices <= where.num_workers)
    assert cheapest.dollars == pytest.approx(98.32 / 3600 * (nodes * times.seconds)[fit].min())
    whole = forecast(plan(recipe=opened.recipe, dataset=opened.dataset, cluster=where, workers=26))
    assert whole.dollars == pytest.approx(4 * 98.32 * whole.seconds / 3600)


def test_of_batches_in_time_the_cheapest_is_best_and_without_a_price_that_of_the_fewest_devices() -> None:
    words = vocabulary()
    opened = open_recipe("goyal2017", vocabulary=words, overrides=["precision.compute=mixed16"])
    how = {"epochs": (40.0, 39.0, 41.0), "range_devices": (8, 8)}
    slow, tied, more = (
        Choice(batch=batch, devices=devices, seconds=(seconds, seconds, seconds), **how)
        for batch, devices, seconds in ((2048, 6, 7000.0), (4096, 6, 6900.0), (8192, 8, 5000.0))
    )
    found = [slow, tied, more]
    for cluster, best, why in (("aws-p5", more, "cheapest"), ("dgx-h100", tied, "fewest devices")):
        where = open_cluster(cluster, vocabulary=words)
        made = plan(recipe=opened.recipe, dataset=opened.dataset, cluster=where, workers=8)
        assert best_choice(made, Target(seconds=7200.0), found) == (best, why)
        assert best_choice(made, Target(), found) == (more, "fastest")


@pytest.fixture(scope="module")
def baseline():
    return open_recipe("digits/baseline", vocabulary=vocabulary())


def test_a_rate_is_of_the_updates_that_the_last_number_of_workers_made(baseline, tmp_path: Path) -> None:
    resumed = write_run(tmp_path / "run", seconds=[0.4] * 20 + [1.0] + [0.1] * 6, starts={0: 1, 20: 2})
    (rate,) = rates_of(open_run(resumed), baseline)
    assert rate.devices == 2
    assert rate.samples_per_second == pytest.approx(2 * 128 / 0.1)
    assert "median of 6 updates" in rate.source
    short = write_run(tmp_path / "short", seconds=[0.4] * 20 + [0.1] * 5, starts={0: 1, 20: 2})
    assert not [*rates_of(open_run(short), baseline)]


def test_an_outcome_is_of_the_updates_that_the_last_number_of_workers_made(tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run", seconds=[0.4] * 20 + [0.2] * 7, starts={0: 1, 20: 2}))
    page = str(outcome(run))
    assert "<td>100 ms</td><td>200 ms</td><td>2.00</td>" in page
    assert "400 ms" not in page
    assert "the run</t" not in page


@pytest.mark.parametrize(
    "changes",
    [
        {"segments": [5]},
        {"segments": [{}]},
        *({"segments": [SEGMENT | {name: "x"}]} for name in SEGMENT),
        {"segments": [SEGMENT | {"image_size": [1]}]},
        {"segments": [SEGMENT | {"micro_batch_size": 0}]},
        {"workers": 0},
        {"seconds": [0.0] * 7},
        {"model": 5},
    ],
    ids=str,
)
def test_a_run_whose_files_are_not_as_a_run_writes_them_teaches_nothing(
    baseline, tmp_path: Path, changes: dict
) -> None:
    run = open_run(write_run(tmp_path / "run", **changes))
    with pytest.raises(InputRefused, match=r"--from \S+/run: run.yaml or metrics.jsonl is not as a run writes it \("):
        learned(open_cluster("laptop", vocabulary=vocabulary()), run, baseline, grow=True)


def test_the_cheapest_number_of_devices_is_one_that_the_cluster_has() -> None:
    """4 devices for 1 s cost less than 2 for 4 s."""
    cluster = SimpleNamespace(num_workers=2, dollars=lambda devices, seconds: devices * seconds)
    times = SimpleNamespace(devices=np.array([1, 2, 4]), seconds=np.array([10.0, 4.0, 1.0]))
    assert _cheapest(cluster, times, 20.0) == 2


def test_the_noise_scale_of_a_run_is_the_last_that_it_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", seconds=[0.1] * 40)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["key"] == "train_loss":  # in the last ten updates the noise hides the gradient
            signal = 1.0 if line["update"] < 30 else -1.0
            line |= {"gradient_noise": 100.0 if line["update"] < 20 else 800.0, "gradient_signal": signal}
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert noise_of_run(open_run(folder)) == pytest.approx(800)


def test_the_rates_of_a_run_come_before_those_that_the_cluster_knew(baseline, tmp_path: Path) -> None:
    run = open_run(write_run(tmp_path / "run"))
    once = learned(open_cluster("laptop", vocabulary=vocabulary()), run, baseline, grow=True)
    other = open_run(write_run(tmp_path / "other", seconds=[0.2] * 7))
    twice = learned(once, other, baseline, grow=True).hardware.rates
    assert [rate.samples_per_second for rate in twice[:2]] == pytest.approx([128 / 0.2, 128 / 0.1])


def test_a_batch_beyond_twice_the_noise_scale_is_advised_only_if_it_is_the_recipes_own(baseline) -> None:
    made = plan(
        recipe=baseline.recipe,
        dataset=baseline.dataset,
        cluster=open_cluster("laptop", vocabulary=vocabulary()),
        workers=1,
    )
    own = made.recipe.batch.global_.sizes[0]
    assert advise(baseline, made, noise=own / 4, timed=False).batch == own
    assert advise(baseline, made, noise=own, timed=False).batch == 2 * own
