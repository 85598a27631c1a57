"""Time of averaging a model's gradients over the ranks of one host: ChainerMN's way, ours, and a plain memory copy.

    .venv/bin/python scripts/benchmarks/allreduce.py
    .venv/bin/python scripts/benchmarks/allreduce.py --ranks 2 --rounds 9 --communicators SharedWindow Ring --json F

The gradients are those of ResNet-50 with 1,000 classes: 25.6 million float32 in 161 arrays, 102 MB. Every way turns the
ranks' gradients into their mean, in place, on every rank:

    naive     ChainerMN's `naive` communicator, multi_node_mean_grad: an MPI_Allreduce for each array, then a division
    ours      an Exchange without overlap through each of the communicators, in buckets of `--buckets` bytes
    gloo      torch.distributed's all_reduce of one flat array and its division; only where torch can be imported
    copy      no exchange: every rank copies its own gradients once, the floor of whatever reads and writes all of them

The ways take turns in the same processes, the first of them another one each time; a way's time is that of its slowest
rank. A round is `--turns` turns; its figure is the median over its turns, and its ratio that of two medians of the same
round. The table has the median over the rounds and, in brackets, the smallest and the largest ratio. Before the first
round each way's result is compared with the mean that MPI sums in float64.

The script starts itself under mpiexec for each number of ranks and divides the cores between them as `kilobatch train`
does. Wall times mean something on an otherwise idle machine only: look at `uptime` first. More ranks than cores wait
for each other's turn on a core; that belongs to what is measured.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from timing import as_rank, head, medians_of_turns, middle_and_range, on_ranks, parser_of, ratios, row, write_json

from trainers.runs.mpi_ranks import launched_ranks

SOCKETS = "Ring+sockets"
COMMUNICATORS = ("Auto", "SharedWindow", "Ring", SOCKETS, "HalvingDoubling", "Direct", "Torus", "Hierarchical")
COMMUNICATORS += ("MpiAllreduce", "ChainerMN")
MODELS = {"resnet50": ("ResNet50", 1000, 64), "cifar": ("CifarResNet", 10, 32), "small": ("SmallCNN", 10, 8)}
WHOLE = 1 << 40  # bytes of a bucket that holds all gradients
MEAN_MAY_DIFFER_BY = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One of the ways: `average` replaces its gradients, `arrays`, by their means."""

    name: str
    arrays: list[Any]
    average: Callable[[], object]
    wire: str = "float32"


def built(model: str) -> Any:
    """An initialised model and an input image for it."""
    import numpy as np

    from trainers import models

    name, num_classes, size = MODELS[model]
    chain = getattr(models, name)().build(num_classes=num_classes, channels=3, image_size=size)
    return chain, np.ones((1, 3, size, size), np.float32)


def naive_way(options: argparse.Namespace, world: Any) -> Way:
    """ChainerMN's way, on gradients in separate arrays."""
    import chainermn
    import numpy as np

    communicator = chainermn.create_communicator("naive", world)
    model, _ = built(options.model)
    for parameter in model.params():
        parameter.grad = np.zeros_like(parameter.array)
    arrays = [parameter.grad for _, parameter in sorted(model.namedparams())]
    return Way(name="naive", arrays=arrays, average=lambda: communicator.multi_node_mean_grad(model))


def our_ways(options: argparse.Namespace, world: Any) -> Iterator[Way]:
    """Every communicator, wire and bucket size; communicators that do not allocate the gradients share one array."""
    import numpy as np

    from trainers import communicators
    from trainers.communicators.wire import WIRES
    from trainers.gradients.exchange import Exchange
    from trainers.gradients.flat_gradients import FlatGradients, backward_order

    shared: dict[int, Any] = {}

    def allocate(num_values: int, dtype: Any) -> Any:
        return shared.setdefault(num_values, np.zeros(num_values, dtype))

    def average(exchange: Any) -> None:
        exchange.begin(scale=1 / world.size).finish()

    for name in options.communicators:
        component = communicators.Ring(sockets=True) if name == SOCKETS else getattr(communicators, name)()
        connection = component.connect(world.Dup())
        owns = type(connection).allocate is not communicators.connection.Connection.allocate
        flat = FlatGradients(backward_order(*built(options.model)), connection.allocate if owns else allocate)
        for wire in options.wires if getattr(component, "sums_16_bits", True) else ["float32"]:
            for size in options.buckets:
                exchange = Exchange(flat, connection, wire=WIRES[wire](), bucket_bytes=size or WHOLE, overlap=False)
                label = f"{name}, {'whole' if not size else f'{size / 2**20:g} MB'}"
                label += f", {wire}" if wire != "float32" else ""
                yield Way(name=label, arrays=[flat.values], average=partial(average, exchange), wire=wire)


