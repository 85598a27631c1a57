"""Accuracy of the digits recipes over seeds: up to which batch linear scaling and warmup keep it, and without them.

    .venv/bin/python scripts/benchmarks/digits.py --seeds 3 [--json F]
    .venv/bin/python scripts/benchmarks/digits.py --picture docs/pictures/digits.svg

Trains every row with the command line on two ranks, in a temporary folder, and prints a table in Markdown. Accuracy is
the last evaluation of each run; `+-` is the standard deviation over the seeds. `--picture` draws three
rows of one seed, with an evaluation every epoch, instead of the table.
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
    ("digits/large_batch", ("batch.global=2048",)),
]


PICTURED = {
    "digits/baseline": "batch 32",
    "digits/large_batch": "batch 512, rate x 16 and warmup",
    "digits/naive": "batch 512, nothing else changed",
}


def train(recipe: str, folder: Path, *settings: str) -> None:
    """Train a recipe on two ranks."""
    command = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, "-n", "2", "--out", str(folder)]
    for setting in settings:
        command += ["--set", setting]
    subprocess.run(command, check=True, capture_output=True)


def accuracy(recipe: str, overrides: tuple[str, ...], seed: int, folder: Path) -> float:
    """Train once and return the last accuracy."""
    train(recipe, folder, *overrides, f"seed={seed}", "evaluation.every=1run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["value"] for line in lines if line["key"] == "eval_accuracy"][-1]


def draw(file: Path) -> None:
    """Draw the accuracy of the `PICTURED` recipes by epoch into an SVG file."""
    from recipes.reports.plots.figure import epoch_axis, stacked, svg_text
    from recipes.reports.record import open_run
    from recipes.reports.style import SERIES

    with tempfile.TemporaryDirectory() as folder:
        for number, recipe in enumerate(PICTURED):
            train(recipe, Path(folder, str(number)), "evaluation.every=1ep")
        runs = [open_run(Path(folder, str(number))) for number in range(len(PICTURED))]
    with stacked([2.8], width=7.0) as (figure, (axes,)):
        for run, label, colour in zip(runs, PICTURED.values(), SERIES, strict=False):
            axes.plot(run.evaluations.epoch, 100 * run.evaluations.accuracy, color=colour, marker="o", label=label)
        axes.set_title("top-1 accuracy on digits (%)")
        axes.set_ylim(0, 101)
        axes.legend(loc="lower right")
        epoch_axis(axes, runs)
    file.write_text(svg_text(figure), encoding="utf-8")


def main() -> None:
    """Measure all rows and print them."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=len(ROWS), help="so many of them, from the first")
    parser.add_argument("--picture", type=Path, metavar="F.svg", help="draw three rows of one seed, and end")
    options = parser.parse_args()
    if options.picture:
        draw(options.picture)
        return
    results = []
    print(head(["command", "accuracy", "runs"]))
    for recipe, overrides in ROWS[: options.rows]:
        with tempfile.TemporaryDirectory() as folder:
            values = [accuracy(recipe, overrides, seed, Path(folder, str(seed))) for seed in range(options.seeds)]
        spread = f" +- {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
        words = " ".join(["kilobatch train", recipe, "-n 2", *(f"--set {o}" for o in overrides)])
        each = ", ".join(f"{100 * value:.2f}" for value in values)
        mean = f"{100 * statistics.mean(values):.2f}"
        print(row([f"`{words}`", f"{mean}{spread} % ({each})", len(values)]), flush=True)
        results.append({"recipe": recipe, "overrides": overrides, "accuracies": values})
    write_json(options.json, results)


if __name__ == "__main__":
    main()
