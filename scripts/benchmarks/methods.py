"""Large-batch methods against plain scaling, each with the same number of trials for its rate.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/benchmarks/methods.py --json F

Seven methods on three settings: digits at 16 times the reference batch, and a generated set of 20,480 noisy images of
32x32, a fifth of their labels wrong, at 16 and 64 times. All share epochs, model, order of the samples, augmentation,
norm span, momentum, weight decay and the cosine; a method sets only how batch and rate change, and the optimizer.

Each method has one number, its rate. It is tuned on one seed, with as many trials for each method: a grid of half
decades around the method's default at that batch, then a quarter of a decade to either side of its best; the best by
evaluation accuracy (then by loss) is run on other seeds, and only these are reported. A run that diverges counts as
chance, and the table names it. `better` and `worse` than plain scaling stand only where Welch's interval excludes 0.

Every finished run is in the JSON at once, and is not done again: stop the script and start it again as you like, add
`--methods` and `--settings` one after the other. One process, no MPI ranks.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

from timing import head, parser_of
from timing import row as table_line

RECIPE = "digits/baseline"
TUNING_SEED = 100
STEP = 10**0.5  # between neighbours of the grid
MICRO_BATCH_SIZE = 256  # affects only time and rounding
CONFIDENCE = 0.95
HEADS = ("setting", "method", "rate", "updates", "accuracy %", "minus plain, points", "verdict")
Runs = Sequence[Mapping[str, Any]]  # of the JSON


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A task: data, model and batch size.

    Args:
        name: in table and JSON.
        overrides: of the recipe: data, model, epochs, augmentation.
        epochs: of every run.
        per: the reference batch, which is the norm span too.
        times: the global batch over it.
        chance: accuracy of guessing.
    """

    name: str
    overrides: tuple[str, ...]
    epochs: float
    per: int
    times: int
    chance: float = 0.1

    @property
    def batch(self) -> int:
        """The global batch, the largest of a ramp."""
        return self.per * self.times

    @property
    def warmup_epochs(self) -> float:
        """A quarter of the run, for every method that has a warmup or a ramp."""
        return self.epochs / 4

    @property
    def reference(self) -> str:
        """Name of the setting with the reference batch on the same data."""
        return self.name.rpartition("-")[0] + "-1x"


