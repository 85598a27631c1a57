"""`kilobatch probe`: the fit of links, and a real probe of this machine on real ranks."""

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from recipes import open_cluster, open_recipe
from recipes.errors import InputRefused
from recipes.planning.all_reduce import Links, ring
from recipes.planning.hardware import MeasuredAllReduce, Rate
from trainers.launch.vocabulary import vocabulary
from trainers.runs.mpi_ranks import killed_with_parent
from trainers.tasks import probe as module
from trainers.tasks.probe import ProbeRequest, cluster_text, contradiction, fitted_link, probe, with_ranks


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_a_fitted_link_gives_the_times_back(workers: int) -> None:
    links = Links(
        node_bytes_per_second=3e9,
        node_latency_seconds=7e-6,
        network_bytes_per_second=1.0,
        network_latency_seconds=0.0,
    )
    sizes = (1000, 100_000, 10_000_000)
    times = tuple(1000 * float(ring(size, workers, 1, links)) for size in sizes)
    timed = MeasuredAllReduce(workers=workers, nodes=1, bytes_=sizes, milliseconds=times)
    assert fitted_link(timed) == (pytest.approx(7.0, rel=1e-4), pytest.approx(3.0, rel=1e-4))


def test_ranks_that_measure_without_end_are_refused_with_a_way_out(monkeypatch) -> None:
    monkeypatch.setattr(module, "_RANKS_SECONDS", 0.01)
    with pytest.raises(InputRefused, match=r"take over 0.01 s; probe with fewer of them \(-n\), or a smaller model"):
        module._measured_by_ranks(ProbeRequest(recipe="digits/large_batch"), None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_probe_and_removes_its_folder(number, tmp_path: Path, monkeypatch) -> None:
    def trained(request, opened, folder):
        assert folder.is_dir()
        os.kill(os.getpid(), number)
        return []

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "_trained", trained)
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary())
    before = signal.signal(number, lambda *_: None)
    try:
        with pytest.raises(SystemExit, match="^4$"):
            probe(ProbeRequest(recipe="digits/large_batch"), opened)
    finally:
        signal.signal(number, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("starts", ["_train", "_measured_by_ranks"])
def test_what_a_probe_starts_ends_with_it(starts: str, tmp_path: Path, monkeypatch) -> None:
    def start(words, **how):
        assert words[:6] == killed_with_parent([])
        raise InputRefused("started")

    monkeypatch.setattr(module, "subprocess", SimpleNamespace(**vars(subprocess) | {"Popen": start, "run": start}))
    arguments = {"_train": (tmp_path, module._Case(workers=1, seconds=1.0)), "_measured_by_ranks": (None,)}[starts]
    with pytest.raises(InputRefused, match="started"):
        getattr(module, starts)(ProbeRequest(recipe="digits/large_batch"), *arguments)


KNOWN = {"model": "SmallCNN", "image_size": 8, "source": "here"}
ALONE = Rate(micro_batch_size=256, samples_per_second=1000.0, **KNOWN)


@pytest.mark.parametrize(
    ("rate", "says"),
    [
        ({"micro_batch_size": 128, "samples_per_second": 400.0}, "of 128 took 320 ms, and one of 256 256 ms"),
        ({"micro_batch_size": 128, "samples_per_second": 490.0}, None),
        ({"micro_batch_size": 256, "devices": 2, "samples_per_second": 7400.0}, "69.2 ms on 2 ranks, and 256 ms on 1"),
        ({"micro_batch_size": 256, "devices": 2, "samples_per_second": 2100.0}, None),
        ({"micro_batch_size": 128, "samples_per_second": 1.0, "image_size": 16}, None),
    ],
)
def test_rates_that_exclude_each_other_are_named(rate: dict, says: str | None) -> None:
    for rates in ([ALONE, Rate(**KNOWN | rate)], [Rate(**KNOWN | rate), ALONE]):
        assert (found := contradiction(rates)) == says or says in found


@pytest.mark.parametrize("busy", [1, 2])
def test_runs_whose_rates_exclude_each_other_are_made_once_more_and_else_come_with_a_warning(busy, monkeypatch) -> None:
    folders, said = [], []

    def trained(request, opened, folder):
        folders.append(folder)
        half = 400.0 if len(folders) <= busy else 900.0
        rates = [ALONE, replace(ALONE, micro_batch_size=128, samples_per_second=half)]
        made = SimpleNamespace(reduced="", samples=None, start_seconds=1.0, rates=lambda opened: rates)
        return [made]

    monkeypatch.setattr(module, "_trained", trained)
    monkeypatch.setattr(module, "_disk", lambda folder: (1.0, 1.0))
    monkeypatch.setattr(module, "_measured_by_ranks", lambda request, samples: {})
    monkeypatch.setattr(module, "with_ranks", lambda tree, measured, recipe: tree)
    opened = open_recipe("digits/large_batch", vocabulary=vocabulary())
    made = probe(ProbeRequest(recipe="digits/large_batch", tell=said.append), opened)
    assert made["hardware"]["rates"][1]["samples_per_second"] == (900.0 if busy == 1 else 400.0)
    assert folders[1] == folders[0] / "again"
    assert [line.startswith("warning: a micro-batch of 128 took") for line in said[:2]] == [False, busy == 2]


@pytest.mark.slow
@pytest.mark.mpi
def test_ranks_add_what_they_reach_together_to_a_clusters_file(run_on_ranks, tmp_path: Path) -> None:
    program, file = Path(__file__).parents[3] / "kilobatch.py", tmp_path / "ours.yaml"
    old = {"workers": 2, "nodes": 1, "wire": "float32", "bytes": [4, 8], "milliseconds": [1, 2], "source": "before"}
    rate = {"model": "SmallCNN", "image_size": 8, "precision": "float32", "micro_batch_size": 64}
    rate |= {"samples_per_second": 9.0, "scored_per_second": 5.0, "source": "before"}
    link = {"kind": "shared_memory", "gb_per_second": 1.0, "latency_us": 7.0, "source": "before"}
    hardware = {"source": "before", "device": "cpu", "algorithm": "ring", "rates": [rate], "node_link": link}
    hardware |= {"all_reduces": [old, old | {"workers": 4}]}
    size = {"nodes": 1, "workers_per_node": 4, "device": "cpu", "device_memory_bytes": 10**9}
    file.write_text(cluster_text({"name": "ours", **size, "hardware": hardware}))
    small = "model={kind: SmallCNN, width: 4}"
    run_on_ranks(2, program, "probe", "digits/large_batch", "--set", small, "-o", file)
    tree = yaml.safe_load(file.read_text())
    assert (tree["name"], tree["nodes"], tree["workers_per_node"]) == ("ours", 1, 2)
    kept, timed = tree["hardware"]["all_reduces"]
    assert kept["workers"] == 4
    assert (timed["workers"], timed["nodes"]) == (2, 1)
    assert "network" not in tree["hardware"]
    assert timed["bytes"] == sorted(timed["bytes"])
    assert len(timed["milliseconds"]) == len(timed["bytes"])
    assert all(value > 0 for value in timed["milliseconds"])
    assert timed["milliseconds"][-1] > timed["milliseconds"][2]  # 17 MB take longer than 16 kB
    assert timed["contention"] >= 0
    assert timed["slowdown"] >= 0
    _, rate = tree["hardware"]["rates"]
    assert (rate["model"], rate["devices"], rate["exchanged"]) == ("SmallCNN", 2, False)
    assert (rate["micro_batch_size"], rate["accumulation_steps"], rate["scored_per_second"]) == (256, 1, 5.0)
    assert 0 < rate["backward_share"] < 1
    assert len(rate["parameter_arrays"]) == len(rate["backward_microseconds"])
    seconds = 512 / rate["samples_per_second"]  # backward is a part of it
    assert 0 < sum(rate["backward_microseconds"]) < 1e6 * seconds


@pytest.mark.parametrize(("workers", "nodes"), [(2, 2), (16, 2), (12, 4)])
def test_a_network_is_fitted_on_all_reduces_between_nodes(workers: int, nodes: int) -> None:
    links = Links(
        node_bytes_per_second=3e9,
        node_latency_seconds=7e-6,
        network_bytes_per_second=1e9,
        network_latency_seconds=40e-6,
    )
    sizes = [1000, 100_000, 10_000_000]
    times = [1000 * float(ring(size, workers, nodes, links)) for size in sizes]
    timed = {"workers": workers, "nodes": nodes, "wire": "float32", "bytes": sizes, "milliseconds": times}
    measured = {"workers": workers, "nodes": nodes, "all_reduces": [timed], "rates": []}
    made = with_ranks({"hardware": {"node_link": {"latency_us": 7.0}}}, measured, "digits/baseline")
    assert (made["nodes"], made["workers_per_node"]) == (nodes, workers // nodes)
    network = made["hardware"]["network"]
    assert network["measured_gb_per_second"] == pytest.approx(1.0, rel=0.01)
    assert network["latency_us"] == pytest.approx(40.0, rel=0.01)


def test_ranks_that_are_not_spread_evenly_are_refused() -> None:
    with pytest.raises(InputRefused, match="3 ranks on 2 nodes: start as many on each node"):
        with_ranks({"hardware": {}}, {"workers": 3, "nodes": 2}, "digits/baseline")


@pytest.mark.mpi
@pytest.mark.slow
def test_where_an_update_takes_long_the_probe_makes_it_smaller_and_says_so() -> None:
    large = ("model={kind: SmallResNet, width: 96}", "batch.global=1408", "batch.norm_span=64")
    opened = open_recipe("digits/large_batch", overrides=large, vocabulary=vocabulary())
    said: list[str] = []
    request = ProbeRequest(
        recipe="digits/large_batch", overrides=large, seconds=3.0, limit_seconds=3.0, tell=said.append
    )
    began = time.monotonic()
    rates = probe(request, opened)["hardware"]["rates"]
    assert time.monotonic() - began < 60.0
    assert "an update takes too long: again with updates of 64 samples a rank" in said
    assert {(rate["micro_batch_size"], rate["accumulation_steps"]) for rate in rates} == {(64, 1)}
    assert "in updates of 64 samples a rank" in rates[0]["source"]


@pytest.mark.mpi
@pytest.mark.slow
def test_a_probe_writes_a_cluster_that_plans_and_trains(tmp_path: Path, kilobatch) -> None:
    file = tmp_path / "here.yaml"
    done = kilobatch("probe", "digits/large_batch", "-n", 2, "--seconds", 6, "-o", file, timeout=300)
    assert done.returncode == 0, done.stderr
    hardware = open_cluster(str(file), vocabulary=vocabulary()).hardware
    assert {(rate.devices, rate.micro_batch_size) for rate in hardware.rates} == {(1, 256), (2, 256), (1, 128)}
    assert all(rate.basis == "probe" and "kilobatch probe digits/large_batch" in rate.source for rate in hardware.rates)
    planned = kilobatch("plan", "digits/large_batch", "--cluster", file, "-n", 2, "--json")
    assert json.loads(planned.stdout)["forecast"]["seconds"] > 0
    again = kilobatch("probe", "digits/large_batch", "-o", file)
    assert again.returncode == 2
    assert "exists, and nothing is overwritten" in again.stderr


def test_a_cluster_file_is_plain_yaml() -> None:
    text = cluster_text({"name": "a", "hardware": {"rates": [{"model": "ResNet50"}]}})
    assert text.startswith("# Written by `kilobatch probe`")
    assert "rates:\n  - model: ResNet50" in text