def gloo_way(num_values: int, world: Any) -> Iterator[Way]:
    """The way of torch.distributed, if torch is installed."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=world.rank, world_size=world.size)
    values = torch.zeros(num_values)

    def average() -> None:
        distributed.all_reduce(values)
        values.mul_(1 / world.size)

    yield Way(name="gloo", arrays=[values.numpy()], average=average)


def copy_way(num_values: int) -> Way:
    """No exchange: one copy of the gradients."""
    import numpy as np

    values, other = np.ones(num_values, np.float32), np.ones(num_values, np.float32)  # zeros would be no memory yet
    return Way(name="copy", arrays=[values], average=lambda: np.copyto(other, values))


def relative_error(way: Way, world: Any) -> float:
    """Of a way's result against MPI's mean in float64: the relative error in L2, the largest of the ranks."""
    import numpy as np
    from mpi4py import MPI

    random = np.random.default_rng(world.rank)  # the same numbers for every way
    for array in way.arrays:
        random.standard_normal(out=array.reshape(-1), dtype=np.float32)
    expected = [array.astype(np.float64) for array in way.arrays]
    for mean in expected:
        world.Allreduce(MPI.IN_PLACE, mean)
        mean /= world.size
    way.average()
    squares = sum(float(np.square(mean).sum()) for mean in expected)
    errors = sum(float(np.square(array - mean).sum()) for array, mean in zip(way.arrays, expected, strict=True))
    return (world.allreduce(errors, op=MPI.MAX) / squares) ** 0.5


def measure(options: argparse.Namespace, world: Any) -> dict[str, Any]:
    """Times of all ways on the ranks that were launched; all of them call this together."""
    from mpi4py import MPI

    naive = naive_way(options, world)
    num_values = sum(array.size for array in naive.arrays)
    ways = {way.name: way for way in (naive, *our_ways(options, world), *gloo_way(num_values, world))}
    differences = {name: relative_error(way, world) for name, way in ways.items()}
    for name, way in ways.items():
        if not differences[name] <= MEAN_MAY_DIFFER_BY[way.wire]:
            raise RuntimeError(f"{name}: differs from the mean by {differences[name]}")
    ways["copy"] = copy_way(num_values)

    def seconds_of(way: Way) -> float:
        world.Barrier()
        began = time.perf_counter()
        way.average()
        return world.allreduce(time.perf_counter() - began, op=MPI.MAX)

    calls = {name: partial(seconds_of, way) for name, way in ways.items()}
    medians = medians_of_turns(calls, rounds=options.rounds, turns=options.turns)
    return {
        "ranks": world.size,
        "threads_per_rank": int(os.environ["OMP_NUM_THREADS"]),
        "model": options.model,
        "num_values": num_values,
        "num_arrays": len(naive.arrays),
        "turns_per_round": options.turns,
        "differences": differences,
        "seconds": medians,
        "times_naive": {name: ratios(medians["naive"], seconds) for name, seconds in medians.items()},
        "times_mpi": {name: ratios(seconds, medians[of_mpi(name, medians)]) for name, seconds in medians.items()},
        "times_copy": {name: ratios(seconds, medians["copy"]) for name, seconds in medians.items()},
    }


def of_mpi(name: str, medians: dict[str, Any]) -> str:
    """The way by MPI_Allreduce in buckets of the same size, or in one; `naive` where it was left out."""
    by_mpi = [other for other in medians if other.startswith("MpiAllreduce")]
    alike = [other for other in by_mpi if other.split(", ")[1:2] == name.split(", ")[1:2]]
    return next(iter([*alike, *by_mpi]), "naive")


def table_lines(figures: dict[str, Any]) -> Iterator[str]:
    for name, seconds in sorted(figures["seconds"].items(), key=lambda way: statistics.median(way[1])):
        over = [middle_and_range(figures[key][name]) for key in ("times_naive", "times_mpi", "times_copy")]
        yield row([figures["ranks"], name, f"{1000 * statistics.median(seconds):.1f}", *over])


def main() -> None:
    """Measure on every number of ranks, or run as one of the ranks."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=3, help="of a round")
    parser.add_argument("--communicators", nargs="+", choices=COMMUNICATORS, default=list(COMMUNICATORS))
    parser.add_argument("--wires", nargs="+", choices=MEAN_MAY_DIFFER_BY, default=["float32"])
    parser.add_argument("--buckets", nargs="+", type=int, default=[4 << 20, 0], help="bytes; 0: all in one")
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    options = parser.parse_args()
    if launched_ranks() is not None:
        return as_rank(lambda world: [measure(options, world)], options.json)
    print(head(["ranks", "way", "ms", "times as fast as naive", "over MpiAllreduce", "over one copy"]), flush=True)
    results = []
    for ranks in options.ranks:
        results += on_ranks(__file__, ranks, sys.argv[1:])
        print("\n".join(table_lines(results[-1])), flush=True)
    write_json(options.json, results)


if __name__ == "__main__":
    main()
