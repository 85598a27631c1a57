"""Large-batch methods against plain scaling, each with the same number of trials for its rate.

    OMP_NUM_THREADS=1 .venv/bin/python scripts/benchmarks/methods.py --json F [--picture F]

Seven methods on three settings: digits at 16 times the reference batch, and a generated set of 20,480 noisy images of
32x32, a fifth of their labels wrong, at 16 and 64 times. All share epochs, model, order of the samples, augmentation,
norm span, momentum, weight decay and the cosine; a method sets only how batch and rate change, and the optimizer.

Each method has one number, its rate. It is tuned on one seed, with as many trials for each method: a grid of half
decades around the method's default at that batch, then a quarter of a decade to either side of its best; the best by
evaluation accuracy (then by loss) is run on other seeds, and only these are reported. A run that diverges counts as
chance, and the table names it. Two methods more, `lars-trust` and `lamb-up`, run only if `--methods` names them.

Every finished run is in the JSON at once, and is not done again: stop the script and start it again as you like, add
`--methods` and `--settings` one after the other. `--table-only` trains nothing. One process, no MPI ranks.
"""

from __future__ import annotations

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
from unittest import mock

from timing import parser_of

RECIPE = "digits/baseline"
TUNING_SEED = 100
STEP = 10**0.5  # between neighbours of the grid
TRIALS = 5
MICRO_BATCH_SIZE = 256  # affects only time and rounding


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
        title: in table and pictures.
        what: in a sentence.
        overrides: of the recipe, by setting.
        default: setting -> value of `number` without tuning.
        number: the key that is tuned.
        added: whether it was added after the others' results were known; such a method is run only if it is named.
    """

    title: str
    what: str
    overrides: Callable[[Setting], tuple[str, ...]]
    default: Callable[[Setting], float] = lambda setting: 0.05
    number: str = "learning_rate.reference"
    added: bool = False


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


def _lars_rate(setting: Setting) -> float:
    return 7.4 * (setting.batch / 1632) ** 0.30  # MLPerf's smallest point; B^0.30 fits its points


def _lamb_rate(setting: Setting) -> float:
    return 0.04 * (setting.batch / 32768) ** 0.5  # You et al. 2019 at 32,768, square root


METHODS = {
    "plain": Method(
        title="plain scaling",
        overrides=lambda setting: (),
        what="rate times B / per from the first update on, momentum SGD",
    ),
    "warmup": Method(
        title="gradual warmup",
        overrides=lambda setting: (_warmup(setting, "reference"),),
        what="plain scaling, reached from the reference rate over a quarter of the run (Goyal et al. 2017)",
    ),
    "ramp": Method(
        title="batch ramp",
        overrides=lambda setting: (_ramp(setting),),
        what="a quarter of the batch for a quarter of the run, then all of it, the rate with it: more updates",
    ),
    "adascale": Method(
        title="AdaScale",
        overrides=lambda setting: ("learning_rate.rule=none", f"optimizer={{kind: AdaScale, momentum: 0.9, {DECAY}}}"),
        what="the unscaled rate times the gain that the gradients of the norm groups give (Johnson et al. 2020)",
    ),
    "rmsprop": Method(
        title="RMSprop warm-up",
        overrides=lambda setting: (_rmsprop(setting),),
        what="RMSprop that goes over to plain scaling by a quarter of the run (Akiba et al. 2017)",
    ),
    "lars": Method(
        title="LARS",
        default=_lars_rate,
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lars, trust_coefficient: 0.001, weight_decay: 1e-4}",
        ),
        what="LARS with trust coefficient 0.001 and a warmup from 0 over a quarter of the run (You et al. 2017)",
    ),
    "lamb": Method(
        title="LAMB",
        default=_lamb_rate,
        overrides=lambda setting: (
            "learning_rate.rule=none",
            _warmup(setting, "0"),
            "optimizer={kind: Lamb, weight_decay: 1e-4}",
        ),
        what="LAMB with a warmup from 0 over a quarter of the run (You et al. 2019)",
    ),
    "lars-trust": Method(
        title="LARS by trust (added)",
        default=lambda setting: 0.001 * _lars_rate(setting) / (0.05 * setting.times),  # the same product with the rate
        overrides=lambda setting: (_warmup(setting, "0"), "optimizer={kind: Lars, weight_decay: 1e-4}"),
        what="LARS at the linearly scaled rate 0.05: tuned is the trust coefficient, which norm and bias do not see",
        number="optimizer.trust_coefficient",
        added=True,
    ),
    "lamb-up": Method(
        title="LAMB, grid up (added)",
        default=lambda setting: 10 * _lamb_rate(setting),
        overrides=lambda setting: METHODS["lamb"].overrides(setting),
        what="LAMB with its grid moved up by a decade",
        added=True,
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
        f"{METHODS[method].number}={rate:.4g}",
        "evaluation.every=1run",
        f"seed={seed}",
    )


def grid(default: float, trials: int) -> list[float]:
    """`trials` rates around the default, half a decade apart.

    >>> [round(rate, 3) for rate in grid(1.0, 5)]
    [0.1, 0.316, 1.0, 3.162, 10.0]
    """
    return [default * STEP ** (place - trials // 2) for place in range(trials)]


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


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A run of this process: its plan, the lines of its metrics, seconds of processor time, and why it failed."""

    prepared: Any
    lines: list[dict[str, Any]]
    seconds: float
    failed: str | None


def train(overrides: tuple[str, ...]) -> Trained:
    """Train as `kilobatch train` does on one rank, without a report; the images stay in memory between runs."""
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
    return Trained(prepared=prepared, lines=lines, seconds=time.process_time() - began, failed=failed)


def train_once(overrides: tuple[str, ...]) -> dict[str, Any]:
    """The figures of one run."""
    run = train(overrides)
    scores = {line["key"]: line["value"] for line in run.lines if line["key"].startswith("eval_")}
    return {
        "failed": run.failed,
        "accuracy": None if run.failed else scores["eval_accuracy"],
        "loss": None if run.failed else scores["eval_loss"],
        "updates": run.prepared.plan.timeline.num_updates,
        "seconds": round(run.seconds, 2),
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
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> None:
    """Train what is missing, then show the table."""
    parser = parser_of(__doc__)
    asked = [key for key, method in METHODS.items() if not method.added]
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=asked, metavar="M")
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS), metavar="S")
    parser.add_argument("--seeds", type=int, default=5, help="reported runs of each row, at least 2")
    parser.add_argument("--trials", type=int, default=TRIALS, help="rates of the first grid, an odd number; then two")
    parser.add_argument("--picture", type=Path, metavar="F", help="draw the differences, .png or .svg")
    parser.add_argument("--table-only", action="store_true", help="train nothing")
    options = parser.parse_args()
    results = Results(options.json)
    for name in () if options.table_only else options.settings:
        methods = [m for m in options.methods if SETTINGS[name].times > 1 or m == "plain"]
        for method in methods:
            how = {"seeds": options.seeds, "trials": options.trials, "train": train_once}
            compare(results, SETTINGS[name], method, **how)
    import methods_report

    rows = methods_report.rows_of(results.runs)
    print(methods_report.markdown_of(rows))
    if options.picture and rows:
        from recipes.reports.plots import save_figure

        save_figure(methods_report.picture_of(rows), options.picture)


if __name__ == "__main__":
    main()
