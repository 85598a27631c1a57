"""Seconds an update on slow links, by how gradients are exchanged: suzuki2018's table in miniature. Needs root.

    .venv/bin/python scripts/bench_slow_network.py
    .venv/bin/python scripts/bench_slow_network.py --ranks 2 --megabits 100 --ratios 1 --rounds 5 --json F
    .venv/bin/python scripts/bench_slow_network.py --allreduce

Each rank is in a network namespace of its own, behind a link that the kernel throttles (`slow_network.py`), with one
BLAS thread and, where there are enough, a core of its own. A small convolutional network is trained on digits, at
batches for which sending its gradients as float32 takes 0.5, 1 and 2 times as long as computing them: both are measured
first. Then, at each of these batches:

    compute    no exchange at all: the Dummy communicator
    none       all gradients at once after the backward pass
    buckets    each bucket, an eighth of the bytes or one large weight, as soon as the backward pass has finished it
    double     double buffering: all travel while the next update is computed, which is other mathematics

the last three with float32 and with float16 on the wire, around a ring of sockets. The ways take turns in the same
processes, the first another one each time: one update to begin with, then `--updates` of them timed, on the slowest
rank. The table has medians over the rounds. `hidden` is 1 - (time - compute) / (none - compute), of the same wire, and
in the last column of float32's none: what the suzuki2018 table says of both together. Of each difference, of two times
of one round, it is the median over the rounds that counts.

With `--allreduce` it times instead what `bench_allreduce.py` does, between such hosts: our algorithms beside MPI's own
flat all-reduce (`MpiAllreduce, whole`) and, where torch is installed, gloo; unthrottled where `--megabits` is 0.

More ranks than cores wait for each other's turn on a core. Nothing but namespaces is made, and they are always removed.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from slow_network import JUMBO, SlowNetwork, why_not
from timed_training import COMPUTE, NONE, ONE_THREAD, Trained, calibrate, hidden, in_turns, take_cores

from trainers.runs.mpi_ranks import launched_ranks

WHOLE = 1 << 40  # bytes of a bucket that holds all gradients
WIRES = ("float32", "float16")
WAYS = (NONE, "buckets", "double")


def trained_by(world: Any, *, samples: int, way: str, wire: str = "float32") -> Trained:
    """The model with the exchange of one of WAYS, or COMPUTE; all ranks make it together."""
    from recipes.planning.cluster import GradientExchange
    from trainers.communicators import Dummy, Ring
    from trainers.training.build import build_exchange

    settings = GradientExchange(
        communicator=Dummy() if way == COMPUTE else Ring(sockets=True),
        wire=wire,
        bucket_bytes=WHOLE if way == NONE else "auto",
        overlap=way in ("buckets", "double"),
    )
    doubled = way == "double"
    return Trained(
        world,
        samples=samples,
        exchange_of=lambda parts: build_exchange(settings, parts, world, copies=2 if doubled else 1),
        doubled=doubled,
    )


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Times of every way at every ratio on the ranks that were launched; all of them call this together."""
    from mpi4py import MPI

    from trainers.runs.errors import abort_on_exception

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    take_cores(world.rank, world.size)  # hosts share none
    calibrated = calibrate(functools.partial(trained_by, world))
    found = []
    for ratio in options.ratios:
        samples = world.bcast(calibrated.samples(ratio))
        trained = {COMPUTE: trained_by(world, samples=samples, way=COMPUTE)}
        trained |= {
            f"{way} {wire}": trained_by(world, samples=samples, way=way, wire=wire) for wire in WIRES for way in WAYS
        }
        times = in_turns(trained, rounds=options.rounds, updates=options.updates)
        for one in trained.values():
            one.close()
        found.append(
            {
                "ranks": world.size,
                "ratio": ratio,
                "samples_per_rank": samples,
                "gradient_bytes": calibrated.gradient_bytes,
                "communication_seconds": calibrated.communication_seconds,
                **times,
            }
        )
    return found


