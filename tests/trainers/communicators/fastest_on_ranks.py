"""Run under mpiexec: what is chosen between GPUs without NCCL, whose memory is the host's here.

    mpiexec -n 2 python -m mpi4py fastest_on_ranks.py

Sums and copies are real; what a GPU would do beside them takes a time that is slept, where it is waited for. Rank 0
prints, for each size of nodes and for what is slow, the choices as JSON; the sums are looked at here.
"""

import trainers.compat  # noqa: F401  isort: skip

import contextlib
import json
import time
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

from trainers.communicators import Auto
from trainers.communicators.host_staging import fastest_without_nccl
from trainers.communicators.wire import WIRES, FullWire

WORLD = MPI.COMM_WORLD
SLOW_SECONDS = 0.1
FIRST_SECONDS = 1.2  # of the first upload: one repeat as long as this would be enough to measure
COUNT = 1000


class SlowGpu:
    """Memory of the host, and a stream that takes its time for uploads, or before MPI may have the memory.

    Args:
        slow: upload, mpi, or first: MPI, and much longer the first upload.
    """

    zeros = staticmethod(np.zeros)

    def __init__(self, slow):
        self.stream = SimpleNamespace(synchronize=lambda: time.sleep(0 if slow == "upload" else SLOW_SECONDS))
        self._seconds, self._asked = SLOW_SECONDS if slow == "upload" else 0, 0
        self._first = FIRST_SECONDS if slow == "first" else 0

    def mark(self):
        return None

    @contextlib.contextmanager
    def after(self, mark):
        yield
        if self._asked:
            time.sleep(self._seconds + self._first)
            self._asked = self._first = 0

    def pin(self, host):
        pass

    unpin = pin

    def download(self, values, host):
        np.copyto(host, values)

    def upload(self, host, values):
        np.copyto(values, host)
        self._asked += 1


def chosen(ranks_per_node, slow):
    """What was chosen for each wire, the same on all ranks; sums are right whatever it was."""
    text = {}
    for name, wire in {"float32": FullWire(), "float16": WIRES["float16"]()}.items():
        connection = fastest_without_nccl(Auto(ranks_per_node=ranks_per_node), WORLD.Dup(), SlowGpu(slow))
        values = connection.allocate(COUNT, np.float32)
        for _ in range(2):
            values[...] = WORLD.rank + np.arange(COUNT) % 7
            with connection.after(connection.mark()):
                connection.sum(values, wire)
            expected = sum(range(WORLD.size)) + WORLD.size * (np.arange(COUNT) % 7)
            assert (values == expected).all(), "whole numbers, exact in 16 bits too"
        text[name] = list(connection.choices)
        connection.close()
    assert len({json.dumps(of_rank) for of_rank in WORLD.allgather(text)}) == 1
    return text


SIZES_OF_NODES = {1: [1], 2: [1, 2], 4: [2]}
found = [
    {"several_nodes": size < WORLD.size, **{slow: chosen(size, slow) for slow in ("upload", "mpi", "first")}}
    for size in SIZES_OF_NODES[WORLD.size]
]
if WORLD.rank == 0:
    print(json.dumps(found))
