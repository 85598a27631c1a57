"""What waiting costs those who compute: a thread that meets the other ranks in a barrier, beside matrix products.

    mpiexec -n 2 python scripts/bench_waiting.py
    mpiexec -n 4 python scripts/bench_waiting.py --uneven 2

Each rank computes eight pieces of work; after each one its thread meets those of the other ranks twice, as the exchange
in shared memory does with a bucket. `spin` is MPI_Barrier, `question` asks for a barrier without sleeping, `wait_for`
sleeps after a millisecond of it, `meet` after twenty questions. The ways take turns. With `--uneven` one rank, another
one each time, has so many times the work. Seconds are medians and minima over rounds and ranks.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trainers.communicators.mpi_messages import meet, wait_for

PIECES, ROUNDS, PRODUCTS = 8, 6, 20


def main() -> None:
    """Measure and print."""
    from mpi4py import MPI

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--uneven", type=float, default=1.0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    node = world.Dup()
    ways: dict[str, Callable[[], Any]] = {
        "spin": node.Barrier,
        "question": lambda: _ask(node),
        "wait_for": lambda: wait_for([node.Ibarrier()]),
        "meet": lambda: meet(node),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    processor = dict.fromkeys(ways, 0.0)
    for _ in range(options.repeats):
        for name, barrier in ways.items():
            began = time.process_time()
            seconds[name] += rounds(world, barrier, options.uneven)
            processor[name] += time.process_time() - began
    everybody = world.gather((seconds, processor), root=0)
    for name in ways if everybody else ():
        times = [1000 * value for found, _ in everybody for value in found[name]]
        spent = sum(found[name] for _, found in everybody)
        median = statistics.median(times)
        print(f"{name:10s} median {median:8.1f} ms   least {min(times):8.1f} ms   processor {spent:6.2f} s", flush=True)
    node.Free()


def rounds(world: Any, barrier: Callable[[], Any], uneven: float) -> list[float]:
    """Seconds of each round on this rank."""
    waiting: queue.SimpleQueue[bool] = queue.SimpleQueue()
    met = threading.Semaphore(0)

    def serve() -> None:
        while waiting.get():
            barrier()
            barrier()
            met.release()

    thread = threading.Thread(target=serve)
    thread.start()
    matrix, found = np.ones((256, 256), np.float32), []
    for number in range(ROUNDS):
        world.Barrier()
        began = time.perf_counter()
        more = uneven if (number + world.rank) % world.size == 0 else 1.0
        for _ in range(PIECES):
            for _ in range(round(PRODUCTS * more)):
                matrix @ matrix
            waiting.put(True)
        for _ in range(PIECES):
            met.acquire()
        found.append(time.perf_counter() - began)
    waiting.put(False)
    thread.join()
    return found


def _ask(node: Any) -> None:
    request = node.Ibarrier()
    while not request.Test():
        pass


if __name__ == "__main__":
    main()
