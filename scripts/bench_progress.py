"""How well an MPI all-reduce is hidden behind the backward pass, by who moves it on. Throttled links need root.

    .venv/bin/python scripts/bench_progress.py
    .venv/bin/python scripts/bench_progress.py --ranks 2 --megabits 0 200 --ratio 0.5 --rounds 5 --json F

MPI moves an Iallreduce only while somebody is in a call of MPI. One model is trained in each of these ways, float32 on
the wire, in the same buckets (an eighth of the bytes or one large weight), by the sum of the MPI library:

    compute   no exchange at all: the Dummy communicator
    none      all gradients at once after the backward pass, one Allreduce
    wait      Iallreduce of each finished bucket; nobody asks for it again before the end
    test      the same, and the main thread calls Testall at each parameter that backward has finished
    poll      the same as wait, and a thread calls Testall every 0.2 ms
    thread    `Exchange` with MpiAllreduce: a thread with blocking calls, in which MPI asks without a pause
    sleep     `Exchange`, whose thread starts an Iallreduce, asks for it for 0.2 ms, sleeps 1 ms, and so on; MPI_Wait
              once the main thread has nothing to do but wait
    ring      `Exchange` with our Ring over sockets instead of MPI's sum, as `Auto` often has it on slow links

At the end of wait, test and poll the main thread calls MPI_Wait for one bucket after another, the best there is where
each rank has a core, and divides each; the poller rests. `none` to `ring` must have the same weights after two updates,
else the script fails.

Ranks are in network namespaces whose links the kernel throttles to `--megabits` (`slow_network.py`); 0 stands for ranks
of one host under a plain mpiexec, where MPI goes through shared memory and no root is needed. Each rank has one BLAS
thread and `--cores` cores of its own where the machine has them; with 2 a core is free beside the one that computes.
The batch is one for which `none` communicates `--ratio` times as long as it computes; one sample may be too many.

The ways take turns in the same processes, the first another one each time: one update, then `--updates` timed, on the
slowest rank. The table has medians over the rounds in ms. `exposed` is time - compute of the same round, in brackets
the least and the most; `hidden` is 1 - exposed / exposed of none, where that is at least 5 % of compute. Processor
time is the mean of the ranks.

With `MPIR_CVAR_ASYNC_PROGRESS=1` in the environment every way has MPICH's own progress thread; it is meant for `wait`.
"""

from __future__ import annotations

import argparse
import functools
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from bench_slow_network import WHOLE, on_hosts
from slow_network import SlowNetwork, why_not
from started_exchange import STARTED, Sleeping, Started
from timed_training import COMPUTE, NONE, ONE_THREAD, Trained, calibrate, hidden, in_turns, take_cores

from trainers.gradients.exchange import Exchange
from trainers.runs.mpi_ranks import find_mpiexec, launched_ranks

THREADS = ("thread", "sleep", "ring")
WAYS = (NONE, *STARTED, *THREADS)
MODELS = {
    "small": "{kind: SmallResNet, width: 32, blocks: [1, 1, 1]}",
    "resnet": "{kind: SmallResNet, width: 48, blocks: [2, 2, 2]}",
    "wide": "{kind: SmallResNet, width: 160, blocks: [1, 1, 1]}",
}
TIMEOUT_SECONDS = 1800  # of one launch
LEAST_RATIO = 0.05
SAME_WEIGHTS = 1e-6  # relative, in L2; with two ranks every order of a sum has the same bits


def exchange_of(way: str, parts: Any, world: Any) -> Exchange:
    """The exchange of a model's gradients by COMPUTE or one of WAYS."""
    from recipes.planning.cluster import GradientExchange
    from trainers.communicators import Dummy, MpiAllreduce, Ring
    from trainers.training.build import build_exchange

    special = {COMPUTE: Dummy(), "sleep": Sleeping(), "ring": Ring(sockets=True)}
    settings = GradientExchange(
        communicator=special.get(way, MpiAllreduce()),
        bucket_bytes=WHOLE if way == NONE else "auto",
        overlap=way in THREADS,
    )
    built = build_exchange(settings, parts, world)
    if way not in STARTED:
        return built
    return Started(built, bucket_bytes=settings.bucket_bytes_of(built.flat.values.nbytes), way=way)


def trained_by(world: Any, model: str, *, samples: int, way: str) -> Trained:
    """The model with the exchange of a way; all ranks make it together."""
    exchange = functools.partial(exchange_of, way, world=world)
    return Trained(world, samples=samples, exchange_of=exchange, model=MODELS[model])


