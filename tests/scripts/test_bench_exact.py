"""The benchmark of exact mode runs; its times are for quiet machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_exact.py"


RATIOS = ("groups", "exact")


def figures_of(tmp_path, case, *, ranks, updates):
    """What the script writes and the lines of its table after two rounds."""
    file = tmp_path / "figures.json"
    command = [sys.executable, SCRIPT, "--cases", case, "--ranks", *ranks, "--rounds", 2, "--updates", updates]
    done = subprocess.run([*map(str, command), "--json", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text()), [line for line in done.stdout.splitlines() if line.startswith(f"| {case} |")]


def assert_whole(figures):
    """Seconds of every way and round, and ratios that are theirs."""
    assert figures["seconds"].keys() == {"ordinary", *RATIOS}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    assert figures["over_ordinary"].keys() == set(RATIOS)
    for way, ratios in figures["over_ordinary"].items():
        seconds = zip(figures["seconds"][way], figures["seconds"]["ordinary"], strict=True)
        assert ratios == pytest.approx([a / b for a, b in seconds])


@pytest.mark.mpi
def test_figures_of_every_way_and_round_on_two_ranks(tmp_path):
    (figures,), lines = figures_of(tmp_path, "digits", ranks=[2], updates=1)
    assert (figures["case"], figures["ranks"], figures["global_batch_size"]) == ("digits", 2, 512)
    assert_whole(figures)
    assert [line.split(" | ")[:3] for line in lines] == [["| digits", "512", "2"]]


@pytest.mark.mpi
def test_each_batch_of_a_ramp_has_its_figures_on_every_number_of_ranks(tmp_path):
    found, lines = figures_of(tmp_path, "images", ranks=[1, 2], updates=1)
    rows = [(figures["global_batch_size"], figures["ranks"]) for figures in found]
    assert rows == [(96, 1), (192, 1), (96, 2), (192, 2)]
    for figures in found:
        assert_whole(figures)
    alone = {figures["global_batch_size"]: min(figures["seconds"]["ordinary"]) for figures in found[:2]}
    assert alone[96] < alone[192], "seconds of one batch went to the other"
    assert [line.split(" | ")[1:3] for line in lines] == [[str(batch), str(ranks)] for batch, ranks in rows]
