"""What `--exact` costs: time of an update of the same recipe and samples in ordinary and in exact mode.

    .venv/bin/python scripts/bench_exact.py
    .venv/bin/python scripts/bench_exact.py --cases digits images --ranks 1 2 4

    ordinary  micro-batches as large as fit, gradients summed by the default communicator while backward goes on
    groups    ordinary, with one norm group a forward
    exact     exact mode: one norm group a forward, the tree, no overlap

`groups` tells the cost of small forwards from that of the sums. `images` (32x32, synthetic) has a ramp of the batch:
updates before and after it take turns, and each batch has a row of its own. Samples are loaded before. The ways take
turns within a round; a round's figure is the median over `--updates` turns of a batch, the table has the median over
the rounds and, in brackets, the smallest and the largest ratio to `ordinary`. One BLAS thread a rank everywhere.
`--clock cpu` counts rank 0's processor time, which other processes on the machine hardly change, but which contains
MPI's busy waiting.
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

from bench_updater import CASES as WITHOUT_RAMP
from bench_updater import Replay, load_shares

from trainers.runs.mpi_ranks import find_mpiexec, launched_ranks, limit_threads

CASES = {
    **WITHOUT_RAMP,
    "images": (
        "digits/ramp",
        (
            "dataset=synthetic",
            "batch={global: [{from: 0, size: 96}, {from: 2up, size: 192}], norm_span: 32}",
            "learning_rate.warmup.target_batch=192",
            "augmentation={train: [{kind: RandomCrop, size: 32, padding: 4}, {kind: HorizontalFlip}], eval: []}",
        ),
    ),
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
WAYS = ("ordinary", "groups", "exact")


def load_by_batch(prepared: Any, rank: int, num_updates: int) -> list[list[Any]]:
    """This rank's share of the first updates of each batch of the ramp, loaded into memory."""
    last = prepared.plan.segments[-1].segment.update
    shares = load_shares(prepared, rank, last + num_updates)
    batches = sorted({share.segment.global_batch_size for share in shares})
    return [[s for s in shares if s.segment.global_batch_size == batch][:num_updates] for batch in batches]


def in_turns(by_batch: list[list[Any]], num_updates: int) -> list[Any]:
    """One update of each batch, then the next of each; a batch with fewer updates starts over."""
    return [shares[turn % len(shares)] for turn in range(num_updates) for shares in by_batch]


def updates_of(case: str, communicator: Any, num_updates: int) -> tuple[dict[str, Callable[[], None]], list[int]]:
    """For each way a function that does one update, and the global batches of its updates in turn."""
    from recipes.planning.cluster import GradientExchange
    from trainers.communicators.tree_sum import TreeSum
    from trainers.launch.request import TrainRequest, prepare
    from trainers.models.batch_norm import NormGroups
    from trainers.training.build import build, build_exchange
    from trainers.training.updater import RecipeUpdater

    recipe, overrides = CASES[case]
    found, batches = {}, []
    for way in WAYS:
        exact = way == "exact"
        request = TrainRequest(recipe=recipe, overrides=overrides, exact=exact)
        prepared = prepare(request, workers=communicator.size)
        if way == "groups":
            span = prepared.plan.segments[0].division.norm_span
            request = TrainRequest(recipe=recipe, overrides=overrides, micro_batch_size=span)
            prepared = prepare(request, workers=communicator.size)
        parts = build(prepared.opened.recipe, prepared.opened.dataset)
        by_batch = load_by_batch(prepared, communicator.rank, num_updates)
        batches = [shares[0].segment.global_batch_size for shares in by_batch]
        groups = NormGroups(prepared.opened.recipe.evaluation, TreeSum(communicator) if exact else None)
        groups.install(parts.model)
        found[way] = RecipeUpdater(
            {"main": Replay(in_turns(by_batch, num_updates))},
            parts.optimizer,
            loss=parts.loss,
            plan=prepared.plan,
            exchange=build_exchange(GradientExchange(), parts, communicator, exact=exact),
            mpi=communicator,
            norm_groups=groups,
        ).update
    return found, batches


