"""Hosts that differ: their ranks train on together, without equal bits."""

import subprocess
import sys

import pytest

from recipes.reading.open import open_recipe
from trainers.launch.model_costs import known_model, model_of
from trainers.launch.vocabulary import vocabulary
from trainers.runs.mpi_ranks import find_mpiexec

pytestmark = pytest.mark.mpi


def test_unlike_hosts_divide_updates_alike_where_one_alone_knows_that_memory_is_short(tmp_path, monkeypatch):
    """By what rank 0 knows of the model's memory its micro-batches have 32 samples, by what rank 1 knows 96."""
    opened = open_recipe("digits/ramp", vocabulary=vocabulary(), overrides=["model.width=5"])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "0"))
    assert known_model(opened) is None
    model_of(opened)  # measured, and kept
    words = ["train", "digits/ramp", "--set", "model.width=5", "--set", "cluster.device_memory_bytes=2000000"]
    words += ["--no-report", "--watchdog", "20", "--stop-after", "2up", "--out", str(tmp_path / "run")]
    command = [find_mpiexec()]
    for rank, decoder in enumerate(("pillow", "opencv")):
        environment = [f"KILOBATCH_DECODER={decoder}", f"XDG_CACHE_HOME={tmp_path / str(rank)}"]
        command += [":"] * rank + ["-n", "1", "env", *environment, sys.executable, "-P", "-m", "kilobatch", *words]
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the hosts differ: decoder: 'pillow' on" in done.stdout
