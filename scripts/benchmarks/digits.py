"""Accuracy of the digits recipes over seeds: up to which batch linear scaling and warmup keep it, and without them.

    .venv/bin/python scripts/bench_digits.py --seeds 3 [--json F]

Trains every row with the command line on two ranks, in a temporary folder, and prints a table in Markdown. Accuracy is
the last evaluation of each run; `+-` is the standard deviation over the seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROWS = [
    ("digits/baseline", ()),
    ("digits/batch_256", ()),
    ("digits/large_batch", ()),
    ("digits/naive", ()),
    ("digits/batch_1024", ()),
    ("digits/large_batch", ("batch.global=2048",)),
]


def accuracy(recipe: str, overrides: tuple[str, ...], seed: int, folder: Path) -> float:
    """Train once and return the last accuracy."""
    command = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, "-n", "2", "--out", str(folder)]
    for override in (*overrides, f"seed={seed}", "evaluation.every=1run"):
        command += ["--set", override]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["value"] for line in lines if line["key"] == "eval_accuracy"][-1]


def main() -> None:
    """Measure all rows and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    results = []
    print("| command | accuracy | runs |\n|---|---|---|")
    for recipe, overrides in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            values = [accuracy(recipe, overrides, seed, Path(folder, str(seed))) for seed in range(options.seeds)]
        spread = f" +- {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
        words = " ".join(["kilobatch train", recipe, "-n 2", *(f"--set {o}" for o in overrides)])
        each = ", ".join(f"{100 * value:.2f}" for value in values)
        print(f"| `{words}` | {100 * statistics.mean(values):.2f}{spread} % ({each}) | {len(values)} |", flush=True)
        results.append({"recipe": recipe, "overrides": overrides, "accuracies": values})
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
