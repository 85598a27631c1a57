"""`kilobatch evaluate`, `predict`, `export`, `report`, `watch` and `runs ...`: what is done with trained runs."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from recipes.errors import refuse_unreachable
from trainers.commands.options import OPTIONS_OF_GROUPS, AllowCode, Data, Json, print_json

app = typer.Typer(help="List, show and remove runs.", **OPTIONS_OF_GROUPS)

Form = Enum("Form", {name: name for name in ("onnx", "safetensors")})
Checkpoint = Annotated[str, typer.Option(help="newest, best, or a name such as update-000060.")]
DeviceToScore = Annotated[str | None, typer.Option(metavar="D", help="cpu, gpu, or auto; left out, the CPU.")]


def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    checkpoint: Checkpoint = "newest",
    split: Annotated[
        str,
        typer.Option(help="run: what the run scores; test: the data set's own split; all: every image of --data."),
    ] = "run",
    device: DeviceToScore = None,
    data: Data = None,
    predictions: Annotated[
        Path | None, typer.Option(metavar="F.csv", help="Write there what the model says of each sample.")
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KIND", help="Beside the recipe's metrics: MacroF1, '{kind: TopAccuracy, k: 3}'; repeatable."
        ),
    ] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a checkpoint over each evaluation sample once.

    --data may be other data with the run's classes: in the form of the run's own, or with --split all any folder of
    class folders, such as new photos.
    """
    from trainers.tasks.score_run import score_run, scored_text

    scored = score_run(
        run,
        checkpoint=checkpoint,
        split=split,
        data=data,
        predictions=predictions,
        metrics=metric or (),
        allow_code=allow_code,
        device=device,
    )
    print_json(scored) if as_json else print(scored_text(scored))


