"""Every way of moving an all-reduce on gives the same mean; what the benchmark's table has of times, by hand."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
SCRIPT = SCRIPTS / "bench_progress.py"


@pytest.fixture
def bench(monkeypatch):
    """The module, which imports its neighbours by their names."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_progress

    return bench_progress


@pytest.mark.mpi
def test_every_way_gives_the_same_weights_and_has_its_line(bench, tmp_path):
    file = tmp_path / "figures.json"
    options = "--model small --ranks 2 --megabits 0 --rounds 1 --updates 1"
    words = [*options.split(), "--json", str(file)]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = json.loads(file.read_text())
    assert set(bench.WAYS) == {"none", "wait", "test", "poll", "thread", "sleep", "ring"}
    assert found["buckets"] > 2
    apart = found["weight_differences"]
    assert apart.pop("compute") > 1e-5, "the ranks' own gradients differ, or this would show nothing"
    assert apart == dict.fromkeys(bench.WAYS, 0.0), "a sum of two numbers has the same bits in either order"
    for figures in (found["seconds"], found["processor_seconds"]):
        assert figures.keys() == {"compute", *bench.WAYS}
        assert all(len(times) == 1 and times[0] > 0 for times in figures.values())
    lines = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| 2 | 0 | small |")]
    assert [cells[4] for cells in lines] == ["compute", *bench.WAYS]


def test_table_by_hand(bench):
    seconds = {"compute": [1.0, 2.0, 1.0], "none": [1.5, 2.5, 1.7], "test": [1.4, 2.4, 1.4]}
    seconds |= {"thread": [1.1, 2.1, 1.0]} | dict.fromkeys(("wait", "poll", "sleep", "ring"), [1.5, 2.5, 1.5])
    found = {"ranks": 2, "megabits": 200, "model": "wide", "seconds": seconds, "processor_seconds": seconds}
    lines = {line.split(" | ")[4]: line for line in bench.table_lines(found)}
    start = "| 2 | 200 | wide | 0.50 |"
    assert lines["compute"] == f"{start} compute | 1000.0 | 0.0 (0.0 to 0.0) | 1000.0 | 100 % |"
    assert lines["none"] == f"{start} none | 1700.0 | 500.0 (500.0 to 700.0) | 1700.0 | 0 % |"
    assert lines["test"] == f"{start} test | 1400.0 | 400.0 (400.0 to 400.0) | 1400.0 | 20 % |"
    assert lines["thread"] == f"{start} thread | 1100.0 | 100.0 (0.0 to 100.0) | 1100.0 | 80 % |"


def test_what_costs_nothing_has_no_hidden_part(bench):
    seconds = {way: [1.0] for way in bench.WAYS} | {"compute": [1.0], "none": [1.04]}
    found = {"ranks": 2, "megabits": 0, "model": "resnet", "seconds": seconds, "processor_seconds": seconds}
    assert all(line.endswith(" | - |") for line in bench.table_lines(found))


def test_cores_that_are_not_there_are_said(bench):
    here = len(os.sched_getaffinity(0))
    assert bench.why_left_out(here, 0, 2) == f"2 cores a rank are {2 * here}, here are {here}"
    assert bench.why_left_out(here, 0, 1) is None
