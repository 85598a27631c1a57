"""What a run records of the versions that its bits depend on."""

import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import trainers
from trainers.training.environment import crowded_warnings, numerical_environment

ROOT = Path(trainers.__file__).parents[1]
ASK = "import trainers.training.environment as it; print(it.numerical_environment()['versions']['kilobatch'])"


def version_in(folder):
    done = subprocess.run([sys.executable, "-P", "-c", ASK], env={"PYTHONPATH": folder}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_commit_is_another_version(tmp_path):
    """Its number alone stays the same for many commits, some of which round otherwise."""
    here = numerical_environment()["versions"]["kilobatch"]
    number, _, digest = here.partition("+")
    assert (number, len(digest)) == (version("kilobatch"), 12)
    for room in ("lr_schedules", "recipes", "trainers"):
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__", "papers"))
    assert version_in(tmp_path) == here
    with (tmp_path / "trainers" / "commands" / "runs.py").open("a") as file:
        file.write("# of no number\n")
    assert version_in(tmp_path) == here
    with (tmp_path / "trainers" / "kernels" / "cpu" / "pooling.c").open("a") as file:
        file.write("// rounds otherwise\n")
    assert version_in(tmp_path) not in (here, number)


def test_more_ranks_than_cores_are_warned_of_in_the_words_of_their_launcher(monkeypatch):
    cores = len(os.sched_getaffinity(0))
    several = SimpleNamespace(gather=lambda own, root: [own] * (cores + 1))
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    (warning,) = crowded_warnings(several, 1)
    assert warning.endswith("`mpiexec -n`")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    (warning,) = crowded_warnings(several, 1)
    assert "--cpus-per-task" in warning
    assert "-n," not in warning
