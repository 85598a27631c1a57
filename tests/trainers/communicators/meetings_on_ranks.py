"""Run under mpiexec: sums in shared memory while one rank is late, with workers that sleep, that spin, and both."""

import json
import time

import numpy as np
from mpi4py import MPI

from trainers.communicators import SharedWindow
from trainers.communicators.mpi_messages import barrier, num_cores
from trainers.communicators.wire import FullWire

WORLD = MPI.COMM_WORLD

for beside_backward in (False, True, WORLD.rank == 0):  # the last: the others have ended their backward
    connection = SharedWindow().connect(WORLD.Dup())
    connection.beside_backward = beside_backward
    values = connection.allocate(100_001, np.float32)
    for number in range(20):
        if number % WORLD.size == WORLD.rank:
            time.sleep(0.002)
        values[:] = WORLD.rank + number + 1
        connection.mean(values, FullWire(), 1.0, 0.5)
        assert (values == 0.5 * (WORLD.size * (WORLD.size + 1) / 2 + number * WORLD.size)).all()
    crowded = WORLD.size > num_cores(WORLD)
    assert connection.wait_mode == ("sleeps" if crowded or beside_backward else "spins")
    del values
    connection.close()

WORLD.Barrier()
began, processor = time.perf_counter(), time.process_time()
if WORLD.rank == 0:
    time.sleep(1.0)
barrier(WORLD)
seconds = WORLD.gather((time.perf_counter() - began, time.process_time() - processor))
if WORLD.rank == 0:
    print(json.dumps(seconds))
