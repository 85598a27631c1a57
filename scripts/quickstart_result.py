"""What the quickstart's runs reached, beside the recorded baseline of batch 32."""

import sys
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from recipes.reading.open import open_recipe
from recipes.reports.record import open_run
from recipes.reports.wording import duration, percent
from trainers.launch.vocabulary import vocabulary

BASELINE = "digits/baseline"


def result(folders: list[Path]) -> Table:
    """The results of the runs in these folders, and the measured result in the baseline recipe's `claims`."""
    table = Table("run", "global batch", "accuracy", Column("measured", overflow="fold"))
    for run in map(open_run, folders):
        batch = run.plan["segments"][-1]["global_batch_size"]
        table.add_row(run.name, str(batch), percent(run.final_accuracy), f"now, in {duration(run.seconds)}")
    recipe = open_recipe(BASELINE, vocabulary=vocabulary()).recipe
    for claim in recipe.claims:
        if claim.kind == "accuracy" and claim.status == "reproduced":
            accuracy = percent(claim.value) + ("" if claim.deviation is None else f" +- {percent(claim.deviation)}")
            measured = f"{claim.source} ({claim.runs} runs)"
            table.add_row(recipe.name, str(recipe.batch.global_.sizes[-1]), accuracy, escape(measured))
    return table


if __name__ == "__main__":
    runs = [Path(folder) for folder in sys.argv[1:]]
    console = Console()
    console.print(result(runs))
    for folder in runs:
        console.print(f"report: {folder.resolve() / 'report.html'}", soft_wrap=True)
