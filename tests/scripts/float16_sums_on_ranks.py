"""A rank of test_float16_sums.py: the script's algorithms in one array beside the communicators, bit for bit."""

import importlib.util
import sys

import numpy as np
from mpi4py import MPI

from trainers.communicators import Direct, HalvingDoubling, Ring
from trainers.communicators.wire import BFloat16Wire, Float16Wire

spec = importlib.util.spec_from_file_location("float16_sums", sys.argv[1])
sums = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sums)
world = MPI.COMM_WORLD
rows = sums.gradients(world.size, 203, 1.0)
for name, component in {"direct": Direct, "halving": HalvingDoubling, "ring": Ring}.items():
    for wire in (Float16Wire, BFloat16Wire):
        expected, roundings = sums.ALGORITHMS[name][0](rows, wire()), sums.ALGORITHMS[name][1](world.size)
        connection = component().connect(world.Dup())
        values = connection.allocate(rows.shape[1], np.float32)
        values[...] = rows[world.rank]
        connection.sum(values, wire())
        same = values.tobytes() == np.asarray(expected, np.float32).tobytes()
        same = same and connection.num_roundings == roundings
        if not all(world.allgather(same)):
            raise AssertionError(f"{name} {wire.name}")
        if world.rank == 0:
            print(name, wire.name, "same bits")
