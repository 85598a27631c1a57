"""Workers that wait for each other: right sums, and no core kept busy with waiting."""

import json
import time
from unittest import mock

import numpy as np
import pytest
from mpi4py import MPI

from trainers.communicators import Ring, SharedWindow, ring
from trainers.communicators.mpi_messages import barrier, num_cores
from trainers.communicators.wire import FullWire

WORLD = MPI.COMM_WORLD


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [2, 4])
def test_who_waits_for_a_late_rank_sleeps_and_sums_are_right(run_on_ranks, ranks):
    done = run_on_ranks(ranks, __file__)
    assert done.returncode == 0, done.stderr
    for waited, processor in json.loads(done.stdout):
        assert waited > 0.99, "nobody leaves before all have come"
        assert processor < 0.8, "spinning would cost a second of a core and more"


def run_on_a_rank():
    """Sums while one rank is late, with workers that sleep, that spin, and both; then a barrier with a late rank; then
    a ring of hosts with three ranks and fewer, in which one has both neighbours on its host and these have not.
    """
    for beside_backward in (False, True, WORLD.rank == 0):  # the last: the others have ended their backward
        connection = SharedWindow().connect(WORLD.Dup())
        connection.set_beside_backward(beside_backward)
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

    on_my_host = frozenset(rank for rank in range(WORLD.size) if rank // 3 == WORLD.rank // 3)
    with mock.patch.object(ring, "ranks_here", return_value=on_my_host):
        connection = Ring().connect(WORLD.Dup())
    values = np.full(100_001, WORLD.rank + 1, np.float32)
    connection.sum(values, FullWire())
    assert (values == WORLD.size * (WORLD.size + 1) / 2).all()
    connection.close()
    if WORLD.rank == 0:
        print(json.dumps(seconds))


if __name__ == "__main__":
    run_on_a_rank()
