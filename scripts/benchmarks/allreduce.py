"""Time of averaging a model's gradients over the ranks of one host: ChainerMN's way, ours, and a plain memory copy.

    .venv/bin/python scripts/bench_allreduce.py
    .venv/bin/python scripts/bench_allreduce.py --ranks 2 --rounds 9 --communicators SharedWindow Ring --json F

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
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trainers.launch import find_mpiexec, launched_ranks, limit_threads

SOCKETS = "Ring+sockets"
COMMUNICATORS = (
    "Auto",
    "SharedWindow",
    "Ring",
    SOCKETS,
    "HalvingDoubling",
    "Direct",
    "Torus",
    "Hierarchical",
    "MpiAllreduce",
)
MODELS = {"resnet50": ("ResNet50", 1000, 64), "cifar": ("CifarResNet", 10, 32), "small": ("SmallCNN", 10, 8)}
WHOLE = 1 << 40  # bytes of a bucket that holds all gradients
MEAN_MAY_DIFFER_BY = {"float32": 1e-6, "float16": 5e-3, "bfloat16": 4e-2}


class Way:
    """One of the ways: `average` replaces its gradients, `values`, by their means."""

    def __init__(self, name: str, arrays: list[Any], average: Callable[[], object], wire: str = "float32") -> None:
        self.name, self.arrays, self.average, self.wire = name, arrays, average, wire


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
    return Way("naive", arrays, lambda: communicator.multi_node_mean_grad(model))


def our_ways(options: argparse.Namespace, world: Any) -> Iterator[Way]:
    """Every communicator, wire and bucket size; communicators that do not allocate the gradients share one array."""
    import numpy as np

    from trainers import communicators
    from trainers.communicators.wire import WIRES
    from trainers.exchange import Exchange
    from trainers.flat_gradients import FlatGradients

    shared: dict[int, Any] = {}

    def allocate(num_values: int, dtype: Any) -> Any:
        return shared.setdefault(num_values, np.zeros(num_values, dtype))

    def average(exchange: Any) -> None:
        exchange.begin(scale=1 / world.size).finish()

    for name in options.communicators:
        component = communicators.Ring(sockets=True) if name == SOCKETS else getattr(communicators, name)()
        connection = component.connect(world.Dup())
        owns = type(connection).allocate is not communicators.connection.Connection.allocate
        flat = FlatGradients(*built(options.model), connection.allocate if owns else allocate)
        for wire in options.wires if name != "MpiAllreduce" else ["float32"]:
            for size in options.buckets:
                exchange = Exchange(flat, connection, wire=WIRES[wire](), bucket_bytes=size or WHOLE, overlap=False)
                label = f"{name}, {'whole' if not size else f'{size / 2**20:g} MB'}"
                label += f", {wire}" if wire != "float32" else ""
                yield Way(label, [flat.values], lambda exchange=exchange: average(exchange), wire)


def gloo_way(num_values: int, world: Any) -> Iterator[Way]:
    """The way of torch.distributed, if torch is installed."""
    if importlib.util.find_spec("torch") is None:
        return
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    folder = world.bcast(tempfile.mkdtemp() if world.rank == 0 else None)
    where = {"init_method": f"file://{folder}/gloo", "rank": world.rank, "world_size": world.size}
    distributed.init_process_group("gloo", **where)
    values = torch.zeros(num_values)

    def average() -> None:
        distributed.all_reduce(values)
        values.mul_(1 / world.size)

    yield Way("gloo", [values.numpy()], average)


def copy_way(num_values: int) -> Way:
    """No exchange: one copy of the gradients."""
    import numpy as np

    values, other = np.ones(num_values, np.float32), np.ones(num_values, np.float32)  # zeros would be no memory yet
    return Way("copy", [values], lambda: np.copyto(other, values))


def fill(way: Way, rank: int) -> None:
    """Fill the gradients with numbers that differ between ranks and are the same for every way."""
    import numpy as np

    random = np.random.default_rng(rank)
    for array in way.arrays:
        random.standard_normal(out=array.reshape(-1), dtype=np.float32)


def largest_difference(way: Way, world: Any) -> float:
    """Largest difference between a way's result and MPI's mean in float64, and the relative error in L2."""
    import numpy as np
    from mpi4py import MPI

    fill(way, world.rank)
    expected = [array.astype(np.float64) for array in way.arrays]
    for mean in expected:
        world.Allreduce(MPI.IN_PLACE, mean)
        mean /= world.size
    way.average()
    squares = sum(float(np.square(mean).sum()) for mean in expected)
    errors = sum(float(np.square(found - mean).sum()) for found, mean in zip(way.arrays, expected, strict=True))
    return (world.allreduce(errors, op=MPI.MAX) / squares) ** 0.5


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Times of all ways on the ranks that were launched; all of them call this together."""
    threads = limit_threads()
    import trainers.compat  # noqa: F401  isort: skip
    from mpi4py import MPI

    from trainers.faults import abort_on_exception

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    naive = naive_way(options, world)
    num_values = sum(array.size for array in naive.arrays)
    ways = [naive, *our_ways(options, world), *gloo_way(num_values, world)]
    differences = {way.name: largest_difference(way, world) for way in ways}
    for way in ways:
        if not differences[way.name] <= MEAN_MAY_DIFFER_BY[way.wire]:
            raise RuntimeError(f"{way.name}: differs from the mean by {differences[way.name]}")
    ways.append(copy_way(num_values))

    def seconds_of(way: Way) -> float:
        world.Barrier()
        began = time.perf_counter()
        way.average()
        return world.allreduce(time.perf_counter() - began, op=MPI.MAX)

    medians: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(options.rounds):
        times: dict[str, list[float]] = {way.name: [] for way in ways}
        for turn in range(options.turns):
            first = (number * options.turns + turn) % len(ways)
            for way in ways[first:] + ways[:first]:
                times[way.name].append(seconds_of(way))
        for name, values in times.items():
            medians[name].append(statistics.median(values))
    return {
        "ranks": world.size,
        "threads_per_rank": threads,
        "model": options.model,
        "num_values": num_values,
        "num_arrays": len(naive.arrays),
        "turns_per_round": options.turns,
        "differences": differences,
        "seconds": medians,
        "times_naive": ratios(medians, "naive", inverse=True),
        "times_copy": ratios(medians, "copy", inverse=False),
    }


