"""What coordination costs by the number of ranks: processor time of an update without gradients, and start-up.

    .venv/bin/python scripts/benchmarks/coordination.py --ranks 1 2 4 8 16 32

Each rank trains one sample of digits by a tiny network through the real updater, without exchanging gradients (the
Dummy communicator). What grows with the ranks are the small collective calls of an update, such as flags, sums of
losses and statistics of norm groups. Ranks share the cores, so processor time of a rank counts, not the clock. Start-up
is the clock of `kilobatch train digits/batch_1024 --stop-after 1up`. The last line fits a + b log2(P) to several ranks.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import slow_network
from timing import as_rank, head, on_ranks, parser_of, row, write_json

from trainers.runs.mpi_ranks import launched_ranks


def measure(options: argparse.Namespace, world: Any) -> dict[str, Any]:
    """Processor seconds of an update on every rank; all of them call this together."""
    slow_network.MODEL = "{kind: SmallCNN, width: 2}"
    trained = slow_network.Trained(world, samples=1, way=slow_network.COMPUTE)
    trained.seconds(5)  # not counted
    times = []
    for _ in range(options.rounds):
        world.Barrier()
        began = time.process_time()
        trained.seconds(options.updates)
        times.append((time.process_time() - began) / (options.updates + 1))
    trained.close()
    return {"ranks": world.size, "seconds": world.gather(statistics.median(times))}


def start_seconds(ranks: int) -> float:
    """From the command to its end, of a run of one update."""
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, "-m", "kilobatch", "train", "digits/batch_1024", "-n", str(ranks), "-q", "--no-report"]
        began = time.perf_counter()
        subprocess.run(
            [*words, "--stop-after", "1up", "--out", str(Path(folder) / "run")], check=True, stdout=subprocess.DEVNULL
        )
        return time.perf_counter() - began


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=20)
    options = parser.parse_args()
    if launched_ranks() is not None:
        return as_rank(functools.partial(measure, options), options.json, threads=1)
    print(head(("ranks", "ms an update of processor time", "more than one rank", "start-up s")), flush=True)
    figures, words = [], ["--rounds", options.rounds, "--updates", options.updates]
    for ranks in options.ranks:
        measured = on_ranks(__file__, ranks, words)
        one = 1000 * statistics.median(measured["seconds"])
        figures.append({"ranks": ranks, "update_ms": one, "start_seconds": start_seconds(ranks)})
        more = one - figures[0]["update_ms"]
        print(row([ranks, f"{one:.2f}", f"{more:.2f}", f"{figures[-1]['start_seconds']:.1f}"]), flush=True)
    several = [each for each in figures if each["ranks"] > 1]
    if len(several) > 1:
        doublings = np.log2([each["ranks"] for each in several])
        more = np.array([each["update_ms"] for each in several]) - figures[0]["update_ms"]
        slope, base = np.polyfit(doublings, more, 1)
        print(f"\nan update: {base:.2f} ms + {slope:.2f} ms a doubling of the ranks")
    write_json(options.json, figures)
    return None


if __name__ == "__main__":
    main()