def predict(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Files, or folders of images.")],
    checkpoint: Checkpoint = "newest",
    device: DeviceToScore = None,
    predictions: Annotated[Path | None, typer.Option("-o", metavar="F.csv", help="Write a table there.")] = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Say which class each image is of, by a checkpoint of a run.

    Images need no labels; they get the evaluation transforms of the run's recipe.
    """
    from trainers.tasks.predict_run import predict_run, predicted_text

    predicted = predict_run(
        run, images, checkpoint=checkpoint, predictions=predictions, allow_code=allow_code, device=device
    )
    print_json(predicted) if as_json else print(predicted_text(predicted))


def export(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    form: Annotated[Form, typer.Option("--format", help="The model for ONNX runtimes, or its weights alone.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="RUN/model.onnx if left out.")] = None,
    checkpoint: Checkpoint = "newest",
    allow_code: AllowCode = False,
) -> None:
    """Write the model of a run for other programs.

    The weights of a ResNet get torchvision's names; see docs/weights.md.
    """
    from recipes.errors import printable
    from trainers.runs.errors import print_warnings
    from trainers.tasks.export_run import export_run

    file, notes, is_written = export_run(run, form=form.value, out=out, checkpoint=checkpoint, allow_code=allow_code)
    print_warnings(notes)
    print(printable(f"wrote {file}" if is_written else f"{file} was left as it is"))


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Folders of runs, or packs of runs.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html", help="RUN/report.html if left out.")] = None,
) -> None:
    """Draw a page on a run, or on several beside each other. It is HTML and loads nothing from elsewhere.

    Of runs that differ in their seeds alone, it prints the mean of what they end with, and its interval.
    """
    from recipes.errors import InputRefused, printable
    from recipes.reports.page import labels_of, write_page
    from recipes.reports.record import open_run
    from recipes.reports.seeds import seeds_text

    if out is not None and out.suffix.lower() not in (".html", ".htm"):
        raise InputRefused(f"-o {out}: a report is written as .html or .htm; give another -o")
    folders = [folder for name in runs for folder in _folders(name)]
    target = out or (Path(runs[0], "report.html") if folders == [Path(runs[0])] else Path("report.html"))
    opened = [open_run(folder) for folder in folders]
    try:
        write_page(opened, target)
    except OSError as error:
        raise InputRefused(f"{target} cannot be written: {error.strerror}; give another -o") from error
    if text := seeds_text(opened, labels_of(opened)):
        print(printable(f"{text}\n"))
    print(printable(f"wrote {target}"))


def watch(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run or a search, or one that holds such.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: a free one.")] = 0,
) -> None:
    """Serve a live page of a run or a search.

    Only browsers of this machine reach it. Ctrl-C ends it.
    """
    from recipes.errors import printable
    from recipes.reports.live import serve

    def ready(address: str) -> None:
        print(printable(f"watching {run}: {address}  (Ctrl-C ends)"), flush=True)

    serve(run, port=port, ready=ready)


@app.command("list")
def list_runs(
    folder: Annotated[Path, typer.Argument(metavar="[DIR]", help="Where runs are, also further below.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """The runs in a folder, in the order in which they began."""
    from recipes.errors import printable
    from recipes.reports.curves import points_text
    from recipes.sharing.pack_file import SUFFIX
    from trainers.commands.python_run import facts_or_damage, runs

    found = runs(folder)
    rows = [facts_or_damage(run) for run in found]
    if as_json:
        print_json([row | {"group": _group(run.folder)} for row, run in zip(rows, found, strict=True)])
    elif rows:
        print(printable(points_text([_for_people(row) for row in rows])))
    else:
        packs = "; `kilobatch report PACK` draws the runs of a pack" if [*folder.glob(f"*{SUFFIX}")] else ""
        print(printable(f"no runs in {folder}{packs}"))


def _group(folder: Path) -> str:
    """What runs share that differ in their seeds alone, by `group_id`; empty where a run's folder is damaged."""
    from recipes.errors import InputRefused
    from recipes.reports.metrics import read_metrics, rounding_wires
    from recipes.reports.record import read_environment, read_head
    from recipes.reports.seeds import group_id
    from trainers.runs.run_folder import ENVIRONMENT, METRICS, RUN

    try:
        head, environment = read_head(folder / RUN), read_environment(folder / ENVIRONMENT)
        wires = rounding_wires(read_metrics(folder / METRICS, all_updates=False))
        return group_id(head["recipe"], head["dataset"], environment, wires)
    except (InputRefused, LookupError):
        return ""


def _for_people(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run in the units in which they are read, each in one line."""
    from recipes.errors import printable_line
    from recipes.reports.wording import percent

    epoch, accuracy, size = (facts[key] for key in ("epoch", "accuracy", "bytes"))
    texts = {key: printable_line(fact) if isinstance(fact, str) else fact for key, fact in facts.items()}
    return texts | {
        "epoch": None if epoch is None else f"{epoch:.2f}",
        "accuracy": None if accuracy is None else percent(accuracy),
        "bytes": f"{size / 1e6:.1f} MB",
    }


@app.command()
@refuse_unreachable()
def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    as_json: Json = False,
) -> None:
    """What a run is and how it ended, and the files in its folder."""
    from recipes.errors import printable
    from trainers.commands.python_run import Run
    from trainers.runs.run_folder import require_run

    require_run(run)
    facts, files = Run(run).facts, sorted(path.name for path in run.iterdir())
    if as_json:
        print_json(facts | {"files": files})
    else:
        texts = _for_people(facts | {"files": ", ".join(files)})
        print(printable("\n".join(f"{key}: {value}" for key, value in texts.items())))


@app.command("rm")
@refuse_unreachable()
def remove(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove runs with their checkpoints. Only folders of runs, and none that is being trained."""
    import shutil
    from contextlib import ExitStack

    from recipes.errors import InputRefused
    from trainers.runs.run_folder import METRICS, RECIPE, RUN, lock_folder, require_run

    for run in runs:
        require_run(run)
        if not any((run / name).is_file() for name in (RUN, METRICS)):
            raise InputRefused(
                f"{run} has a {RECIPE}, but no {RUN} and no {METRICS}: it may be a folder of yours, not a run's; "
                "if it was a run, remove it with the system's own commands"
            )
        if run.is_symlink():
            raise InputRefused(f"{run} is a link; name the run's folder: {run.resolve()}")
    runs = list({run.resolve(): run for run in runs}.values())
    runs.sort(key=lambda run: len(run.resolve().parts), reverse=True)  # a run inside another one first
    with ExitStack() as locks:  # also while the question waits
        for run in runs:
            locks.enter_context(lock_folder(run, way_out=""))
        if not yes:
            typer.confirm(f"Remove {', '.join(map(str, runs))}?", abort=True)
        for run in runs:
            shutil.rmtree(run.resolve())
            print(f"removed {run}")


def _folders(name: str) -> list[Path]:
    """The folder of a run, or those of all runs in a pack."""
    from os.path import relpath

    from recipes.errors import InputRefused
    from recipes.reading.registry import path_of_pack
    from recipes.reports.wording import counted
    from trainers.commands.python_run import runs
    from trainers.runs.run_folder import RECIPE, REPORT

    path = path_of_pack(name)
    if path == name:
        with refuse_unreachable():
            is_run = not Path(name).is_dir() or Path(name, RECIPE).is_file()
        if not is_run and (kind := _kind_with_page(Path(name))):
            raise InputRefused(f"{name} is the folder of a {kind}, not of a run; its page is {Path(name, REPORT)}")
        if not is_run and (found := runs(name)):
            some = " ".join(str(Path(name, relpath(run.folder, name))) for run in found[:8])
            raise InputRefused(f"{name} holds {counted(len(found), 'run')}, and is none; type: kilobatch report {some}")
        return [Path(name)]
    folders = sorted(Path(path).parent.glob("runs/*"), key=lambda folder: int(folder.name))
    if not folders:
        raise InputRefused(f"{name} is the pack of a recipe, and has no runs; see: kilobatch recipes card {name}")
    return folders


@refuse_unreachable()
def _kind_with_page(folder: Path) -> str | None:
    """`search` or `frontier` for the folder of one that has drawn its page; None for any other."""
    from trainers.runs.run_folder import REPORT

    kinds = (kind for kind in ("search", "frontier") if (folder / f"{kind}.yaml").is_file())
    return next(kinds, None) if (folder / REPORT).is_file() else None
