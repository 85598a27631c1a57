"""The benchmark of the updater runs, and both of its loops do the same work; its times are for quiet machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_updater.py"
LOOPS = {"updater", "noise", "bare", "plain norm"}
RATIOS = (("updater", "bare"), ("noise", "updater"), ("bare", "plain norm"))


def bench(*options):
    command = [sys.executable, str(SCRIPT), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.mark.mpi
def test_figures_of_every_loop_and_round_on_two_ranks(tmp_path):
    file = tmp_path / "figures.json"
    done = bench("--cases", "digits", "--ranks", 2, "--rounds", 2, "--updates", 1, "--json", file)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads(file.read_text())
    samples = figures["ranks"] * figures["micro_batches"] * figures["micro_batch_size"]
    assert figures["ranks"] == 2
    assert samples == figures["global_batch_size"] == 512
    assert figures["seconds"].keys() == LOOPS
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    for of, to in RATIOS:
        seconds = zip(figures["seconds"][of], figures["seconds"][to], strict=True)
        assert figures[f"{of}_over_{to}".replace(" ", "_")] == pytest.approx([a / b for a, b in seconds])
    assert figures["weight_difference"] < 1e-5, "not the same work"
    assert figures["command"] == "kilobatch train digits/large_batch"
    assert len([line for line in done.stdout.splitlines() if line.startswith("| digits ")]) == 1


def test_help_says_what_is_compared():
    done = bench("--help")
    assert done.returncode == 0
    for word in ("RecipeUpdater.update", "norm groups", "mpiexec", "--json"):
        assert word in done.stdout
