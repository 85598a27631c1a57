"""`kilobatch evaluate`, `export` and `report`: what is done with runs that were trained."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, Data, Json

Form = Enum("Form", {name: name for name in ("onnx", "safetensors")})
Checkpoint = Annotated[str, typer.Option(help="newest, best, or a name such as update-000060.")]
DeviceToScore = Annotated[str | None, typer.Option(metavar="D", help="cpu, gpu, or auto; left out, the CPU.")]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    checkpoint: Checkpoint = "newest",
    split: Annotated[str, typer.Option(help="run: what the run scores; test: the data set's own split.")] = "run",
    device: DeviceToScore = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a checkpoint of a run over each evaluation sample once."""
    from trainers.launch.score_run import score_run, scored_text

    scored = score_run(run, checkpoint=checkpoint, split=split, data=data, allow_code=allow_code, device=device)
    print(json.dumps(scored, indent=2) if as_json else scored_text(scored))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    form: Annotated[Form, typer.Option("--format", help="The model for ONNX runtimes, or its weights alone.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="RUN/model.onnx if left out.")] = None,
    checkpoint: Checkpoint = "newest",
    allow_code: AllowCode = False,
) -> None:
    """Write the model of a run for other programs; the weights of a ResNet by torchvision's names."""
    from recipes.errors import printable
    from trainers.launch.export_run import export_run

    file, notes = export_run(run, form=form.value, out=out, checkpoint=checkpoint, allow_code=allow_code)
    for note in notes:
        print(printable(f"kilobatch: warning: {note}"), file=sys.stderr)
    print(printable(f"wrote {file}"))


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html", help="RUN/report.html if left out.")] = None,
) -> None:
    """Draw a page on a run, or on several beside each other. It is HTML and loads nothing from elsewhere."""
    from recipes.errors import InputRefused
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    opened = [open_run(run) for run in runs]
    try:
        write_page(opened, target)
    except OSError as error:
        raise InputRefused(f"{target} cannot be written: {error.strerror}; give another -o") from error
    print(f"wrote {target}")