DIGITS = ("model={kind: SmallCNN, width: 16}",)
NOISY = (
    "dataset=synthetic_noisy",
    "model={kind: SmallCNN, width: 12, first_stride: 4}",
    "augmentation.train=[{kind: Normalize, with: synthetic_noisy}]",
    "augmentation.eval=[{kind: Normalize, with: synthetic_noisy}]",
)
SETTINGS = {
    setting.name: setting
    for setting in (
        *(Setting(name=f"digits-{k}x", overrides=DIGITS, epochs=10, per=32, times=k) for k in (1, 16)),
        *(Setting(name=f"noisy-{k}x", overrides=NOISY, epochs=2, per=16, times=k) for k in (1, 16, 64)),
    )
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method: how batch and rate change, and which optimizer is used.

    Args:
        title: in the table.
        overrides: of the recipe, by setting.
        default: setting -> rate without tuning.
    """

    title: str
    overrides: Callable[[Setting], tuple[str, ...]]
    default: Callable[[Setting], float] = lambda setting: 0.05


DECAY = "weight_decay: 1e-4, no_decay: [norm]"


def _warmup(setting: Setting, start: str) -> str:
    epochs = setting.warmup_epochs
    return f"learning_rate.warmup={{kind: GradualWarmup, epochs: {epochs:g}, start: {start}, joins: multiply}}"


def _ramp(setting: Setting) -> str:
    first, boundary = setting.batch // 4, setting.warmup_epochs
    steps = f"[{{from: 0, size: {first}}}, {{from: {boundary:g}, size: {setting.batch}}}]"
    return f"batch={{global: {steps}, norm_span: {setting.per}}}"


def _rmsprop(setting: Setting) -> str:
    ends = setting.warmup_epochs  # at beta_center + beta_period / 2; 10 and 5 of 90 epochs in Akiba et al. 2017
    return f"optimizer={{kind: RmspropWarmup, beta_center: {0.8 * ends:g}, beta_period: {0.4 * ends:g}, {DECAY}}}"


METHODS = {
    # Rate times B / per from the first update on, momentum SGD.
    "plain": Method(title="plain scaling", overrides=lambda setting: ()),
    # Plain scaling, reached from the reference rate over a quarter of the run (Goyal et al. 2017).
    "warmup": Method(title="gradual warmup", overrides=lambda setting: (_warmup(setting, "reference"),)),
    # A quarter of the batch for a quarter of the run, then all of it, the rate with it: more updates.
    "ramp": Method(title="batch ramp", overrides=lambda setting: (_ramp(setting),)),
    # The unscaled rate times the gain that the gradients of the norm groups give (Johnson et al. 2020).
    "adascale": Method(
        title="AdaScale",
        overrides=lambda setting: ("learning_rate.rule=none", f"optimizer={{kind: AdaScale, momentum: 0.9, {DECAY}}}"),
    ),
    # RMSprop that goes over to plain scaling by a quarter of the run (Akiba et al. 2017).
    "rmsprop": Method(title="RMSprop warm-up", overrides=lambda setting: (_rmsprop(setting),)),
    # Trust coefficient 0.001, a warmup from 0 over a quarter of the run (You et al. 2017).
    "lars": Method(
        title="LARS",
        default=lambda setting: 7.4 * (setting.batch / 1632) ** 0.30,  # MLPerf's smallest point; B^0.30 fits its points
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lars, trust_coefficient: 0.001, weight_decay: 1e-4}",
        ),
    ),
    # A warmup from 0 over a quarter of the run (You et al. 2019).
    "lamb": Method(
        title="LAMB",
        default=lambda setting: 0.04 * (setting.batch / 32768) ** 0.5,  # You et al. 2019 at 32,768, square root
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lamb, weight_decay: 1e-4}",
        ),
    ),
}


def overrides_of(setting: Setting, method: str, *, rate: float, seed: int) -> tuple[str, ...]:
    """The overrides of `kilobatch train digits/baseline --set ...` for one run."""
    return (
        *setting.overrides,
        f"epochs={setting.epochs:g}",
        f"batch={{global: {setting.batch}, norm_span: {setting.per}}}",
        f"learning_rate.per={setting.per}",
        *METHODS[method].overrides(setting),
        f"learning_rate.reference={rate:.4g}",
        "evaluation.every=1run",
        f"seed={seed}",
    )


def grid(default: float, trials: int) -> list[float]:
    """`trials` rates around the default, half a decade apart.

    >>> [round(rate, 3) for rate in grid(1.0, 5)]
    [0.1, 0.316, 1.0, 3.162, 10.0]
    """
    return [default * STEP ** (number - trials // 2) for number in range(trials)]


def best_trial(trials: list[dict[str, Any]]) -> dict[str, Any]:
    """The run of the highest accuracy, then of the lowest loss; failed ones last, the lowest rate first."""
    worst = (-1.0, 0.0)
    return max(
        sorted(trials, key=lambda run: run["rate"]),
        key=lambda run: worst if run["failed"] else (run["accuracy"], -run["loss"]),
    )


class Results:
    """The runs done so far, in a JSON file that is complete after each run.

    Args:
        path: of the file; None keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        known = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {"runs": []}
        self.runs: list[dict[str, Any]] = known["runs"]

    def find(self, overrides: tuple[str, ...]) -> dict[str, Any] | None:
        """The run of exactly these overrides, or None."""
        return next((run for run in self.runs if tuple(run["overrides"]) == overrides), None)

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

    def trained(rate: float, seed: int) -> dict[str, Any]:
        overrides = overrides_of(setting, method, rate=rate, seed=seed)
        if (known := results.find(overrides)) is not None:
            return known
        run = {"setting": setting.name, "method": method, "rate": float(f"{rate:.4g}"), "seed": seed}
        run |= {"overrides": list(overrides), **train(overrides)}
        results.add({"commit": commit(), **run})
        score = run["failed"] or f"{100 * run['accuracy']:.2f} %"
        name = f"{len(results.runs):4} {setting.name:10} {method:8} rate {run['rate']:<9} seed {seed:<3}"
        print(f"{name} {score}  {run['seconds']:.1f} s", file=sys.stderr, flush=True)
        return run

    tried = [trained(rate, TUNING_SEED) for rate in grid(METHODS[method].default(setting), trials)]
    middle = best_trial(tried)["rate"]
    best = best_trial(tried + [trained(rate, TUNING_SEED) for rate in (middle / STEP**0.5, middle * STEP**0.5)])
    for seed in range(seeds):
        trained(best["rate"], seed)


def train(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The figures of one run, trained as `kilobatch train` does on one rank; the images stay in memory between runs."""
    from mpi4py import MPI

    from recipes.reports import page
    from trainers.launch.request import TrainRequest, prepare
    from trainers.runs.errors import EXIT_STOPPED, RunFailed
    from trainers.training.train import train_as_rank

    request = TrainRequest(recipe=RECIPE, overrides=overrides, micro_batch_size=MICRO_BATCH_SIZE)
    prepared = prepare(request, workers=1)
    dataset = replace(prepared.opened.dataset, reader=InMemory(reader=prepared.opened.dataset.reader))
    opened = replace(prepared.opened, dataset=dataset)
    failed, began = None, time.process_time()
    with (
        tempfile.TemporaryDirectory() as name,
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch.object(page, "write_page"),  # it takes as long as a short run
    ):
        quiet = replace(prepared, opened=opened, checkpoint_every=opened.recipe.epochs)
        try:
            if train_as_rank(quiet, request, Path(name), mpi=MPI.COMM_SELF, launched_by_us=True) == EXIT_STOPPED:
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
        return _in_memory(self.reader, root, split)

    def fingerprint(self, root: Path | None) -> str:
        """The reader's."""
        return self.reader.fingerprint(root)


@lru_cache
def _in_memory(reader: Any, root: Path | None, split: str) -> Any:
    import numpy as np

    from trainers.datasets.samples import SamplesInMemory

    samples = reader.open(root, split)
    images, labels = zip(*(samples[index] for index in range(len(samples))), strict=True)
    return SamplesInMemory(images_NHWC=np.stack(images), labels=np.array(labels))


@lru_cache
def commit() -> str:
    """The commit of the code, with `-dirty` if it has uncommitted changes."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A difference of two means and its confidence interval, fractions of 1; the bounds are NaN where none is known."""

    difference: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`better` or `worse` only where the interval excludes 0.

        >>> Interval(difference=0.01, low=-0.001, high=0.021).verdict
        'not told apart'
        """
        if self.low > 0:
            return "better"
        if self.high < 0:
            return "worse"
        return "no interval" if math.isnan(self.low) else "not told apart"

    def in_points(self) -> str:
        """In percentage points.

        >>> Interval(difference=0.012, low=-0.001, high=0.025).in_points()
        '+1.20 (-0.10 to +2.50)'
        """
        bounds = "" if math.isnan(self.low) else f" ({100 * self.low:+.2f} to {100 * self.high:+.2f})"
        return f"{100 * self.difference:+.2f}{bounds}"


def welch(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Mean of `first` minus mean of `second`, without assuming equal deviations: SciPy's Welch test.

    The bounds are NaN where a side has fewer than two values, or no side has any deviation.
    """
    from scipy import stats  # late: it takes a while, and training needs none of it

    low = high = math.nan
    if min(len(first), len(second)) > 1 and (len(set(first)) > 1 or len(set(second)) > 1):
        low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(CONFIDENCE)
    difference = statistics.mean(first) - statistics.mean(second)
    return Interval(difference=difference, low=float(low), high=float(high))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One method on one setting.

    Args:
        setting: its name.
        title: of the method.
        rate: the best of the trials.
        tried: all rates that were tried.
        updates: of a run.
        accuracies: of the reported seeds in their order, a failed run counted as chance.
        failed: how many of them failed.
        against: the difference to plain scaling on the same setting; None for plain scaling itself, or without it.
    """

    setting: str
    title: str
    rate: float
    tried: tuple[float, ...]
    updates: int
    accuracies: tuple[float, ...]
    failed: int
    against: Interval | None = None

    def cells(self) -> tuple[str, ...]:
        """In words, under `HEADS`; `better` and `worse` in bold."""
        edge = " (edge)" if self.rate in (min(self.tried), max(self.tried)) else ""  # a better rate may lie outside
        deviation = f" ± {100 * statistics.stdev(self.accuracies):.2f}" if len(self.accuracies) > 1 else ""
        accuracy = f"{100 * statistics.mean(self.accuracies):.2f}{deviation} ({len(self.accuracies)} runs)"
        failed = f", {self.failed} failed" if self.failed else ""
        verdict = self.against.verdict if self.against else ""
        bold = f"**{verdict}**" if verdict in ("better", "worse") else verdict
        interval = self.against.in_points() if self.against else ""
        rate = f"{self.rate:.3g}{edge}"
        return self.setting, self.title, rate, f"{self.updates:,}", f"{accuracy}{failed}", interval, bold


def rows_of(runs: Runs) -> list[Row]:
    """A row for every method with a reported run, by setting, the reference batch first.

    Args:
        runs: of the JSON; of a method's reported runs only those at its best rate count.
    """
    rows = []
    for setting in (setting for setting in SETTINGS.values() if setting.times > 1):
        reference = _row(runs, SETTINGS[setting.reference], "plain")
        plain, *others = (_row(runs, setting, method) for method in METHODS)
        if reference:
            reference = replace(reference, setting=setting.name, title="reference batch")
        for row in filter(None, (reference, plain, *others)):
            compared = plain is not None and row is not plain
            rows.append(replace(row, against=welch(row.accuracies, plain.accuracies)) if compared else row)
    return rows


def _row(runs: Runs, setting: Setting, method: str) -> Row | None:
    own = [run for run in runs if (run["setting"], run["method"]) == (setting.name, method)]
    trials = [run for run in own if run["seed"] == TUNING_SEED]
    if not trials:
        return None
    rate = best_trial(trials)["rate"]
    reported = [run for run in own if run["seed"] != TUNING_SEED and run["rate"] == rate]
    if not reported:
        return None
    reported.sort(key=lambda run: run["seed"])
    return Row(
        setting=setting.name,
        title=METHODS[method].title,
        rate=rate,
        tried=tuple(run["rate"] for run in trials),
        updates=reported[0]["updates"],
        accuracies=tuple(setting.chance if run["failed"] else run["accuracy"] for run in reported),
        failed=sum(bool(run["failed"]) for run in reported),
    )


def main() -> None:
    """Train what is missing, then show the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), metavar="M")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="S")
    parser.add_argument("--seeds", type=int, default=5, help="reported runs of each row, at least 2")
    parser.add_argument("--trials", type=int, default=5, help="rates of the first grid, an odd number; then two")
    options = parser.parse_args()
    results = Results(options.json)
    for setting in (SETTINGS[name] for name in options.settings):
        for method in options.methods:
            if setting.times > 1 or method == "plain":
                compare(results, setting, method, seeds=options.seeds, trials=options.trials, train=train)
    print("\n".join([head(HEADS), *(table_line(row.cells()) for row in rows_of(results.runs))]))


if __name__ == "__main__":
    main()
