"""Run after run in the same ranks: each as if it were the first, and nothing left of it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.runs.mpi_ranks import find_mpiexec

pytestmark = pytest.mark.mpi
PROGRAM = Path(__file__).with_name("runs_on_ranks.py")
ORDER = ("team", "nan", "mixed", "doubled", "team", "mixed")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    command = [find_mpiexec(), "-n", "2", sys.executable, str(PROGRAM), str(place), *ORDER]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_the_runs_came_one_after_the_other(runs):
    assert [run["name"] for run in runs] == list(ORDER)


@pytest.mark.parametrize("name", ["team", "mixed"])
def test_a_run_has_the_same_weights_whatever_was_before_it(runs, name):
    first, second = ((run["how"], run["weights"]) for run in runs if run["name"] == name)
    assert first[0] == 0
    assert first == second


def test_a_run_that_all_ranks_give_up_together_leaves_them_for_the_next(runs):
    assert "is not finite at update" in runs[1]["how"]
    assert [run["how"] for run in runs[2:]] == [0] * 4


def test_nothing_is_left_of_a_run(runs):
    """Communicators, shared memory, threads and files: as many after the last run as after the first of all kinds."""
    assert runs[0]["left"][0] == 0
    assert len({tuple(run["left"]) for run in runs[3:]}) == 1, [run["left"] for run in runs]
