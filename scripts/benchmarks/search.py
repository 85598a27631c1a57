"""The time of a search's own calls in each trial: ask, hand-out, reports with verdicts, and tell.

    python scripts/benchmarks/search.py                      # SQLite, at no and at 1,000 finished trials
    python scripts/benchmarks/search.py --storage journal --json F
    python scripts/benchmarks/search.py --storage postgresql://me@localhost/studies --trials 0 1000 --reports 20

It makes the supervisor's own calls, one trial after the other, of a search over four values with TPE and the median
pruner, after a number of finished trials with reports of their own. A trial stands for one of ten seconds: the study is
read again once on its way, beside its begin and its end. `plan` opens, checks and plans the recipe with the sampled
values, before ranks would get it. Milliseconds are medians over the measured trials: on the clock, and of this
process's processor time.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.trial import TrialState, create_trial
from rich.console import Console
from timing import parser_of, write_json

from recipes.search_space.open_search import OpenedSearch, open_search
from trainers.launch.request import Prepared, prepare
from trainers.launch.vocabulary import search_vocabulary
from trainers.runs.run_folder import METRICS
from trainers.runs.stop_request import STOP_FILE
from trainers.search.comparability import store_comparability
from trainers.search.display import Display
from trainers.search.storage import open_storage, parse_storage
from trainers.search.storage_cache import refresh
from trainers.search.study import FOLDER, SECONDS, open_study, suggested
from trainers.search.trial_leases import TrialLeases
from trainers.search.trial_recorder import TrialRecorder
from trainers.search.trial_run import Report, SearchOptions, trial_request

PARTS = ("ask", "plan", "reports", "tell")
CLOCKS = {"clock": time.perf_counter, "processor": time.process_time}
TEXT = """\
kilobatch: 1
name: bench
recipe: digits/batch_256
space:
  learning_rate.reference: {kind: Float, low: 0.005, high: 0.5, log: true}
  learning_rate.warmup.epochs: {kind: Int, low: 1, high: 5}
  loss.label_smoothing: {kind: Categorical, choices: [0.0, 0.05, 0.1]}
  optimizer.weight_decay: {kind: Float, low: 1.0e-5, high: 1.0e-3, log: true}
sampler: {kind: Tpe, startup_trials: 10}
pruner: {kind: Median, startup_trials: 4}
budget: {trials: 1000000}
"""


class Meter:
    """Seconds on the clock and of the processor, by part and trial."""

    def __init__(self) -> None:
        self.trials: list[Counter] = []  # (clock, part) -> seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Measure the code inside this context, and add it to a part of the last trial."""
        began = {clock: now() for clock, now in CLOCKS.items()}
        yield
        for clock, now in CLOCKS.items():
            self.trials[-1][clock, name] += now() - began[clock]

    def milliseconds(self) -> dict[str, dict[str, float]]:
        """Medians of the parts, of the time that a trial costs in the study's storage, and of its total."""
        sums = {part: (part,) for part in PARTS} | {"study": ("ask", "reports", "tell"), "all": PARTS}

        def median(clock: str, parts: tuple[str, ...]) -> float:
            seconds = statistics.median(sum(trial[clock, part] for part in parts) for trial in self.trials)
            return round(1000 * seconds, 2)

        return {clock: {name: median(clock, parts) for name, parts in sums.items()} for clock in CLOCKS}


def main() -> None:
    """Measure and print."""
    parser = parser_of(__doc__)
    parser.add_argument("--storage", default="sqlite")
    parser.add_argument("--trials", type=int, nargs="+", default=[0, 1000], help="finished ones, at which to measure")
    parser.add_argument("--reports", type=int, default=10)
    parser.add_argument("--measured", type=int, default=40, help="trials")
    options = parser.parse_args()
    rows = []
    for finished in options.trials:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measure(Path(folder), options, finished))
        print("{storage}, {finished} finished trials, {reports} reports a trial; ms a trial:".format(**rows[-1]))
        for name in CLOCKS:
            parts = (f"{part} {value:.1f}" for part, value in rows[-1][name].items())
            print(f"  {name:9s} {'  '.join(parts)}", flush=True)
    write_json(options.json, {"machine": platform.processor() or platform.machine(), "rows": rows})


