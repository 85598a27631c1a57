"""The command line: one short function a command, which imports what it needs when it runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

_OPTIONS = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}
app = typer.Typer(add_completion=False, help="Trains with large minibatches and keeps the accuracy.", **_OPTIONS)
recipes_app = typer.Typer(help="The library of recipes: list, show, validate, copy, curve, schema.", **_OPTIONS)
app.add_typer(recipes_app, name="recipes")

Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help="A name of `kilobatch recipes list`, or a path.")]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a value; may be repeated.")]
AllowCode = Annotated[bool, typer.Option("--allow-code", help="Let `kind: mymodule.MyNet` import from this folder.")]
Workers = Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Workers, one process each.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Name or path of a cluster's file.")]
MicroBatch = Annotated[int | None, typer.Option(min=1, metavar="M", help="The most samples of one forward.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data set's files.")]


def main() -> None:
    """Runs the command line; what is wrong with the input is one line each on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        from recipes.errors import InputRefused, RecipeError

        if not isinstance(error, InputRefused):
            raise
        print(error if isinstance(error, RecipeError) else f"kilobatch: {error}", file=sys.stderr)
        sys.exit(2)


@app.command()
def train(
    recipe: Recipe,
    workers: Workers = None,
    cluster: ClusterName = None,
    overrides: Set = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; runs/NAME-DATE-TIME if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    stop_after: Annotated[str | None, typer.Option(metavar="30up", help="End there, with a checkpoint.")] = None,
    checkpoint_every: Annotated[str, typer.Option(metavar="1ep", help="How often to write a checkpoint.")] = "1ep",
    micro_batch_size: MicroBatch = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.jsonl: samples, images, loss by update.")] = False,
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """Train a recipe on N ranks of this machine, or as one of the ranks that mpiexec or srun started."""
    from trainers.launch import limit_threads

    limit_threads(workers)
    from trainers.request import TrainRequest
    from trainers.start import train

    request = TrainRequest(
        recipe=recipe,
        workers=workers,
        cluster=cluster,
        overrides=tuple(overrides or ()),
        out=out,
        resume=resume,
        stop_after=stop_after,
        checkpoint_every=checkpoint_every,
        micro_batch_size=micro_batch_size,
        trace=trace,
        data=data,
        allow_code=allow_code,
    )
    raise typer.Exit(train(request))


@app.command()
def plan(
    recipe: Recipe,
    cluster: ClusterName = None,
    workers: Workers = None,
    micro_batch_size: MicroBatch = None,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Who computes what: workers, shares, micro-batches, norm groups and memory, for every stage of the ramp."""
    from recipes.open import open_cluster
    from recipes.planning.planner import plan
    from recipes.reports.plan_text import plan_text
    from trainers.build import model_sizes
    from trainers.vocabulary import vocabulary

    opened = _open(recipe, overrides, data, allow_code)
    made = plan(
        recipe=opened.recipe,
        dataset=opened.dataset,
        cluster=open_cluster(cluster or "laptop", vocabulary=vocabulary()),
        workers=workers,
        micro_batch_size=micro_batch_size,
        model=model_sizes(opened.recipe, opened.dataset),
    )
    print(json.dumps(made.as_tree(), indent=2) if as_json else plan_text(made))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    checkpoint: Annotated[str, typer.Option(help="newest, best, or a name such as update-000060.")] = "newest",
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a checkpoint of a run over each evaluation sample once."""
    from trainers.score_run import score_run, scored_text

    scored = score_run(run, checkpoint=checkpoint, data=data, allow_code=allow_code)
    print(json.dumps(scored, indent=2) if as_json else scored_text(scored))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html", help="RUN/report.html if left out.")] = None,
) -> None:
    """One self-contained HTML page on a run, or on several beside each other."""
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    write_page([open_run(run) for run in runs], target)
    print(f"wrote {target}")


@recipes_app.command("list")
def list_recipes(as_json: Json = False, allow_code: AllowCode = False) -> None:
    """The recipes that have a name."""
    from recipes.library import library
    from recipes.reports.points import points_text
    from trainers.vocabulary import vocabulary

    rows, problems = library(vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code)
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        keys = ("name", "dataset", "model", "epochs", "global_batch_size", "title")
        print(points_text([{key: row[key] for key in keys} for row in rows]))
    for problem in problems:
        print(problem, file=sys.stderr)


@recipes_app.command()
def show(
    recipe: Recipe, overrides: Set = None, data: Data = None, allow_code: AllowCode = False, as_json: Json = False
) -> None:
    """A recipe with every value filled in, and where each comes from."""
    from recipes.provenance import resolved_text

    opened = _open(recipe, overrides, data, allow_code)
    if as_json:
        print(json.dumps({"recipe": opened.tree, "origins": opened.origins}, indent=2))
    else:
        print(resolved_text(opened.tree, opened.origins), end="")


@recipes_app.command()
def validate(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE...")],
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """Check recipes; every problem is one line with its place and a way out."""
    from recipes.errors import RecipeError

    problems = []
    for name in recipes:
        try:
            opened = _open(name, overrides, data, allow_code)
        except RecipeError as error:
            problems += error.problems
            continue
        lacking = [*opened.recipe.lacks, *opened.dataset.lacks]
        print(f"{name}: valid" + (f"; cannot be trained yet, not built: {', '.join(lacking)}" if lacking else ""))
    if problems:
        raise RecipeError(problems)


@recipes_app.command()
def copy(recipe: Recipe, file: Annotated[Path | None, typer.Argument(metavar="[FILE]")] = None) -> None:
    """Copy a recipe's file into this folder; nothing is ever overwritten."""
    from recipes.library import copy_recipe

    target = copy_recipe(recipe, file)
    print(f"wrote {target}; change it, then: kilobatch recipes validate {target}")


@recipes_app.command()
def schema(
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference docs/recipes.md.")] = False,
) -> None:
    """The JSON Schema of a recipe's file, for editors."""
    from recipes.json_schema import json_schema
    from recipes.reference import reference
    from trainers.vocabulary import vocabulary

    text = reference(vocabulary()) if markdown else json.dumps(json_schema(vocabulary()), indent=2) + "\n"
    print(text, end="")


@recipes_app.command()
def curve(
    recipe: Recipe,
    at: Annotated[str | None, typer.Option("--at", metavar="0,2.5,500up", help="Where to read the formulas.")] = None,
    out: Annotated[Path | None, typer.Option("-o", metavar="F.png|F.svg", help="Draw into a file.")] = None,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Learning rate, batch and momentum: numbers at some epochs, or a picture."""
    from recipes.reports.points import curve_points, parse_at, points_text

    opened = _open(recipe, overrides, data, allow_code)
    if out is not None:
        _draw(opened, out)
    if at is None and not as_json and out is None:
        from recipes.reports.terminal import curve_text

        print(curve_text(opened.recipe, opened.dataset))
    elif at is not None or as_json:
        points = curve_points(opened, parse_at(at, opened))
        print(json.dumps(points, indent=2) if as_json else points_text(points))


@app.command()
def doctor(as_json: Json = False) -> None:
    """What is installed here, what is broken, and what to do."""
    from trainers.doctor import examine, print_diagnosis

    diagnosis = examine()
    print_diagnosis(diagnosis, as_json=as_json)
    raise typer.Exit(0 if diagnosis.trains_on_cpu else 3)


def _draw(opened: Any, out: Path) -> None:
    from recipes.reports.plots import curve_figure, save_figure

    try:
        save_figure(curve_figure(opened.recipe, opened.dataset), out)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error), param_hint="-o") from None
    print(f"wrote {out}", file=sys.stderr)


def _open(recipe: str, overrides: list[str] | None, data: Path | None, allow_code: bool) -> Any:
    from recipes.open import open_recipe
    from trainers.vocabulary import vocabulary

    return open_recipe(
        recipe,
        vocabulary=vocabulary(allow_code=allow_code),
        overrides=overrides or (),
        allow_code=allow_code,
        data_root=data,
    )


if __name__ == "__main__":
    main()