def ratios(seconds: dict[str, list[float]], to: str, *, inverse: bool) -> dict[str, list[float]]:
    """By way and round: its time over that of another way, or its speed over that of the other."""
    pairs = {name: list(zip(times, seconds[to], strict=True)) for name, times in seconds.items()}
    return {name: [other / own if inverse else own / other for own, other in both] for name, both in pairs.items()}


def measure_on_ranks(ranks: int, arguments: list[str]) -> dict[str, Any]:
    """Start this script on MPI ranks and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, __file__, *arguments, "--json", str(file)]
        subprocess.run(command, check=True)
        return json.loads(file.read_text(encoding="utf-8"))[0]


def table_lines(found: dict[str, Any]) -> Iterator[str]:
    """Lines of the table in Markdown, the fastest first."""
    for name, seconds in sorted(found["seconds"].items(), key=lambda way: statistics.median(way[1])):
        cells = [str(found["ranks"]), name, f"{1000 * statistics.median(seconds):.1f}"]
        cells += [_ratio(found["times_naive"][name]), _ratio(found["times_copy"][name])]
        yield "| " + " | ".join(cells) + " |"


def _ratio(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def main() -> None:
    """Measure on every number of ranks, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 4], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--turns", type=int, default=3, help="of a round")
    parser.add_argument("--communicators", nargs="+", choices=COMMUNICATORS, default=list(COMMUNICATORS))
    parser.add_argument("--wires", nargs="+", choices=MEAN_MAY_DIFFER_BY, default=["float32"])
    parser.add_argument("--buckets", nargs="+", type=int, default=[4 << 20, 0], help="bytes; 0: all in one")
    parser.add_argument("--model", choices=MODELS, default="resnet50")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here, seconds by round")
    options = parser.parse_args()
    if launched_ranks() is not None:
        results = [measure(options)]
        from mpi4py import MPI

        leads = MPI.COMM_WORLD.rank == 0
    else:
        leads, results = True, []
        print("| ranks | way | ms | times as fast as naive | over one copy |\n" + "|---" * 5 + "|", flush=True)
        for ranks in options.ranks:
            results.append(measure_on_ranks(ranks, sys.argv[1:]))
            print("\n".join(table_lines(results[-1])), flush=True)
    if leads and options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
