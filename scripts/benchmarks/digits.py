"""Accuracy of the digits recipes over seeds: up to which batch linear scaling and warmup keep it, and without them.

    .venv/bin/python scripts/benchmarks/digits.py --seeds 10 [--json F]
    .venv/bin/python scripts/benchmarks/digits.py --seeds 10 --rows 0 2 --fast --ranks 3

Trains every row with the command line on two ranks, in a temporary folder, and prints a table in Markdown. Accuracy is
the last evaluation of each run; `+-` is the standard deviation over the seeds. With `--fast`, each number of ranks
rounds otherwise and gives another sample of the same training.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import head, parser_of, row, write_json

ROWS = [
    ("digits/baseline", ()),
    ("digits/batch_256", ()),
    ("digits/large_batch", ()),
    ("digits/naive", ()),
    ("digits/batch_1024", ()),
]


def accuracy(recipe: str, overrides: tuple[str, ...], seed: int, folder: Path, how: list[str]) -> float:
    """Train once, with the options `how`, and return the last accuracy."""
    command = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, *how, "--no-report", "--out", str(folder)]
    for setting in (*overrides, f"seed={seed}", "evaluation.every=1run"):
        command += ["--set", setting]
    subprocess.run(command, check=True, capture_output=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["value"] for line in lines if line["key"] == "eval_accuracy"][-1]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", type=int, default=[*range(len(ROWS))], help="which of them, from 0 on")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--fast", action="store_true", help="train with --fast")
    options = parser.parse_args()
    results = []
    print(head(["command", "accuracy", "runs"]))
    how = ["-n", str(options.ranks), *(["--fast"] if options.fast else [])]
    for recipe, overrides in (ROWS[number] for number in options.rows):
        with tempfile.TemporaryDirectory() as folder:
            folders = [Path(folder, str(seed)) for seed in range(options.seeds)]
            values = [accuracy(recipe, overrides, seed, out, how) for seed, out in enumerate(folders)]
        spread = f" +- {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
        words = " ".join(["kilobatch train", recipe, *how, *(f"--set {o}" for o in overrides)])
        each = ", ".join(f"{100 * value:.2f}" for value in values)
        mean = f"{100 * statistics.mean(values):.2f}"
        print(row([f"`{words}`", f"{mean}{spread} % ({each})", len(values)]), flush=True)
        results.append({"recipe": recipe, "overrides": overrides, "accuracies": values})
    write_json(options.json, results)


if __name__ == "__main__":
    main()