HEADS = ("ranks", "Mbit/s", "ratio", "wire", COMPUTE, *WAYS, "hidden by buckets", "by double", "of float32's")


def table_lines(found: dict[str, Any]) -> list[str]:
    """Two lines of the table in Markdown, one for each wire; times in milliseconds, with the measured ratio."""
    seconds, lines = found["seconds"], []
    compute = seconds[COMPUTE]
    for wire in WIRES:
        none, buckets, double = (seconds[f"{way} {wire}"] for way in WAYS)
        middle = [statistics.median(times) for times in (compute, none, buckets, double)]
        cells = [str(found["ranks"]), str(found["megabits"]), f"{middle[1] / middle[0] - 1:.2f}", wire]
        cells += [f"{1000 * value:.0f}" for value in middle]
        pairs = ((buckets, none), (double, none), (double, seconds[f"none {WIRES[0]}"]))
        cells += [f"{100 * hidden(times, of, compute):.0f} %" for times, of in pairs]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def on_hosts(network: SlowNetwork, words: list[str], file: Path, timeout: float) -> list[dict[str, Any]]:
    """Run a script on ranks behind such links and read what it measured."""
    with network:
        words = [sys.executable, *words, "--json", str(file)]
        network.run(words, environment={**ONE_THREAD, "GLOO_SOCKET_IFNAME": "eth0"}, timeout=timeout)
    more = {"megabits": network.megabits or 0, "mtu": network.mtu}
    return [{**found, **more} for found in json.loads(file.read_text(encoding="utf-8"))]


def main() -> None:
    """Measure on every number of ranks and every link, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2, 3, 4])
    parser.add_argument("--megabits", nargs="+", type=int, default=[100, 200], help="a second, of each link")
    parser.add_argument("--mtu", type=int, default=JUMBO, help="bytes of a packet")
    parser.add_argument("--ratios", nargs="+", type=float, default=[0.5, 1.0, 2.0], help="communication over compute")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3, help="timed in a turn")
    parser.add_argument("--allreduce", action="store_true", help="time bench_allreduce.py instead")
    parser.add_argument("--model", default="cifar", help="with --allreduce: of that script")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="SECONDS", help="of one launch")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here")
    options = parser.parse_args()
    if launched_ranks() is not None:
        return as_rank(options)
    if (reason := why_not()) is not None:
        print(f"bench_slow_network: skipped: {reason}")
        return None
    results = []
    if not options.allreduce:
        print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    for megabits in options.megabits:
        for ranks in options.ranks:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder, "figures.json")
                network = SlowNetwork(hosts=ranks, megabits=megabits or None, mtu=options.mtu)
                found = on_hosts(network, _words(options), file, options.timeout)
            results += found
            print("\n".join(line for one in found for line in _lines(one, options.allreduce)), flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def as_rank(options: argparse.Namespace) -> None:
    """Measure; rank 0 writes it down."""
    found = measure(options)
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank == 0:
        options.json.write_text(json.dumps(found), encoding="utf-8")


def _words(options: argparse.Namespace) -> list[str]:
    counts = ["--rounds", str(options.rounds)]
    if options.allreduce:
        script = Path(__file__).with_name("bench_allreduce.py")
        return [str(script), "--model", options.model, "--turns", str(options.updates), "--buckets", "0", *counts]
    ratios = [str(ratio) for ratio in options.ratios]
    return [__file__, "--updates", str(options.updates), *counts, "--ratios", *ratios]


def _lines(found: dict[str, Any], allreduce: bool) -> list[str]:
    if not allreduce:
        return table_lines(found)
    import bench_allreduce

    link = f"{found['megabits']} Mbit/s" if found["megabits"] else "unthrottled"
    head = f"{found['ranks']} ranks, {link}, {4e-6 * found['num_values']:.1f} MB:"
    return [head, *bench_allreduce.table_lines(found)]


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    os.environ.setdefault("PYTHONWARNINGS", "ignore::SyntaxWarning")
    main()
