"""What the benchmark of wires runs next, what it tells of finished runs, and one run of it."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch):
    """The module, which imports others of scripts by their names."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_wire

    return bench_wire


def finished(bench, accuracy_of, seeds=2):
    """All runs in the order in which they are done; `accuracy_of` (case, way, factor, seed)."""
    runs = []
    while (wanted := bench.next_run(runs, seeds)) is not None:
        accuracy = accuracy_of(wanted["case"], wanted["way"], wanted["factor"], wanted["seed"])
        runs.append({**wanted, "accuracy": accuracy, "loss": 1.0, "failed": None if accuracy else "diverged"})
    return runs


def test_every_way_on_every_seed_then_three_trials_then_the_tuned_runs(bench):
    runs = finished(bench, lambda case, way, factor, seed: 0.9 if factor == 0.5 else 0.8)
    assert len(runs) == 2 * 2 * 4 + 2 * (3 + 2)
    assert [run["seed"] for run in runs[:16]] == [0] * 8 + [1] * 8
    tuned = [run for run in runs[16:] if run["seed"] != bench.TUNING_SEED]
    assert {(run["way"], run["factor"]) for run in tuned} == {("double", 0.5)}


def test_a_rate_that_diverges_is_not_the_best(bench):
    runs = finished(bench, lambda case, way, factor, seed: 0.5 if factor == 0.25 or way != "double" else None)
    assert bench.best_factor(runs, "digits-4x") == 0.25
    assert bench.accuracies(runs, "digits-4x", "double", 1.0, 2) == [0.1, 0.1]


def test_wire_and_ring_are_set_from_the_command_line(bench):
    overrides = bench.run_of("noisy-16x", "float16", 1.0, 7)["overrides"]
    assert overrides[-2:] == ["cluster.exchange.communicator={kind: Ring}", "cluster.exchange.wire=float16"]
    assert "seed=7" in overrides


def test_table_has_the_differences_in_points(bench):
    def accuracy_of(case, way, factor, seed):
        return {"float16": 0.90, "double": 0.70}.get(way, 0.91) + 0.01 * seed

    lines = bench.table_lines(finished(bench, accuracy_of), 2)
    assert len(lines) == 2 + 2 * 5
    assert lines[2] == "| digits-4x | float32 | x 1 | 91.50 +- 0.71 % | 2 |  |  |"
    # 4.303, which is t with two degrees of freedom, times the root of 0.5 / 2 + 0.5 / 2
    assert lines[3].startswith("| digits-4x | float16 | x 1 | 90.50 +- 0.71 % | 2 | -1.00 (-4.04 to +2.04) |")
    assert lines[3].endswith("| not told apart |")


@pytest.mark.mpi
@pytest.mark.slow
def test_runs_are_kept_and_not_repeated(bench, tmp_path):
    wanted = bench.run_of("digits-4x", "float16", 1.0, 0)
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import bench_wire\n"
        "from mpi4py import MPI\n"
        "found = bench_wire.train((*bench_wire.run_of('digits-4x', 'float16', 1.0, 0)['overrides'], 'epochs=1',"
        " 'learning_rate.warmup=null'), MPI.COMM_WORLD)\n"
        "print(found['updates'], 0 < found['accuracy'] < 1, found['failed']) if MPI.COMM_WORLD.rank == 0 else None"
    )
    words = [bench.find_mpiexec(), "-n", "2", sys.executable, "-c", code, str(SCRIPTS)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["12", "True", "None"], done.stderr
    assert bench.find([{**wanted, "accuracy": 0.5}], wanted)["accuracy"] == 0.5