def measure(folder: Path, options: argparse.Namespace, finished: int) -> dict[str, Any]:
    """Medians at a number of finished trials."""
    bench = Bench(folder, options)
    fill(bench.study, bench.opened, finished)
    for number in range(options.measured + 3):
        if number == 3:  # the first trials read the storage and import modules
            bench.meter = Meter()
        bench.one_trial(0.5 / (number + 1))
    return {"storage": bench.storage, "finished": finished, "reports": options.reports, **bench.meter.milliseconds()}


def fill(study: optuna.Study, opened: OpenedSearch, finished: int) -> None:
    """Fill the storage with finished trials, as a search leaves them."""
    comparable = optuna.create_study().ask()  # the user attributes that every trial has before it begins
    store_comparability(comparable, opened.base.recipe, opened.search, say=print)
    draw, memory = random.Random(0), optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for number in range(finished):
        trial = memory.ask()
        suggested(trial, opened.search)
        scores = {step: 0.5 + draw.random() / 2 for step in range(1, opened.search.reports + 1)}
        study.add_trial(
            create_trial(
                state=TrialState.COMPLETE,
                value=scores[opened.search.reports],
                params=trial.params,
                distributions=trial.distributions,
                intermediate_values=scores,
                user_attrs={FOLDER: f"trials/trial-{number:04d}", SECONDS: 60.0, **comparable.user_attrs},
            )
        )


class Bench:
    """A search whose trials get results without being trained."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        path = folder / "bench.yaml"
        path.write_text(TEXT + f"reports: {options.reports}\n")
        self.opened = open_search(path, vocabulary=search_vocabulary())
        self.search, self.folder = self.opened.search, folder
        address = parse_storage(options.storage, folder)
        self.study = open_study(self.opened, open_storage(address), name=f"bench-{time.time_ns()}")
        self.leases, self.meter = TrialLeases(self.study, folder), Meter()
        display = Display(search=self.search, folder=folder, console=Console(quiet=True), groups=1)
        self.options = SearchOptions(folder=folder, stop_file=folder / STOP_FILE, hang_seconds=600.0)
        self.recorder = TrialRecorder(self.opened, self.study, self.options, display, before_tell=self.leases.drop)
        self.storage, self.display = address.text, display

    def one_trial(self, score: float) -> None:
        """A trial as the supervisor handles it, with a score that is not the best; it is never ended early."""
        meter, reports = self.meter, self.search.reports
        meter.trials.append(Counter())
        with meter.part("ask"):
            self.leases.take_stale()
            trial = self.leases.begin(self.search.budget.trials)
            assert trial is not None
            values = suggested(trial, self.search)
            folder = self.folder / f"trials/trial-{trial.number:04d}"
            trial.set_user_attr(FOLDER, str(folder))
        with meter.part("plan"):
            request = trial_request(self.opened, trial.number, values, folder, self.options)
            prepared = prepare(request, workers=self.search.ranks_per_trial)
        with meter.part("ask"):
            store_comparability(trial, prepared.opened.recipe, self.search, say=self.display.say)
            self.display.began(trial.number, values, resumed=False)
        write_metrics(folder, prepared, reports, score)
        with meter.part("reports"):
            for number in range(1, reports + 1):
                if number == reports // 2:
                    refresh(self.study)  # as it does by itself after ten seconds
                self.leases.renew()
                self.recorder.report(trial, Report(number=number, value=score, epoch=float(number)))
                trial.should_prune()
        with meter.part("tell"):
            group = SimpleNamespace(number=0)
            job = SimpleNamespace(group=group, seconds=10.0, began_at=time.time(), folder=folder, prepared=prepared)
            self.recorder.store_time(trial, job)
            self.recorder.store_costs(trial, job)
            self.recorder.tell_complete(trial, [folder], prepared)


def write_metrics(folder: Path, prepared: Prepared, reports: int, score: float) -> None:
    """Write the metrics that a trial's ranks would have written."""
    folder.mkdir(parents=True)
    timeline, recipe = prepared.plan.timeline, prepared.opened.recipe
    lines: list[dict[str, Any]] = [{"key": "run_start", "time_ms": 0}]
    for update in range(timeline.num_updates):
        common = {"update": update + 1, "epoch": recipe.epochs * (update + 1) / timeline.num_updates, "time_ms": update}
        common["samples"] = 256 * (update + 1)
        lines.append({"key": "train_loss", "value": 1.0, **common})
        if (update + 1) % (timeline.num_updates // reports) == 0 or update + 1 == timeline.num_updates:
            lines += [{"key": f"eval_{metric}", "value": score, **common} for metric in ("accuracy", "loss")]
    (folder / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
