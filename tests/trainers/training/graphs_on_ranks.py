"""Run under mpiexec: on each rank the replayed run is the eager run, with buckets sent while backward goes on."""

import runpy
from pathlib import Path

from mpi4py import MPI

from trainers.training import mean_gradient

tests = runpy.run_path(Path(__file__).with_name("test_cuda_graphs.py"))


class Counting(tests["Cpu"]):
    graphs = 0

    def record(self, work):
        actual, launches = super().record(work)
        self.graphs = max(self.graphs, len(launches))
        return actual, launches


device = Counting()
mean_gradient.GraphRecorder = lambda: device
actual = tests["trained"](device=device, mpi=MPI.COMM_WORLD)
assert device.graphs > 2, "one for each bucket"
tests["assert_same"](actual, tests["trained"](mpi=MPI.COMM_WORLD))
print("same", flush=True)
