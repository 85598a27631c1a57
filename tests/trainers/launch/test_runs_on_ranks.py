"""Run after run in the same ranks: each as if it were the first, and nothing left of it.

On the ranks, rank 0 prints a line of JSON for each run: its name, how it ended, the SHA-256 of its last weights, and
what the process then had of communicators, windows, threads and open files.
"""

import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from mpi4py import MPI

from trainers.launch.join_ranks import join_world, train_together
from trainers.launch.request import TrainRequest
from trainers.runs.errors import RunFailed
from trainers.runs.mpi_ranks import find_mpiexec

pytestmark = pytest.mark.mpi
ORDER = ("team", "nan", "mixed", "doubled", "unlike", "team", "mixed")
UNLIKE = """\
import chainer
import numpy as np
from mpi4py import MPI


class Net(chainer.Chain):
    \"\"\"Begins with another value on each rank.\"\"\"

    def __init__(self, num_classes, channels):
        super().__init__()
        with self.init_scope():
            self.fc = chainer.links.Linear(64 * channels, num_classes)
        self.add_persistent("rank", np.full(1, MPI.COMM_WORLD.rank, "f"))

    def forward(self, x):
        return self.fc(x)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    (folder / "unlike_of_a_test.py").write_text(UNLIKE)
    command = [find_mpiexec(), "-n", "2", sys.executable, __file__, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    runs = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [run["name"] for run in runs] == list(ORDER)
    return runs


@pytest.mark.parametrize("name", ["team", "mixed"])
def test_a_run_has_the_same_weights_whatever_was_before_it(runs, name):
    first, second = ((run["how"], run["weights"]) for run in runs if run["name"] == name)
    assert first[0] == 0
    assert first == second


def test_a_run_that_all_ranks_give_up_together_leaves_them_for_the_next(runs):
    assert "is not finite at update" in runs[1]["how"]
    assert "after 0 updates /rank is not the same on all ranks" in runs[4]["how"]
    assert [run["how"] for run in (runs[0], *runs[2:4], *runs[5:])] == [0] * 5


def test_nothing_is_left_of_a_run(runs):
    """Communicators, shared memory, threads and files: as many after the last run as after the first of all kinds."""
    assert runs[0]["left"][0] == 0
    assert len({tuple(run["left"]) for run in runs[3:]}) == 1, [run["left"] for run in runs]


SMALL = ("epochs=1", "learning_rate.warmup=null", "model.blocks=[1]", "model.width=4")
RUNS = {
    "team": ("batch.norm_span=256",),  # of two ranks, with a communicator of its own
    "nan": ("learning_rate.reference=1e12",),
    "mixed": ("precision.compute=mixed16", "model.width=8"),
    "doubled": ("updater.double_buffering=true", "seed=3"),
    "unlike": ("model={kind: unlike_of_a_test.Net}",),
}


class Counted(MPI.Intracomm):
    """A communicator that counts those made of it and not given back."""

    held = 0

    def Dup(self, *given):
        return self._made(super().Dup(*given))

    def Split(self, *given):
        return self._made(super().Split(*given))

    def Split_type(self, *given):
        return self._made(super().Split_type(*given))

    def Free(self):
        Counted.held -= 1
        super().Free()

    @staticmethod
    def _made(communicator):
        Counted.held += 1
        return Counted(communicator)


def windows():
    """Stretches of memory that this process shares with others."""
    return sum("rw-s" in line for line in Path("/proc/self/maps").read_text().splitlines())


def run_one(name, folder, world):
    folder = folder / name
    if world.rank == 0:
        folder.mkdir(parents=True)
    world.Barrier()
    how = {"overrides": (*SMALL, *RUNS[name.partition("-")[0]]), "allow_code": True, "loader_workers": 1}
    request = TrainRequest(recipe="digits/batch_256", out=folder, watchdog_seconds=60, **how)
    try:
        how = train_together(request, world, threads=1, served=True)
    except RunFailed as error:
        how = str(error)
    gc.collect()
    world.Barrier()
    weights = sorted(folder.glob("checkpoints/*/weights.safetensors"))
    return {
        "name": name.partition("-")[0],
        "how": how,
        "weights": hashlib.sha256(weights[-1].read_bytes()).hexdigest() if weights else None,
        "left": [Counted.held, windows(), threading.active_count(), len(os.listdir("/proc/self/fd"))],
    }


if __name__ == "__main__":  # on a rank
    world = Counted(join_world(int(os.environ["PMI_SIZE"])))
    for number, name in enumerate(ORDER):
        outcome = run_one(f"{name}-{number}", Path(sys.argv[1]), world)
        if world.rank == 0:
            print(json.dumps(outcome), flush=True)
