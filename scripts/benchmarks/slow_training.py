"""Bytes, seconds and accuracy of whole trainings by how gradients are exchanged, on slow links. Links need root.

    .venv/bin/python scripts/benchmarks/slow_training.py --megabits 100
    .venv/bin/python scripts/benchmarks/slow_training.py --seeds 0 1 2 3 4 --json F

Trains a small convolutional network on digits by `kilobatch train`, the same number of updates in every way. With
`--megabits` each rank is a host of its own behind a link that the kernel throttles (see `slow_network.py`), and the
table has seconds an update and the bytes that the first link has counted. Without, the ranks share this machine, and
only accuracies are of use: the mathematics does not depend on the link. Gradients go around a ring, by sockets between
hosts.

    plain       float32, in buckets beside backward
    float16     the same with float16 on the wire
    double      float16, one update late
    power-R     PowerSGD of rank R, factors in float32
    local-H     post-local SGD: weights averaged after every update until the middle of the run, then after H updates
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slow_network import ONE_THREAD, NetworkRefused, SlowNetwork
from timing import head, parser_of, row, write_json

from trainers.runs.mpi_ranks import find_mpiexec

EPOCHS = 20
RECIPE = ("digits/baseline", f"epochs={EPOCHS}", "evaluation.every=1run")
_LOCAL = "updater.local_steps={{every: {}, from: 0.5run, replicas: RANKS}}"
WAYS: Mapping[str, Sequence[str]] = {
    "plain": (),
    "float16": ("cluster.exchange.wire=float16",),
    "double": ("cluster.exchange.wire=float16", "updater.double_buffering=true"),
    **{f"power-{rank}": (f"updater.power_sgd_rank={rank}",) for rank in (1, 2, 4)},
    **{f"local-{every}": (_LOCAL.format(every),) for every in (4, 16)},
}


def command_of(way: str, *, ranks: int, seed: int, batch: int, width: int, sockets: bool, out: Path) -> list[str]:
    """The `kilobatch train` of one rank."""
    recipe, *settings = RECIPE
    settings += [f"model={{kind: SmallCNN, width: {width}}}", f"seed={seed}"]
    settings += [f"batch={{global: {batch}, norm_span: 32}}"]
    settings += [f"cluster.exchange.communicator={{kind: Ring, sockets: {str(sockets).lower()}}}"]
    settings += [setting.replace("RANKS", str(ranks)) for setting in WAYS[way]]
    words = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, "--fast", "--no-report", "-q", "--out", str(out)]
    words += ["--checkpoint-every", "1run"]  # a checkpoint of local steps crosses the links
    return [*words, *(word for setting in settings for word in ("--set", setting))]


def figures_of(folder: Path) -> dict[str, Any]:
    """Accuracy, and of updates after the first ten the seconds: of all, and of those in the second half of the run."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    updates = [line for line in lines if line["key"] == "train_loss"]
    halves: tuple[list[float], list[float]] = ([], [])
    for update in updates[10:]:
        halves[update["epoch"] >= EPOCHS / 2].append(update["update_seconds"])
    exchange = next(line for line in lines if line["key"] == "gradient_exchange")
    return {
        "updates": len(updates),
        "accuracy": next(line["value"] for line in reversed(lines) if line["key"] == "eval_accuracy"),
        "first_half_seconds": statistics.fmean(halves[0]),
        "second_half_seconds": statistics.fmean(halves[1]),
        "gradient_bytes": exchange["gradient_bytes"],
        "sent_bytes": exchange["sent_bytes"],
    }


def on_links(way: str, *, ranks: int, megabits: int, **how: Any) -> dict[str, Any]:
    """Train on hosts behind throttled links."""
    with SlowNetwork(hosts=ranks, megabits=megabits) as network, tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        before = _sent(network)
        network.run(command_of(way, ranks=ranks, sockets=True, out=out, **how), environment=ONE_THREAD)
        return {**figures_of(out), "link_bytes": _sent(network) - before}


def here(way: str, *, ranks: int, **how: Any) -> dict[str, Any]:
    """Train on this machine's cores."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        words = command_of(way, ranks=ranks, sockets=False, out=out, **how)
        environment = {**os.environ, **ONE_THREAD}
        command = [find_mpiexec(), "-n", str(ranks), *words]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
        return figures_of(out)


def _sent(network: SlowNetwork) -> int:
    """Bytes that the first host has sent over its link."""
    words = ["ip", "netns", "exec", network.names[0], "ip", "-s", "-j", "link", "show", "eth0"]
    shown = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    return int(shown[0]["stats64"]["tx"]["bytes"])


def main() -> None:
    """Train every way with every seed and print a line for each way."""
    parser = parser_of(__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabits", type=int, default=None, help="a second, of each link; left out: no links")
    parser.add_argument("--batch", type=int, default=128, help="samples an update; the rate follows it")
    parser.add_argument("--width", type=int, default=48, help="of the network")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS], default=[*WAYS])
    options = parser.parse_args()
    figures = ("ms an update, first half", "second half", "kB sent, by formula", "kB on the link")
    print(head(("way", "updates", "accuracy", *figures)), flush=True)
    results: dict[str, list[dict[str, Any]]] = {}
    for way in options.ways:
        how = {"ranks": options.ranks, "batch": options.batch, "width": options.width}
        for seed in options.seeds:
            try:
                if options.megabits is None:
                    one = here(way, seed=seed, **how)
                else:
                    one = on_links(way, seed=seed, megabits=options.megabits, **how)
            except NetworkRefused as error:
                print(f"slow_training: skipped: {error}")
                return
            results.setdefault(way, []).append(one)
            write_json(options.json, results)
        runs = results[way]
        accuracies = [100 * run["accuracy"] for run in runs]
        spread = f" ± {statistics.stdev(accuracies):.2f}" if len(runs) > 1 else ""
        halves = [1000 * statistics.fmean(run[f"{half}_half_seconds"] for run in runs) for half in ("first", "second")]
        link = runs[0].get("link_bytes")
        cells = [way, runs[0]["updates"], f"{statistics.fmean(accuracies):.2f}{spread}"]
        cells += [*(f"{half:.0f}" for half in halves), f"{runs[0]['sent_bytes'] / 1e3:.1f}"]
        cells += ["" if link is None else f"{link / 1e3 / runs[0]['updates']:.1f}"]
        print(row(cells), flush=True)


if __name__ == "__main__":
    main()
