"""Accuracy with gradients of 16 bits on the wire, and with gradients one update old.

    .venv/bin/python scripts/bench_wire.py --json runs.json
    .venv/bin/python scripts/bench_wire.py --json runs.json --table-only

Trains digits at 4 times the reference batch and a synthetic set with noisy labels at 16 times, linear scaling and
warmup (data and models of compared_methods.py, about 120 and 80 updates), on two ranks whose gradients go around a
ring, so that the wire is used on one machine as well:

    float32, float16, bfloat16    the wire; all else alike
    double                        double buffering at the same rate, float32
    double, tuned                 double buffering at the best of three rates on a seed that is not reported

The table has the mean accuracy over the seeds and its deviation, and Welch's 95 % interval of the difference to float32
in percentage points: a way is told apart only where 0 lies outside. The runs are kept in a JSON file that is whole
after each; those in it are not repeated. The script starts itself under mpiexec, one group of ranks for all runs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench_methods import InMemory, Results, commit
from compared_methods import DIGITS, METHODS, NOISY, RECIPE, TUNING_SEED, Setting, overrides_of
from methods_table import verdict_of, welch

from trainers.runs.mpi_ranks import find_mpiexec, launched_ranks, limit_threads

CASES = {
    "digits-4x": Setting(name="digits-4x", overrides=DIGITS, epochs=10, per=32, times=4),
    "noisy-16x": Setting(name="noisy-16x", overrides=NOISY, epochs=1, per=16, times=16),
}
METHOD = "warmup"
FACTORS = (0.25, 0.5, 1.0)  # of the rate, for double buffering
RING = "cluster.exchange.communicator={kind: Ring}"
WAYS = {
    "float32": (RING,),
    "float16": (RING, "cluster.exchange.wire=float16"),
    "bfloat16": (RING, "cluster.exchange.wire=bfloat16"),
    "double": (RING, "updater.double_buffering=true"),
}
TUNED = "double, tuned"
RANKS = 2


def run_of(case: str, way: str, factor: float, seed: int) -> dict[str, Any]:
    """The key that identifies a run, and its overrides."""
    rate = factor * METHODS[METHOD].default(CASES[case])
    overrides = (*overrides_of(CASES[case], METHOD, rate=rate, seed=seed), *WAYS[way])
    return {"case": case, "way": way, "factor": factor, "seed": seed, "overrides": list(overrides)}


def find(runs: list[dict[str, Any]], wanted: dict[str, Any]) -> dict[str, Any] | None:
    """The finished run of exactly this, or None."""
    return next((run for run in runs if all(run[key] == value for key, value in wanted.items())), None)


def best_factor(runs: list[dict[str, Any]], case: str) -> float | None:
    """The factor on the rate with which double buffering scores best on the tuning seed; None until all are tried."""
    tried = [find(runs, run_of(case, "double", factor, TUNING_SEED)) for factor in FACTORS]
    if None in tried:
        return None
    done = [run for run in tried if run["failed"] is None]
    return max(done, key=lambda run: (run["accuracy"], -run["loss"]), default=tried[0])["factor"]


def next_run(runs: list[dict[str, Any]], seeds: int) -> dict[str, Any] | None:
    """The next missing run, seed by seed, so that all ways have equally many; None if none is missing."""
    for seed in range(seeds):
        for case in CASES:
            for wanted in [run_of(case, way, 1.0, seed) for way in WAYS]:
                if find(runs, wanted) is None:
                    return wanted
    for case in CASES:
        for wanted in [run_of(case, "double", factor, TUNING_SEED) for factor in FACTORS]:
            if find(runs, wanted) is None:
                return wanted
        for wanted in [run_of(case, "double", best_factor(runs, case), seed) for seed in range(seeds)]:
            if find(runs, wanted) is None:
                return wanted
    return None


def train_all(options: argparse.Namespace) -> None:
    """As one of the ranks: train what is missing. Rank 0 keeps the runs."""
    limit_threads()
    from mpi4py import MPI

    from trainers.runs.errors import abort_on_exception

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    results = Results(options.json) if world.rank == 0 else None
    while (wanted := world.bcast(results and next_run(results.runs, options.seeds))) is not None:
        found = train(tuple(wanted["overrides"]), world)
        if results is not None:
            results.add({**wanted, **found, "commit": commit()})
            said = found["failed"] or f"{100 * found['accuracy']:.2f} %"
            place = (
                f"{len(results.runs):4} {wanted['case']:10} {wanted['way']:9} x{wanted['factor']} seed {wanted['seed']}"
            )
            print(f"{place}: {said}, {found['seconds']} s", file=sys.stderr, flush=True)


def train(overrides: tuple[str, ...], world: Any) -> dict[str, Any]:
    """Train as `kilobatch train` does, on all ranks together; the images stay in memory between runs."""
    from trainers.launch.request import TrainRequest, prepare
    from trainers.runs.errors import EXIT_STOPPED, RunFailed
    from trainers.training.train import TrainOptions, train_as_rank

    prepared = prepare(TrainRequest(recipe=RECIPE, overrides=overrides), workers=world.size)
    dataset = replace(prepared.opened.dataset, reader=InMemory(reader=prepared.opened.dataset.reader))
    opened = replace(prepared.opened, dataset=dataset)
    failed, began = None, time.monotonic()
    with tempfile.TemporaryDirectory() as own, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(world.bcast(own))
        options = TrainOptions(folder=folder, checkpoint_every=opened.recipe.epochs)
        try:
            if train_as_rank(opened, prepared.plan, options, mpi=world, launched_by_us=True) == EXIT_STOPPED:
                raise SystemExit(EXIT_STOPPED)  # an unfinished run's accuracy must not be recorded
        except RunFailed as error:
            failed = str(error).partition(". ")[0]
        world.Barrier()
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        world.Barrier()  # all have read before the folder goes
    scores = {line["key"]: line["value"] for line in lines if line["key"].startswith("eval_")}
    return {
        "failed": failed,
        "accuracy": None if failed else scores["eval_accuracy"],
        "loss": None if failed else scores["eval_loss"],
        "updates": prepared.plan.timeline.num_updates,
        "seconds": round(time.monotonic() - began, 1),
    }


def table_lines(runs: list[dict[str, Any]], seeds: int) -> list[str]:
    """The table in Markdown, of the rows that have all their runs."""
    lines = ["| setting | way | rate | accuracy | runs | minus float32, points | |", "|---" * 7 + "|"]
    for case in CASES:
        beside = accuracies(runs, case, "float32", 1.0, seeds)
        rows = [(way, way, 1.0) for way in WAYS] + [(TUNED, "double", best_factor(runs, case))]
        for title, way, factor in rows:
            found = [] if factor is None else accuracies(runs, case, way, factor, seeds)
            if len(found) < 2 or len(beside) < 2:
                continue
            mean, spread = 100 * statistics.mean(found), 100 * statistics.stdev(found)
            cells = [case, title, f"x {factor:g}", f"{mean:.2f} +- {spread:.2f} %", str(len(found))]
            if title == "float32":
                cells += ["", ""]
            else:
                interval = welch(found, beside)
                low, high = 100 * interval.low, 100 * interval.high
                cells += [f"{100 * interval.difference:+.2f} ({low:+.2f} to {high:+.2f})", verdict_of(interval)]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def accuracies(runs: list[dict[str, Any]], case: str, way: str, factor: float, seeds: int) -> list[float]:
    """Accuracies of the reported runs of a row; a failed run counts as chance."""
    found = [find(runs, run_of(case, way, factor, seed)) for seed in range(seeds)]
    return [CASES[case].chance if run["failed"] else run["accuracy"] for run in found if run is not None]


def main() -> None:
    """Start the ranks that train what is missing, then print the table; or run as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="reported runs of each row, at least 2")
    parser.add_argument("--json", type=Path, metavar="F", required=True, help="where runs are kept")
    parser.add_argument("--table-only", action="store_true", help="train nothing")
    options = parser.parse_args()
    if launched_ranks() is not None:
        return train_all(options)
    if not options.table_only:
        command = [find_mpiexec(), "-n", str(RANKS), sys.executable, __file__, *sys.argv[1:]]
        subprocess.run(command, check=True, env={**os.environ, "PYTHONWARNINGS": "ignore::SyntaxWarning"})
    print("\n".join(table_lines(Results(options.json).runs, options.seeds)))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    main()
