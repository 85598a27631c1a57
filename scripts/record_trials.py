"""Trains the recorded trials, one after the other in this process, without MPI ranks.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/record_trials.py [--first N]

Every finished configuration is in the file at once and is not done again. `recorded_trials.py` has the design.
Seconds are processor time of this process; those up to a report are in proportion to the samples.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
import tempfile
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from recorded_trials import CONFIGURATIONS, EVALUATED, RECIPE, REPORTS, SHARES, TABLE, overrides_of, values_of

ROOT = Path(__file__).parents[1]
_MICRO_BATCH_SIZE = 256


def trial(number: int) -> dict[str, Any]:
    """A line of the table: one configuration, trained in a ninth, a third and all of its epochs."""
    from recipes.reading.open import open_recipe
    from recipes.search_space.comparable import rate_shape, slow_until
    from recipes.search_space.open_search import assignments
    from recipes.search_space.shorter_runs import compressed
    from trainers.launch.vocabulary import vocabulary

    values = values_of(number)
    overrides = overrides_of(values)
    opened = open_recipe(RECIPE, vocabulary=vocabulary(), overrides=overrides)
    correct, seconds = [], []
    for share in SHARES:
        more = assignments(compressed(opened, share)) if share < 1 else []
        found, spent = train((*overrides, *more), reports=REPORTS if share == 1 else 1)
        correct.append(found)
        seconds.append(spent)
    return {
        "number": number,
        "values": values,
        "shape": rate_shape(opened.recipe),
        "slow_until": slow_until(opened.recipe),
        "correct": correct[-1],
        "short": [found[-1] for found in correct[:-1]],
        "seconds": seconds,
    }


def train(overrides: tuple[str, ...], *, reports: int) -> tuple[list[int], float]:
    """Correct samples at each report, and seconds; a run that diverges has 0 correct from there on."""
    from bench_methods import InMemory
    from mpi4py import MPI

    from recipes.reports import page
    from trainers.launch.request import TrainRequest, prepare
    from trainers.runs.errors import RunFailed
    from trainers.training.train import TrainOptions, train_as_rank

    given = (*overrides, f"evaluation.every={1 / reports!r}run")
    prepared = prepare(TrainRequest(recipe=RECIPE, overrides=given, micro_batch_size=_MICRO_BATCH_SIZE), workers=1)
    dataset = replace(prepared.opened.dataset, reader=InMemory(reader=prepared.opened.dataset.reader))
    opened = replace(prepared.opened, dataset=dataset)
    page.write_page = lambda *run: None  # the page of a run takes as long as a short one of these
    began = time.process_time()
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        options = TrainOptions(folder=Path(name), checkpoint_every=opened.recipe.epochs)
        with contextlib.suppress(RunFailed):
            train_as_rank(opened, prepared.plan, options, mpi=MPI.COMM_SELF, launched_by_us=True)
        lines = [json.loads(line) for line in Path(name, "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    seconds = round(time.process_time() - began, 3)
    scores = [line for line in lines if line["key"] == "eval_accuracy"]
    found = [0] * reports
    for line in scores:
        whole = line["update"] == prepared.plan.timeline.num_updates
        passed = int(Fraction(line["samples"], dataset.num_train) / Fraction(opened.recipe.evaluation.every) + 1e-9)
        found[(reports if whole else min(passed, reports)) - 1] = round(line["value"] * EVALUATED)
    return found, seconds


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=CONFIGURATIONS, help="so many of them")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    known = json.loads(options.table.read_text(encoding="utf-8"))["trials"] if options.table.exists() else []
    for number in range(len(known), options.first):
        known.append(trial(number))
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in known)
        options.table.write_text(f'{{"trials": [\n{lines}\n]}}\n', encoding="utf-8")
        last = known[-1]
        print(f"{number:4} {last['correct'][-1]:4} {last['short']} {last['seconds']}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
