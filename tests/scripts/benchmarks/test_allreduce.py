"""The benchmark of the exchange runs, and every way gives the mean; its times are for quiet machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainers import communicators

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_allreduce.py"


def bench(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.mpi
def test_figures_of_every_way_and_round_on_two_and_three_ranks(tmp_path):
    file = tmp_path / "figures.json"
    options = ("--model", "small", "--ranks", 2, 3, "--rounds", 2, "--turns", 1, "--wires", "float32", "bfloat16")
    done = bench(*options, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text())
    assert [figures["ranks"] for figures in found] == [2, 3]
    for figures in found:
        ways = figures["seconds"].keys()
        assert {way.split(",")[0] for way in ways} - {"gloo"} == {
            *(set(communicators.__all__) - {"CudaAwareMpi", "Dummy", "Nccl"}),
            "Ring+sockets",
            "naive",
            "copy",
        }
        assert "Ring, 4 MB, bfloat16" in ways
        assert "MpiAllreduce, whole, bfloat16" not in ways
        assert all(difference < 0.05 for difference in figures["differences"].values())
        for way, seconds in figures["seconds"].items():
            assert len(seconds) == 2
            assert min(seconds) > 0
            naive, copy = figures["seconds"]["naive"], figures["seconds"]["copy"]
            expected = [other / own for own, other in zip(seconds, naive, strict=True)]
            assert figures["times_naive"][way] == pytest.approx(expected)
            expected = [own / other for own, other in zip(seconds, copy, strict=True)]
            assert figures["times_copy"][way] == pytest.approx(expected)
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"| {figures['ranks']} |")]
        assert len(lines) == len(ways)


def test_help_says_what_is_compared():
    done = bench("--help")
    assert done.returncode == 0
    for word in ("multi_node_mean_grad", "ResNet-50", "copy", "mpiexec", "--json"):
        assert word in done.stdout
