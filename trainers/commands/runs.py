"""`kilobatch evaluate` and `kilobatch report`: what is done with runs that were trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, Data, Json

DeviceToScore = Annotated[str | None, typer.Option(metavar="D", help="cpu, gpu, or auto; left out, the CPU.")]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    checkpoint: Annotated[str, typer.Option(help="newest, best, or a name such as update-000060.")] = "newest",
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


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs, or packs of runs.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html", help="RUN/report.html if left out.")] = None,
) -> None:
    """Draw a page on a run, or on several beside each other. It is HTML and loads nothing from elsewhere."""
    from recipes.errors import InputRefused
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    folders = [folder for name in runs for folder in _folders(name)]
    target = out or (Path(runs[0], "report.html") if folders == [Path(runs[0])] else Path("report.html"))
    opened = [open_run(folder) for folder in folders]
    try:
        write_page(opened, target)
    except OSError as error:
        raise InputRefused(f"{target} cannot be written: {error.strerror}; give another -o") from error
    print(f"wrote {target}")


def _folders(name: str) -> list[Path]:
    """The folder of a run, or those of all runs in a pack."""
    from recipes.errors import InputRefused
    from recipes.reading.registry import path_of_pack

    path = path_of_pack(name)
    if path == name:
        return [Path(name)]
    folders = sorted(Path(path).parent.glob("runs/*"), key=lambda folder: int(folder.name))
    if not folders:
        raise InputRefused(f"{name} is the pack of a recipe, and has no runs; see: kilobatch recipes card {name}")
    return folders