def differences(trained: dict[str, Trained], world: Any) -> dict[str, float]:
    """Relative L2 distance of each way's weights from those of NONE on rank 0; the largest over the ranks."""
    from mpi4py import MPI

    weights = {
        name: np.concatenate([array.array.ravel() for _, array in sorted(one.model.namedparams())])
        for name, one in trained.items()
    }
    expected = world.bcast(weights[NONE])
    norm = float(np.linalg.norm(expected))
    own = {name: float(np.linalg.norm(values - expected)) / norm for name, values in weights.items()}
    return {name: world.allreduce(distance, op=MPI.MAX) for name, distance in own.items()}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Times of every way on the ranks that were launched; all of them call this together."""
    import trainers.compat  # noqa: F401  isort: skip
    from mpi4py import MPI

    from trainers.runs.errors import abort_on_exception

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    take_cores(world.rank, world.size, options.cores)
    make = functools.partial(trained_by, world, options.model)
    calibrated = calibrate(make)
    samples = world.bcast(calibrated.samples(options.ratio))
    trained = {way: make(samples=samples, way=way) for way in (COMPUTE, *WAYS)}
    for one in trained.values():
        one.seconds(1)
    found = differences(trained, world)
    if wrong := {way: found[way] for way in WAYS if not found[way] <= SAME_WEIGHTS}:
        raise RuntimeError(f"not the weights of {NONE}: {wrong}")
    times = in_turns(trained, rounds=options.rounds, updates=options.updates)
    num_buckets = len(trained["thread"].exchange.buckets)
    for one in trained.values():
        one.close()
    return {
        "ranks": world.size,
        "model": options.model,
        "cores_per_rank": len(os.sched_getaffinity(0)),
        "samples_per_rank": samples,
        "gradient_bytes": calibrated.gradient_bytes,
        "buckets": num_buckets,
        "communication_seconds": calibrated.communication_seconds,
        "weight_differences": found,
        **times,
    }


HEADS = ("ranks", "Mbit/s", "model", "ratio", "way", "ms", "exposed ms", "processor ms", "hidden")


def table_lines(found: dict[str, Any]) -> Iterator[str]:
    """A line for each way in Markdown, with the measured ratio."""
    seconds, of_processor = found["seconds"], found["processor_seconds"]
    compute, none = seconds[COMPUTE], seconds[NONE]
    ratio = statistics.median(map(operator.sub, none, compute)) / statistics.median(compute)
    for way in (COMPUTE, *WAYS):
        exposed = [1000 * rest for rest in map(operator.sub, seconds[way], compute)]
        said = f"{statistics.median(exposed):.1f} ({min(exposed):.1f} to {max(exposed):.1f})"
        part = f"{100 * hidden(seconds[way], none, compute):.0f} %" if ratio >= LEAST_RATIO else "-"
        times = [f"{1000 * statistics.median(times[way]):.1f}" for times in (seconds, of_processor)]
        cells = [found["ranks"], found["megabits"], found["model"], f"{ratio:.2f}", way, times[0], said, times[1], part]
        yield "| " + " | ".join(map(str, cells)) + " |"


def measure_on(ranks: int, megabits: int, options: argparse.Namespace) -> dict[str, Any]:
    """Start this script on ranks, between throttled links or on one host, and read what they measured."""
    words = [__file__, "--model", options.model, "--ratio", options.ratio, "--cores", options.cores]
    words = [str(word) for word in (*words, "--rounds", options.rounds, "--updates", options.updates)]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        if megabits:
            network = SlowNetwork(hosts=ranks, megabits=megabits)
            return on_hosts(network, words, file, TIMEOUT_SECONDS)[0]
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, *words, "--json", str(file)]
        subprocess.run(command, check=True, env={**os.environ, **ONE_THREAD}, timeout=TIMEOUT_SECONDS)
        return {**json.loads(file.read_text(encoding="utf-8"))[0], "megabits": 0}


def main() -> None:
    """Measure on every link and number of ranks, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2])
    parser.add_argument("--megabits", nargs="+", type=int, default=[200, 1000, 0], help="a second; 0: one host")
    parser.add_argument("--ratio", type=float, default=0.5, help="communication over compute")
    parser.add_argument("--model", choices=MODELS, default="resnet", help="1.2, 6.3 or 31 MB of gradients")
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1, help="of a rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=3, help="timed in a turn")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here")
    options = parser.parse_args()
    if launched_ranks() is not None:
        found = measure(options)
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 0:
            options.json.write_text(json.dumps([found]), encoding="utf-8")
        return
    results = []
    print("| " + " | ".join(HEADS) + " |\n" + "|---" * len(HEADS) + "|", flush=True)
    for megabits in options.megabits:
        for ranks in options.ranks:
            if (reason := why_left_out(ranks, megabits, options.cores)) is not None:
                print(f"bench_progress: {ranks} ranks at {megabits} Mbit/s skipped: {reason}", file=sys.stderr)
                continue
            results.append(measure_on(ranks, megabits, options))
            print("\n".join(table_lines(results[-1])), flush=True)
            if options.json:
                options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def why_left_out(ranks: int, megabits: int, cores: int) -> str | None:
    """Why these links or enough cores are not available here; None if they are."""
    here = len(os.sched_getaffinity(0))
    if cores > 1 and cores * ranks > here:
        return f"{cores} cores a rank are {cores * ranks}, here are {here}"
    return why_not() if megabits else None


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    os.environ.setdefault("PYTHONWARNINGS", "ignore::SyntaxWarning")
    main()
