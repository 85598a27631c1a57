"""Run under mpiexec: run after run in the same ranks, and what is left of them.

Rank 0 prints a line of JSON for each run: its name, how it ended, the SHA-256 of its last weights, and what the process
then had of communicators, windows, threads and open files.
"""

import gc
import hashlib
import json
import os
import sys
import threading
from pathlib import Path

from mpi4py import MPI

from trainers.launch.join_ranks import join_world, train_together
from trainers.launch.request import TrainRequest
from trainers.runs.errors import RunFailed

SMALL = ("epochs=1", "learning_rate.warmup=null", "model.blocks=[1]", "model.width=4")
RUNS = {
    "team": ("batch.norm_span=256",),  # of two ranks, with a communicator of its own
    "nan": ("learning_rate.reference=1e12",),
    "mixed": ("precision.compute=mixed16", "model.width=8"),
    "doubled": ("updater.double_buffering=true", "seed=3"),
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


def run(name, place, world):
    folder = place / name
    if world.rank == 0:
        folder.mkdir(parents=True)
    world.Barrier()
    request = TrainRequest(
        recipe="digits/batch_256", overrides=(*SMALL, *RUNS[name.partition("-")[0]]), out=folder, watchdog_seconds=60
    )
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


if __name__ == "__main__":
    world = Counted(join_world(int(os.environ["PMI_SIZE"])))
    for number, name in enumerate(sys.argv[2:]):
        found = run(f"{name}-{number}", Path(sys.argv[1]), world)
        if world.rank == 0:
            print(json.dumps(found), flush=True)
