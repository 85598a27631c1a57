"""What a search spends on a trial beside its ranks: proposing, ten reports, telling and showing, at 1,000 trials.

.venv/bin/python scripts/benchmarks/search.py --storages sqlite journal --json F

The finished trials have random values. The target is 1 % of a trial of ten seconds: 100 ms. In ten seconds the terminal
and `status.json` are made anew twice; the page is not counted, which takes at most 3 % of the time.
"""

from __future__ import annotations

import io
import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
from rich.console import Console
from timing import head, parser_of, row, write_json

from recipes.schema import Search
from recipes.search_space.open_search import open_search
from trainers.launch.vocabulary import search_vocabulary
from trainers.search.folder import opened_storage
from trainers.search.status import Display
from trainers.search.study import SECONDS, begun, best_trials, distributions, new_study, next_trial

REPORTS, SHOWS = 10, 2


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--storages", nargs="+", default=["sqlite"], choices=("sqlite", "journal"))
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    opened = open_search("digits", vocabulary=search_vocabulary())
    search = opened.search
    print(head(("storage", "ms by the clock", "least", "most", "ms of processor time")))
    figures = {}
    for where in options.storages:
        with tempfile.TemporaryDirectory() as name, opened_storage(where, Path(name)) as storage:
            study = new_study(search, storage=storage)
            study.add_trials(finished(search, options.trials))
            display = Display(opened, study, Path(name), Console(file=io.StringIO()), groups=4)
            display.show()  # the page too, whose share of the time is limited
            wall, cpu = zip(*(one_trial(study, search, display) for _ in range(options.rounds)), strict=True)
        figures[where] = {"wall_ms": wall, "cpu_ms": cpu}
        shown = (statistics.median(wall), min(wall), max(wall), statistics.median(cpu))
        print(row([where, *(f"{value:.1f}" for value in shown)]), flush=True)
    write_json(options.json, figures)


def finished(search: Search, count: int) -> list[optuna.trial.FrozenTrial]:
    """Complete trials with random values in the search's space."""
    of_path, random_ = distributions(search), random.Random(0)
    trials = []
    for _ in range(count):
        params = {path: drawn(search.space[path], random_) for path in of_path}
        reports = {number: random_.random() for number in range(1, REPORTS + 1)}
        trial = optuna.trial.create_trial(
            value=reports[REPORTS], params=params, distributions=of_path, intermediate_values=reports
        )
        trials.append(trial)
    return trials


def drawn(range_: Any, random_: random.Random) -> Any:
    """A random value of a range."""
    if hasattr(range_, "choices"):
        return random_.choice(range_.choices)
    return range_.nearest(range_.low * (range_.high / range_.low) ** random_.random())


def one_trial(study: Any, search: Search, display: Display) -> tuple[float, float]:
    """Milliseconds by the clock, and of processor time, of all that the supervisor asks of the study for a trial."""
    began, cpu = time.perf_counter(), time.process_time()
    begun(study)
    trial = next_trial(study, search)
    for number in range(1, REPORTS + 1):
        trial.report(0.5 + number / 100, number)
    for _ in range(SHOWS):
        display._shown = -math.inf  # due at once
        display.show()
    trial.set_user_attr(SECONDS, 10.0)
    study.tell(trial, 0.6)
    display.ended(trial.number)
    best_trials(study)
    return 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)


if __name__ == "__main__":
    main()
