"""What the planner expects of updates on slow links, from a probe of links, of compute, and of both beside each other.

`slow_network.py` calls it on the ranks that train then.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recipes.planning.all_reduce import Links
from recipes.planning.hardware import MeasuredAllReduce

COMPUTE, NONE = "compute", "none"  # no exchange at all; all at once after the backward pass
CALIBRATION_SIZES = (32, 370)  # samples of an update on a rank
WAYS, WIRES = (NONE, "buckets", "double"), ("float32", "float16")
NO_LINKS = Links(  # every all-reduce was timed
    node_bytes_per_second=1.0, node_latency_seconds=0.0, network_bytes_per_second=1.0, network_latency_seconds=0.0
)


def probe_links(world: Any, num_bytes: int) -> dict[str, MeasuredAllReduce]:
    """Time all-reduces of several sizes up to `num_bytes`, back to back, by wire; all ranks call this together."""
    from mpi4py import MPI

    from trainers.communicators import Ring
    from trainers.communicators.wire import WIRES as KINDS
    from trainers.communicators.wire import FullWire

    connection = Ring(sockets=True).connect(world.Dup())
    values = connection.allocate(num_bytes // 4, np.float32)
    sizes = [num_bytes // 4 // 4**power * 4 for power in (4, 3, 2, 1, 0)]
    found = {}
    for name in WIRES:
        wire = FullWire(values.dtype) if name == "float32" else KINDS[name]()
        milliseconds = []
        for size in sizes:
            part, times = values[: size // 4], max(2, min(20, 4 * num_bytes // size))
            for repeats in (1, times):  # the first is not counted
                world.Barrier()
                began = time.perf_counter()
                for _ in range(repeats):
                    connection.mean(part, wire, 1.0, 1.0)
                taken = world.allreduce(time.perf_counter() - began, op=MPI.MAX)
            milliseconds.append(1000 * taken / times)
        for place in range(1, len(milliseconds)):  # noise: more bytes take no less
            milliseconds[place] = max(milliseconds[place], milliseconds[place - 1])
        found[name] = MeasuredAllReduce(
            workers=world.size, nodes=world.size, wire=name, bytes_=tuple(sizes), milliseconds=tuple(milliseconds)
        )
    connection.close()
    return found


def probe_contention(world: Any, num_bytes: int, trained: Any, all_reduce: MeasuredAllReduce) -> float:
    """Seconds that an update takes longer for each second of all-reduces beside it; all ranks call this together."""
    from trainers.communicators import Ring
    from trainers.communicators.wire import WIRES as KINDS
    from trainers.communicators.wire import FullWire

    connection = Ring(sockets=True).connect(world.Dup())
    connection.set_beside_backward(True)
    values = connection.allocate(num_bytes // 4, np.float32)
    wire = FullWire(values.dtype) if all_reduce.wire == "float32" else KINDS[all_reduce.wire]()
    each = all_reduce.seconds(num_bytes)
    alone = trained.seconds(3)
    calls = max(2, round(3 * alone / each))

    def communicate() -> None:
        for _ in range(calls):
            connection.mean(values, wire, 1.0, 1.0)

    thread = threading.Thread(target=communicate)
    world.Barrier()
    thread.start()
    beside = trained.seconds(max(3, round(calls * each / alone)))
    thread.join()
    connection.close()
    return world.bcast(max(0.0, (beside - alone) / min(alone, calls * each)))


def predictions(
    probed: Mapping[str, MeasuredAllReduce],
    profile: tuple[float, Sequence[int], Sequence[int]],
    compute: tuple[float, float],
    *,
    contention: Mapping[str, float],
    ranks: int,
    samples: int,
) -> dict[str, float]:
    """Seconds of an update that the planner's model expects, by way and wire.

    Args:
        probed: timed all-reduces by wire.
        profile: backward's share, sizes of the network's arrays in the order of its layers, and microseconds of
            backward for each.
        compute: seconds at CALIBRATION_SIZES, without any exchange.
        contention: what a second of hidden communication costs, by wire.
        ranks, samples: that train, and of an update on each.
    """
    from recipes.planning.cluster import GradientExchange
    from recipes.planning.networks import profiled_network
    from recipes.planning.update_time import Compute, Exchange, update_time

    (few, many), (first, last) = CALIBRATION_SIZES, compute
    per_sample = (last - first) / (many - few)
    share, *layers = profile
    fixed = first - per_sample * few
    step = Compute(fixed_seconds=fixed, seconds_per_sample=per_sample, forward_share=1 - share)
    network = profiled_network("small", *map(tuple, layers))
    found = {COMPUTE: float(step.seconds(samples))}
    for wire, timed in probed.items():
        for way, overlap in zip(WAYS, ("none", "bucket", "double_buffering"), strict=True):
            exchange = Exchange(
                all_reduce=lambda num_bytes, *_, timed=timed: timed.seconds(num_bytes),
                overlap=overlap,
                bucket_bytes=GradientExchange().bucket_bytes_of(4 * network.num_parameters),
            )
            case = {"devices": ranks, "nodes": ranks, "micro_batch_size": samples, "contention": contention[wire]}
            found[f"{way} {wire}"] = float(update_time(network, step, exchange, NO_LINKS, **case).total)
    return found
