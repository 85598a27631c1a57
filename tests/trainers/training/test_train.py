"""Hosts that differ train on together, without equal bits; what garbage collection passes over."""

import subprocess
import sys
from pathlib import Path

import pytest

from recipes.reading.open import open_recipe
from trainers.launch.model_costs import known_model, model_of
from trainers.launch.vocabulary import vocabulary
from trainers.runs.mpi_ranks import find_mpiexec

pytestmark = pytest.mark.mpi
ROOT = Path(__file__).parents[3]


@pytest.fixture
def on_two_hosts(tmp_path, monkeypatch):
    """Trains two updates on two ranks, each with an environment of its own; exit code and what is printed."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def run(*words, folders=("/", "/"), **of_ranks):
        words = ["train", "digits/ramp", *words, "--no-report", "--watchdog", "20", "--stop-after", "2up"]
        command = [find_mpiexec()]
        for rank in range(2):
            environment = [f"{name}={values[rank]}" for name, values in of_ranks.items()]
            command += [":"] * rank + ["-n", "1", "env", f"--chdir={folders[rank]}", *environment]
            command += [sys.executable, "-P", "-m", "kilobatch", *words, "--out", str(tmp_path / "run")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr

    return run


def test_unlike_hosts_divide_updates_alike_where_one_alone_knows_that_memory_is_short(
    on_two_hosts, tmp_path, monkeypatch
):
    """By what rank 0 knows of the model's memory its micro-batches have 32 samples, by what rank 1 knows 96."""
    opened = open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=["model.width=5"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "0"))
    assert known_model(opened) is None
    model_of(opened)  # measured, and kept
    words = ("--set", "model.width=5", "--set", "cluster.device_memory_bytes=2000000")
    caches = (tmp_path / "0", tmp_path / "1")
    code, said = on_two_hosts(*words, KILOBATCH_DECODER=("pillow", "opencv"), XDG_CACHE_HOME=caches)
    assert code == 0, said
    assert "the hosts differ: decoder: 'pillow' on" in said


@pytest.mark.slow  # the same decision as the hosts that differ above
def test_equal_bits_are_given_up_by_all_where_the_environment_of_one_host_prevents_them(on_two_hosts):
    code, said = on_two_hosts(OMP_NUM_THREADS=(1, 2))
    assert code == 0, said
    assert "on the number of ranks: OMP_NUM_THREADS is 2" in said


def test_a_cluster_file_that_differs_between_hosts_is_refused(on_two_hosts, tmp_path):
    text = "name: own\nnodes: 1\nworkers_per_node: 2\ndevice: cpu\ndevice_memory_bytes: 8000000000\n"
    folders = [tmp_path / name for name in ("one", "other")]
    for folder, overlap in zip(folders, ("true", "false"), strict=True):
        folder.mkdir()
        (folder / "own.yaml").write_text(f"{text}exchange: {{overlap: {overlap}}}\n")
    code, said = on_two_hosts("--cluster", "own.yaml", folders=folders)
    assert code != 0
    assert "recipe or cluster on " in said


def test_garbage_collection_passes_over_what_was_there_before_the_first_update_and_not_for_good(run_on_ranks, tmp_path):
    (tmp_path / "own.yaml").write_text(
        "kilobatch: 1\nextends: digits/ramp\nextensions: [{kind: frozen_in_a_test.Frozen}]\n"
    )
    (tmp_path / "frozen_in_a_test.py").write_text(
        "import gc\nfrom chainer.training import Extension\n\n\nclass Frozen(Extension):\n"
        "    def __call__(self, trainer):\n        print('within', gc.get_freeze_count())\n"
    )
    (tmp_path / "program.py").write_text(
        f"import gc, runpy\ntry:\n    runpy.run_path({str(ROOT / 'kilobatch.py')!r}, run_name='__main__')\n"
        "finally:\n    print('afterwards', gc.get_freeze_count())\n"
    )
    words = ("train", "own.yaml", "--allow-code", "--no-report", "--stop-after", "1up", "--out", "run")
    done = run_on_ranks(1, tmp_path / "program.py", *words, strict=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(line.split() for line in done.stdout.splitlines() if line.startswith(("within", "afterwards")))
    assert int(counts["within"]) > 50_000
    assert int(counts["afterwards"]) < int(counts["within"]) / 10
