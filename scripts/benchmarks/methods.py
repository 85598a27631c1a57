"""Large-batch methods against plain scaling, each with the same number of trials for its rate.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/bench_methods.py --json F [--html F] [--markdown] [--picture F]

Seven methods on three settings: digits at 16 times the reference batch, and a generated set of 20,480 noisy images of
32x32, a fifth of their labels wrong, at 16 and 64 times. All share epochs, model, order of the samples, augmentation,
norm span, momentum, weight decay and the cosine; a method says only how batch and rate move and which optimizer steps.

Each method has one number, its rate. It is tuned on one seed, with as many trials for each method: a grid of half
decades around the method's default at that batch, then a quarter of a decade to either side of its best; the best by
evaluation accuracy (then by loss) is run on other seeds, and only these are reported. A run that diverges counts as
chance and is said so. Two methods more, `lars-trust` and `lamb-up`, are run only where `--methods` names them.

Every finished run is in the JSON at once, and is not done again: stop the script and start it again as you like, add
`--methods` and `--settings` one after the other. `--table-only` trains nothing. One process, no MPI ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from compared_methods import (
    METHODS,
    RECIPE,
    SETTINGS,
    STEP,
    TUNING_SEED,
    Setting,
    best_trial,
    grid,
    overrides_of,
)

ROOT = Path(__file__).parents[1]
TRIALS = 5
MICRO_BATCH_SIZE = 256  # affects only time and rounding


class Results:
    """The runs done so far, in a JSON file that is complete after each run.

    Args:
        path: of the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {"runs": []}
        self.runs: list[dict[str, Any]] = known["runs"]

    def find(self, overrides: tuple[str, ...], *, method: str) -> dict[str, Any] | None:
        """The run of exactly these overrides, preferably under this method's name, or None."""
        same = [run for run in self.runs if tuple(run["overrides"]) == overrides]
        return max(same, key=lambda run: run["method"] == method, default=None)

    def add(self, run: dict[str, Any]) -> None:
        """Add a finished run."""
        self.runs.append(run)
        if self._path is not None:
            partial = self._path.with_name(self._path.name + ".partial")
            partial.write_text(json.dumps({"runs": self.runs}, indent=1) + "\n", encoding="utf-8")
            os.replace(partial, self._path)


def compare(
    results: Results, setting: Setting, method: str, *, seeds: int, trials: int, train: Callable[..., dict[str, Any]]
) -> None:
    """Tune one method on one setting and run it on the reported seeds; what is in the results is not done again."""

    def done(rate: float, seed: int) -> dict[str, Any]:
        overrides = overrides_of(setting, method, rate=rate, seed=seed)
        known = results.find(overrides, method=method)
        if known is not None and known["method"] == method:
            return known
        found = {"setting": setting.name, "method": method, "rate": float(f"{rate:.4g}"), "seed": seed}
        found = {**known, **found} if known else {**found, "overrides": list(overrides), **train(overrides)}
        results.add({"commit": commit(), **found})
        said = found["failed"] or f"{100 * found['accuracy']:.2f} %"
        place = f"{len(results.runs):4} {setting.name:10} {method:8} rate {found['rate']:<9} seed {seed:<3}"
        print(f"{place} {said}  {found['seconds']:.1f} s", file=sys.stderr, flush=True)
        return found

    tried = [done(rate, TUNING_SEED) for rate in grid(METHODS[method].default(setting), trials)]
    middle = best_trial(tried)["rate"]
    best = best_trial(tried + [done(rate, TUNING_SEED) for rate in (middle / STEP**0.5, middle * STEP**0.5)])
    for seed in range(seeds):
        done(best["rate"], seed)


def train_once(overrides: tuple[str, ...]) -> dict[str, Any]:
    """Train as `kilobatch train` does on one rank, in this process; the images stay in memory between runs."""
    from mpi4py import MPI

    from trainers.faults import EXIT_STOPPED, RunFailed
    from trainers.request import TrainRequest, prepare
    from trainers.train import TrainOptions, train_as_rank

    request = TrainRequest(recipe=RECIPE, overrides=overrides, micro_batch_size=MICRO_BATCH_SIZE)
    prepared = prepare(request, workers=1)
    dataset = replace(prepared.opened.dataset, reader=InMemory(reader=prepared.opened.dataset.reader))
    opened = replace(prepared.opened, dataset=dataset)
    failed, began = None, time.process_time()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        options = TrainOptions(folder=Path(name), checkpoint_every=opened.recipe.epochs)
        try:
            if train_as_rank(opened, prepared.plan, options, mpi=MPI.COMM_SELF, launched_by_us=True) == EXIT_STOPPED:
                raise SystemExit(EXIT_STOPPED)  # an unfinished run's accuracy must not be recorded
        except RunFailed as error:
            failed = str(error).partition(". ")[0]
        lines = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    scores = {line["key"]: line["value"] for line in lines if line["key"].startswith("eval_")}
    return {
        "failed": failed,
        "accuracy": None if failed else scores["eval_accuracy"],
        "loss": None if failed else scores["eval_loss"],
        "updates": prepared.plan.timeline.num_updates,
        "seconds": round(time.process_time() - began, 2),
    }


@dataclass(frozen=True)
class InMemory:
    """A data set's reader that computes every image once for all runs of this process."""

    reader: Any

    def open(self, root: Path | None, split: str) -> Any:
        """The samples of a split."""
        return _held(self.reader, root, split)

    def fingerprint(self, root: Path | None) -> str:
        """The reader's."""
        return self.reader.fingerprint(root)


@lru_cache
def _held(reader: Any, root: Path | None, split: str) -> Any:
    import numpy as np

    from trainers.datasets.splits import SamplesInMemory

    samples = reader.open(root, split)
    images, labels = zip(*(samples[index] for index in range(len(samples))), strict=True)
    return SamplesInMemory(images_NHWC=np.stack(images), labels=np.array(labels))


@lru_cache
def commit() -> str:
    """The commit of the code, with `-dirty` if it has uncommitted changes."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Train what is missing, then show the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked = [key for key, method in METHODS.items() if not method.added]
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=asked, metavar="M")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="S")
    parser.add_argument("--seeds", type=int, default=5, help="reported runs of each row, at least 2")
    parser.add_argument("--trials", type=int, default=TRIALS, help="rates of the first grid, an odd number; then two")
    parser.add_argument("--json", type=Path, metavar="F", help="where runs are kept; those in it are not repeated")
    parser.add_argument("--html", type=Path, metavar="F", help="write a page on them, pictures first")
    parser.add_argument("--picture", type=Path, metavar="F", help="write the page's first picture, .png or .svg")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--table-only", action="store_true", help="train nothing")
    options = parser.parse_args()
    results = Results(options.json)
    for name in () if options.table_only else options.settings:
        methods = [m for m in options.methods if SETTINGS[name].times > 1 or m == "plain"]
        for method in methods:
            how = {"seeds": options.seeds, "trials": options.trials, "train": train_once}
            compare(results, SETTINGS[name], method, **how)
    show(results, options)


def show(results: Results, options: argparse.Namespace) -> None:
    """The table, and what else was asked for."""
    import methods_table

    rows = methods_table.rows_of(results.runs)
    methods_table.show(rows, markdown=options.markdown)
    if options.html or options.picture:
        import methods_page

        methods_page.write(rows, results.runs, html=options.html, picture=options.picture)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
