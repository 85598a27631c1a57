"""What `--exact` costs: time of an update of the same recipe and samples in ordinary and in exact mode.

    .venv/bin/python scripts/bench_exact.py

    ordinary  micro-batches as large as fit, gradients summed by the default communicator while backward goes on
    groups    ordinary, with one norm group a forward
    exact     exact mode: one norm group a forward, the tree, no overlap

`groups` tells the cost of small forwards from that of the sums. Samples are loaded before. The ways take turns within a
round; a round's figure is the median over `--updates` turns, the table has the median over the rounds and, in brackets,
the smallest and the largest ratio to `ordinary`. One BLAS thread a rank everywhere. `--clock cpu` counts rank 0's
processor time, which other processes on the machine hardly change, but which contains MPI's busy waiting.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_updater import CASES, Replay, load_shares

from trainers.launch import find_mpiexec, launched_ranks, limit_threads

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WAYS = ("ordinary", "groups", "exact")


def updates_of(case: str, communicator: Any, num_updates: int) -> dict[str, Callable[[], None]]:
    """One update of each way."""
    from recipes.planning.cluster import GradientExchange
    from trainers.build import build, build_exchange
    from trainers.norm_groups import NormGroups
    from trainers.request import TrainRequest, prepare
    from trainers.summation_tree import TreeSum
    from trainers.updater import RecipeUpdater

    recipe, overrides = CASES[case]
    found = {}
    for way in WAYS:
        exact = way == "exact"
        request = TrainRequest(recipe=recipe, overrides=overrides, exact=exact)
        prepared = prepare(request, workers=communicator.size)
        if way == "groups":
            span = prepared.plan.segments[0].division.norm_span
            request = TrainRequest(recipe=recipe, overrides=overrides, micro_batch_size=span)
            prepared = prepare(request, workers=communicator.size)
        parts = build(prepared.opened.recipe, prepared.opened.dataset)
        groups = NormGroups(prepared.opened.recipe.evaluation, TreeSum(communicator) if exact else None)
        groups.install(parts.model)
        found[way] = RecipeUpdater(
            {"main": Replay(load_shares(prepared, communicator.rank, num_updates))},
            parts.optimizer,
            loss=parts.loss,
            plan=prepared.plan,
            exchange=build_exchange(GradientExchange(), parts, communicator, exact=exact),
            mpi=communicator,
            norm_groups=groups,
        ).update
    return found


def measure(case: str, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Times of one case on the ranks that were launched; all of them call this together."""
    limit_threads(threads=1)
    from mpi4py import MPI

    from trainers.faults import abort_on_exception

    world, now = MPI.COMM_WORLD, CLOCKS[clock]
    abort_on_exception(world.rank)
    ways = updates_of(case, world, updates)

    def seconds_of(update: Callable[[], None]) -> float:
        world.Barrier()
        began = now()
        update()
        world.Barrier()
        return now() - began

    for update in ways.values():
        update()  # allocates, chooses
    medians = []
    for number in range(rounds):
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(updates):
            first = (number + turn) % len(WAYS)
            for way in WAYS[first:] + WAYS[:first]:
                times[way].append(seconds_of(ways[way]))
        medians.append({way: statistics.median(values) for way, values in times.items()})
    return {
        "case": case,
        "ranks": world.size,
        "clock": clock,
        "updates_per_round": updates,
        "seconds": {way: [round_[way] for round_ in medians] for way in WAYS},
        "over_ordinary": {way: [round_[way] / round_["ordinary"] for round_ in medians] for way in WAYS[1:]},
    }


def measure_on_ranks(case: str, ranks: int, *, rounds: int, updates: int, clock: str) -> dict[str, Any]:
    """Start this script on MPI ranks for one case and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, __file__, "--cases", case, "--json", str(file)]
        command += ["--rounds", str(rounds), "--updates", str(updates), "--clock", clock]
        subprocess.run(command, check=True)
        return json.loads(file.read_text(encoding="utf-8"))[0]


def table_line(found: dict[str, Any]) -> str:
    """A line of the table in Markdown."""
    times = [f"{1000 * statistics.median(found['seconds'][way]):.1f}" for way in WAYS]
    over = [found["over_ordinary"][way] for way in WAYS[1:]]
    ratios = [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in over]
    return "| " + " | ".join([found["case"], str(found["ranks"]), *times, *ratios]) + " |"


def main() -> None:
    """Measure every case on every number of ranks, or be one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), help="what to train; all by default")
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here, seconds by round")
    options = parser.parse_args()
    how = {"rounds": options.rounds, "updates": options.updates, "clock": options.clock}
    leads = True
    if launched_ranks() is not None:
        results = [measure(case, **how) for case in options.cases]
        from mpi4py import MPI

        leads = MPI.COMM_WORLD.rank == 0
    else:
        print("| case | ranks | ordinary ms | groups ms | exact ms | groups / ordinary | exact / ordinary |")
        print("|---" * 7 + "|", flush=True)
        results = []
        for case in options.cases:
            for ranks in options.ranks:
                results.append(measure_on_ranks(case, ranks, **how))
                print(table_line(results[-1]), flush=True)
    if leads and options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
