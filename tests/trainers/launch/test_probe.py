"""`kilobatch probe`: the fit of links, and a real probe of this machine on real ranks."""

import json
from pathlib import Path

import pytest

from recipes import open_cluster
from recipes.planning.all_reduce import Links, ring
from recipes.planning.hardware import MeasuredAllReduce
from trainers.launch.probe import cluster_text, fitted_link
from trainers.launch.vocabulary import vocabulary


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


@pytest.mark.mpi
def test_ranks_time_all_reduces(run_on_ranks) -> None:
    program = Path(__file__).parents[3] / "kilobatch.py"
    done = run_on_ranks(2, program, "probe-links")
    timed = json.loads(done.stdout.strip().splitlines()[-1])
    assert (timed["workers"], timed["nodes"]) == (2, 1)
    assert timed["bytes"] == sorted(timed["bytes"])
    assert len(timed["milliseconds"]) == len(timed["bytes"])
    assert all(value > 0 for value in timed["milliseconds"])
    assert timed["milliseconds"][-1] > timed["milliseconds"][2]  # 17 MB take longer than 16 kB


@pytest.mark.mpi
@pytest.mark.slow
def test_a_probe_writes_a_cluster_that_plans_and_trains(tmp_path: Path, kilobatch) -> None:
    file = tmp_path / "here.yaml"
    done = kilobatch("probe", "digits/large_batch", "-n", 2, "--seconds", 6, "-o", file, timeout=300)
    assert done.returncode == 0, done.stderr
    hardware = open_cluster(str(file), vocabulary=vocabulary()).hardware
    assert {(rate.devices, rate.micro_batch_size) for rate in hardware.rates} == {(1, 64), (2, 64), (1, 32)}
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
