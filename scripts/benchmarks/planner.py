"""Milliseconds of planning: a plan of 100,000 devices with its forecast, all numbers of devices, and the whole command.

.venv/bin/python scripts/benchmarks/planner.py --json F
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from timing import head, parser_of, row, write_json

from recipes import open_cluster, open_recipe
from recipes.planning.forecast import forecast
from recipes.planning.planner import plan
from recipes.planning.scan import scan
from trainers.launch.vocabulary import vocabulary

DEVICES = 100_000


def milliseconds(call: Callable[[], object], rounds: int) -> list[float]:
    call()  # tables that are made once
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(1000 * (time.perf_counter() - began))
    return times


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    words = vocabulary()
    opened = open_recipe("akiba2017", vocabulary=words, overrides=("batch.global=131072",))
    mn1 = open_cluster("mn1", vocabulary=words)
    large = replace(mn1, nodes=DEVICES // mn1.workers_per_node)
    case = {"recipe": opened.recipe, "dataset": opened.dataset, "cluster": large, "workers": DEVICES}
    command = [sys.executable, "-m", "kilobatch", "plan", "akiba2017", "--cluster", "mn1"]
    calls = {
        f"a plan of {DEVICES:,} devices and its forecast": lambda: forecast(plan(**case)),
        f"all numbers of devices from 1 to {DEVICES:,}": lambda: scan(plan(**case)),
        "the command `kilobatch plan`": lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),
        "the command with --target 15min": lambda: subprocess.run(
            [*command, "--target", "15min"], check=True, stdout=subprocess.DEVNULL
        ),
    }
    print(head(("", "median ms", "least", "most")))
    figures = {}
    for name, call in calls.items():
        figures[name] = times = milliseconds(call, options.rounds)
        print(
            row([name, *(f"{value:.1f}" for value in (statistics.median(times), min(times), max(times)))]), flush=True
        )
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