def measure(case: str, *, rounds: int, updates: int, clock: str) -> list[dict[str, Any]]:
    """Times of one case on the ranks that were launched, by batch; all of them call this together."""
    limit_threads(threads=1)
    from mpi4py import MPI

    from trainers.runs.errors import abort_on_exception

    world, now = MPI.COMM_WORLD, CLOCKS[clock]
    abort_on_exception(world.rank)
    ways, batches = updates_of(case, world, updates)

    def seconds_of(update: Callable[[], None]) -> float:
        world.Barrier()
        began = now()
        update()
        world.Barrier()
        return now() - began

    for update in ways.values():
        for _ in batches:
            update()  # allocates, chooses
    medians: dict[int, list[dict[str, float]]] = {batch: [] for batch in batches}
    for number in range(rounds):
        times: dict[int, dict[str, list[float]]] = {batch: {way: [] for way in WAYS} for batch in batches}
        for turn in range(updates):
            first = (number + turn) % len(WAYS)
            for batch in batches:
                for way in WAYS[first:] + WAYS[:first]:
                    times[batch][way].append(seconds_of(ways[way]))
        for batch in batches:
            medians[batch].append({way: statistics.median(values) for way, values in times[batch].items()})
    what = {"case": case, "ranks": world.size, "clock": clock, "updates_per_round": updates}
    return [what | {"global_batch_size": batch} | by_way(found) for batch, found in medians.items()]


def by_way(medians: list[dict[str, float]]) -> dict[str, Any]:
    """Seconds of each way and its ratios, round by round."""
    return {
        "seconds": {way: [round_[way] for round_ in medians] for way in WAYS},
        "over_ordinary": {way: [round_[way] / round_["ordinary"] for round_ in medians] for way in WAYS[1:]},
    }


def measure_on_ranks(case: str, ranks: int, *, rounds: int, updates: int, clock: str) -> list[dict[str, Any]]:
    """Start this script on MPI ranks for one case and read what they measured."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "figures.json")
        command = [find_mpiexec(), "-n", str(ranks), sys.executable, __file__, "--cases", case, "--json", str(file)]
        command += ["--rounds", str(rounds), "--updates", str(updates), "--clock", clock]
        subprocess.run(command, check=True)
        return json.loads(file.read_text(encoding="utf-8"))


def table_line(found: dict[str, Any]) -> str:
    """A line of the table in Markdown."""
    times = [f"{1000 * statistics.median(found['seconds'][way]):.1f}" for way in WAYS]
    over = [found["over_ordinary"][way] for way in WAYS[1:]]
    ratios = [f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in over]
    what = [str(found[key]) for key in ("case", "global_batch_size", "ranks")]
    return "| " + " | ".join([*what, *times, *ratios]) + " |"


def main() -> None:
    """Measure every case on every number of ranks, or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="+", choices=CASES, default=list(WITHOUT_RAMP), help="what to train; by default all but images"
    )
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2], help="numbers of ranks, one after the other")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--updates", type=int, default=6, help="turns of a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", type=Path, metavar="F", help="write all figures here, seconds by round")
    options = parser.parse_args()
    how = {"rounds": options.rounds, "updates": options.updates, "clock": options.clock}
    leads = True
    if launched_ranks() is not None:
        results = [found for case in options.cases for found in measure(case, **how)]
        from mpi4py import MPI

        leads = MPI.COMM_WORLD.rank == 0
    else:
        print("| case | batch | ranks | ordinary ms | groups ms | exact ms | groups / ordinary | exact / ordinary |")
        print("|---" * 8 + "|", flush=True)
        results = []
        for case in options.cases:
            for ranks in options.ranks:
                for found in measure_on_ranks(case, ranks, **how):
                    results.append(found)
                    print(table_line(found), flush=True)
    if leads and options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
