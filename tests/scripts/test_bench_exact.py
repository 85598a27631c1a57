"""The benchmark of exact mode runs; its times are for quiet machines."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "bench_exact.py"


@pytest.mark.mpi
def test_figures_of_every_way_and_round_on_two_ranks(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, SCRIPT, "--cases", "digits", "--ranks", "2", "--rounds", "2", "--updates", "1"]
    done = subprocess.run([*command, "--json", file], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (figures,) = json.loads(file.read_text())
    assert (figures["case"], figures["ranks"]) == ("digits", 2)
    assert figures["seconds"].keys() == {"ordinary", "groups", "exact"}
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures["seconds"].values())
    for way, ratios in figures["over_ordinary"].items():
        seconds = zip(figures["seconds"][way], figures["seconds"]["ordinary"], strict=True)
        assert ratios == pytest.approx([a / b for a, b in seconds])
    assert len([line for line in done.stdout.splitlines() if line.startswith("| digits | 2 |")]) == 1
