"""`kilobatch recipes ...`: write, look at, check, copy and derive recipes."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from trainers.commands.options import (
    EXIT_FOUND,
    NAME,
    NAMES,
    OPTIONS_OF_GROUPS,
    AllowCode,
    Data,
    Json,
    Recipe,
    Set,
    opened_recipe,
    print_json,
    written,
)

if TYPE_CHECKING:
    from recipes.errors import Problem

app = typer.Typer(help="Write, look at, check, copy and derive recipes.", **OPTIONS_OF_GROUPS)

OfFile = Enum("OfFile", {name: name for name in ("recipe", "dataset", "cluster", "search", "frontier")})


@app.command("list")
def list_recipes(as_json: Json = False, allow_code: AllowCode = False) -> None:
    """The recipes that have a name."""
    from recipes.errors import printable
    from recipes.reading.library import library
    from recipes.reports.curves import points_text
    from trainers.launch.vocabulary import vocabulary

    rows, problems = library(vocabulary=vocabulary(allow_code=allow_code), allow_code=allow_code)
    if as_json:
        print_json(rows)
    else:
        keys = ("name", "dataset", "model", "epochs", "global_batch_size", "title")
        print(points_text([{key: row[key] for key in keys} for row in rows], cut="title"))
    for problem in problems:
        print(printable(str(problem)), file=sys.stderr)


@app.command()
def show(
    recipe: Recipe, overrides: Set = None, data: Data = None, allow_code: AllowCode = False, as_json: Json = False
) -> None:
    """A recipe with every value, and where each comes from."""
    from recipes.reading.load import resolved_text

    opened = opened_recipe(recipe, overrides, data, allow_code, looks=True)
    if as_json:
        print_json({"recipe": opened.tree, "origins": opened.origins})
    else:
        print(resolved_text(opened.tree, opened.origins), end="")


@app.command()
def validate(
    recipes: Annotated[list[str], typer.Argument(metavar="RECIPE...", help=NAMES)],
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """Check recipes. Every problem is one line with its place and a way out.

    With --allow-code, and the data at hand, a model, loss and optimizer of your own are tried as before a run.
    """
    from recipes.errors import InputRefused, RecipeError, printable
    from recipes.reading.load import chain_of, load_tree, not_taken_over
    from trainers import models
    from trainers.launch.preflight import has_data, require_fit, require_own_code

    problems = []
    for name in recipes:
        try:
            opened = opened_recipe(name, overrides, data, allow_code)
            init, kind = opened.recipe.init, opened.tree["model"]["kind"]
            is_complete = not opened.obstacles and (init is None or Path(init.weights).is_file())
            if is_complete and allow_code and has_data(opened.dataset):
                require_own_code(opened)
            if is_complete and (allow_code or kind in models.__all__):
                require_fit(opened)
        except InputRefused as error:
            problems += _problems_of(error, name)
            continue
        reasons = "; ".join(opened.obstacles)
        print(printable(f"{name}: valid" + (f"; cannot be trained yet, {reasons}" if reasons else "")))
        for base, _ in chain_of(opened.path)[1:2]:
            for line in not_taken_over(load_tree(base)[0], opened.tree, opened.origins):
                if line not in opened.not_taken_over:  # else it is a warning already
                    print(printable(f"  note: {line}"))
    if problems:
        raise RecipeError(problems)


def _problems_of(error: Exception, name: str) -> Sequence[Problem]:
    """The problems of a recipe that is wrong, or the one of code of the user's own."""
    from recipes.errors import Problem, RecipeError

    if isinstance(error, RecipeError):
        return error.problems
    what, _, way_out = str(error).partition("; ")
    return (Problem(file=name, what=what, way_out=way_out),)


@app.command()
def lint(
    recipes: Annotated[list[str] | None, typer.Argument(metavar="RECIPE...", help=NAMES)] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="For the rule that depends on workers.")] = None,
    workers: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Workers, without a cluster.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="List the rules instead.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="With --rules: print docs/lint.md.")] = False,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Find what is likely a mistake at a large batch. Exit code 5 if something is found, 2 if a recipe is wrong."""
    from recipes.errors import InputRefused, RecipeError
    from recipes.lint import findings_text, handbook, lint_recipe, rules_text
    from recipes.reading.open import open_cluster
    from trainers.launch.vocabulary import vocabulary

    if rules or not recipes:
        if not rules:
            raise typer.BadParameter("name a recipe, or ask for --rules", param_hint="RECIPE")
        print(handbook() if markdown else rules_text(as_json), end="")
        return
    known = vocabulary(allow_code=allow_code)
    if cluster is not None:
        workers = workers or open_cluster(cluster, vocabulary=known).num_workers
    findings, problems = {}, []
    for name in recipes:
        try:
            findings[name] = lint_recipe(
                name,
                vocabulary=known,
                overrides=overrides or (),
                allow_code=allow_code,
                data_root=data,
                workers=workers,
            )
        except InputRefused as error:
            problems += _problems_of(error, name)
    if findings:
        print(findings_text(findings, as_json), end="", flush=True)
    if problems:
        raise RecipeError(problems)
    raise typer.Exit(EXIT_FOUND if any(findings.values()) else 0)


@app.command("id")
def show_id(
    recipe: Recipe, overrides: Set = None, data: Data = None, allow_code: AllowCode = False, as_json: Json = False
) -> None:
    """Digests of a training: of the recipe, own code and data.

    All three equal: the same training. Spelling does not count: order of keys, units, files that it extends, defaults.
    Nor do name, title, claims and card.
    """
    from trainers.launch.identity import ids_of, missing_modules

    opened = opened_recipe(recipe, overrides, data, allow_code, looks=True)
    ids = ids_of(opened)
    missing = {"code": "none: the recipe names no code of your own", "data": "unknown: the data are not here"}
    if modules := missing_modules(opened):
        missing["code"] = f"unknown: not found here: {', '.join(modules)}"
    if as_json:
        print_json(ids)
    else:
        print("\n".join(f"{what:<7} {digest or missing[what]}" for what, digest in ids.items()))


PACK_EXAMPLES = """\b
Examples:
  kilobatch recipes pack runs/seed-0 runs/seed-1 runs/seed-2 -o mine.kilobatch
  kilobatch recipes pack goyal2017
  skopeo copy docker://host/recipe:1 oci:folder:1; kilobatch recipes pack folder
  kilobatch train mine.kilobatch -n 2
"""


@app.command(epilog=PACK_EXAMPLES)
def pack(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN...|RECIPE", help="Runs, which differ in their seeds only; or a recipe.")
    ],
    out: Annotated[Path | None, typer.Option("-o", metavar="F", help="The new file; NAME.kilobatch here.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Include the weights that the first run scores.")] = False,
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """Put a recipe and what is known of it into one file.

    It holds sources, the data set's facts, runs, claims and card, not the data. The same input gives the same bytes.
    Commands that look at a recipe or train it take the file; `recipes copy`, `recipes scale` and `recipes pack` do not.
    """
    from recipes.errors import RecipeError
    from recipes.reading.open import open_dataset
    from recipes.reports.wording import counted
    from recipes.schema.dataset import url_of
    from recipes.sharing.pack_file import open_pack
    from trainers.launch.vocabulary import vocabulary
    from trainers.runs.run_folder import DATASET
    from trainers.tasks.packing import pack as pack_into

    path, digest, head = pack_into(names, out=out, weights=weights, data=data, allow_code=allow_code)
    print(f"wrote {path}: {head['name']}, {counted(len(head['runs']), 'run')}, digest {digest[:12]}")
    look, words = ["kilobatch recipes show", quote(str(path))], ["kilobatch train", quote(str(path))]
    words += ["--allow-code"] if head["ids"]["code"] else []
    try:
        opened_recipe(str(path), None, None, False, looks=True)
    except RecipeError:  # its schedule or warmup is code of its own
        look += ["--allow-code"]
    dataset = open_dataset(str(open_pack(path).folder / DATASET), vocabulary=vocabulary(), allow_code=None)
    words += ["--data FOLDER"] if getattr(dataset.reader, "reads_folder", True) and not url_of(dataset.root) else []
    print(f"It opens anywhere: {' '.join(look)}; {' '.join(words)}")


DIFF_EXAMPLES = """\b
Examples:
  kilobatch recipes diff goyal2017 mine.yaml
  kilobatch recipes diff runs/a runs/b runs/c
  kilobatch recipes diff mine.yaml theirs.yaml && echo the same training
"""


@app.command(epilog=DIFF_EXAMPLES)
def diff(
    first: Annotated[
        str, typer.Argument(metavar="A", help="A name of `kilobatch recipes list`, a path, or a run's folder.")
    ],
    others: Annotated[list[str], typer.Argument(metavar="B", help="To compare with A; one or more.")],
    everything: Annotated[bool, typer.Option("--all", help="Also names, titles and other texts.")] = False,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Show the values that differ between recipes, and their effect.

    Resolved values are compared, not texts: 1e-1 equals 0.1, 30ep equals 30, and inherited values count as if they were
    written out. Each value is shown with the file and line that it comes from.

    \b
    Exit code 0: the same training, all values that it reads are equal, and own code
              1: values or own code differ, or own code is not here to compare
              2: a recipe was refused
    """
    from recipes.diff.recipes import compare_recipes
    from recipes.diff.text import diff_text
    from recipes.errors import printable
    from trainers.launch.identity import code_of
    from trainers.launch.vocabulary import vocabulary

    comparison = compare_recipes(
        [first, *others],
        vocabulary=vocabulary(allow_code=allow_code),
        allow_code=allow_code or None,
        data_root=data,
        code_of=code_of,
    )
    if as_json:
        print_json(comparison.as_tree())
    else:
        print(printable(diff_text(comparison, with_words=everything)), end="")
    raise typer.Exit(0 if comparison.same else 1)


@app.command()
def scale(
    recipe: Recipe,
    batch: Annotated[str, typer.Option("--batch", metavar="32k", help="The new global batch; k is 1,024.")],
    beyond: Annotated[bool, typer.Option("--beyond", help="Allow batches beyond published linear scaling.")] = False,
    seesaw: Annotated[
        bool, typer.Option("--seesaw", help="Grow the batch, up to --batch, where the rate would fall.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", metavar="FILE", help="The new file; NAME-BATCH.yaml here, or NAME-seesaw-BATCH.yaml with --seesaw."
        ),
    ] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Derive a recipe for another batch. A new file, and a reason for every value; nothing is ever overwritten."""
    from recipes.scale import parse_batch, scale_recipe, scaled_text, seesaw_recipe
    from trainers.launch.vocabulary import vocabulary

    options = {"vocabulary": vocabulary(allow_code=allow_code), "allow_code": allow_code, "data_root": data}
    if seesaw:
        if beyond:
            raise typer.BadParameter(
                "--seesaw lets no rate grow, so it has no limit: leave --beyond out", param_hint="--beyond"
            )
        scaled = seesaw_recipe(recipe, batch=parse_batch(batch), out=out, **options)
    else:
        scaled = scale_recipe(recipe, batch=parse_batch(batch), beyond=beyond, out=out, **options)
    print(scaled_text(scaled, as_json, allow_code=allow_code), end="")


@app.command()
def copy(
    recipe: Recipe,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="The new file; NAME.yaml here.")] = None,
) -> None:
    """Copy a recipe's file into this folder. Its first line names the original; nothing is ever overwritten.

    The copy names the same files: paths in a run's recipe are adapted, and other recipes are refused if they need that.
    """
    from recipes.reading.library import copy_recipe
    from recipes.reading.registry import typed

    target = copy_recipe(recipe, file)
    print(f"wrote {target}; change it, then: kilobatch recipes validate {typed(target)}")
    print("Its name, title, claims and card are still those of the original: what you change no longer is.")


@app.command()
def new(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="It has train/CLASS/FILE, perhaps val/CLASS/FILE; or CLASS/FILE.")
    ],
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="The new recipe; FOLDER-recipe.yaml here.")
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            "--weights", metavar="F.safetensors", help="Fine-tune: a ResNet's weights, by torchvision's names."
        ),
    ] = None,
) -> None:
    """Write a first recipe for a folder of images.

    A file FOLDER.yaml beside it describes the images: classes, mean and standard deviation. Change both as you like.

    With --weights the network is that of the file, and its images are normalised as the file wants them.
    """
    from functools import partial

    from recipes.errors import printable
    from trainers.datasets.progress_bar import showing_progress
    from trainers.tasks.new_recipe import write_new_recipe

    lines = write_new_recipe(
        folder, file, weights=weights, showing=partial(showing_progress, unit="images", after_seconds=1.0)
    )
    print(printable("\n".join(lines)))


@app.command()
def card(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE", help=NAME, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html|F.md", help="Write a page, .md with F.svg.")] = None,
    library: Annotated[
        Path | None, typer.Option("--library", metavar="F.md", help="Write all cards of the library into one page.")
    ] = None,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
) -> None:
    """What a recipe changed and claims, and its evidence."""
    from recipes.cards import card_facts, card_text, published_recipes, write_card, write_library_page
    from recipes.reports.terminal import curve_text
    from recipes.sharing.pack_file import claims_of_runs
    from trainers.launch.vocabulary import vocabulary

    if (recipe is None) == (library is None):
        raise typer.BadParameter("name a recipe, or give --library a file", param_hint="RECIPE")
    if library is not None:
        recipes = published_recipes(vocabulary())
        written(lambda: write_library_page(recipes, library), "--library")
        return
    opened = opened_recipe(recipe, overrides, data, allow_code, looks=True)
    claims = claims_of_runs(opened.path)
    if out is not None:
        written(lambda: write_card(recipe, opened, out, claims=claims), "-o")
    else:
        print(f"{card_text(card_facts(recipe, opened, claims=claims))}\n\n{curve_text(opened.recipe, opened.dataset)}")


@app.command()
def schema(
    of: Annotated[OfFile, typer.Option("--of", help="The file that it is for.")] = OfFile.recipe,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse kinds that are not known here.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the reference docs/recipes.md.")] = False,
) -> None:
    """The JSON Schema of a recipe's file, or of another, for editors."""
    from recipes.reading.json_schema import file_schema
    from recipes.reading.reference import reference
    from trainers.launch.vocabulary import search_vocabulary

    words = search_vocabulary()
    schema = file_schema(words, of.value, strict=strict)
    print(reference(words) if markdown else json.dumps(schema, indent=2) + "\n", end="")


@app.command()
def curve(
    recipe: Recipe,
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="0,2.5,500up", help="Print the first update that starts there or later."),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", metavar="F.png|F.svg", help="Draw into a file.")] = None,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Learning rate, batch and momentum over time. Numbers at some epochs, or a picture."""
    from recipes.reports.curves import curve_points, parse_at, points_text
    from recipes.reports.terminal import curve_text

    opened = opened_recipe(recipe, overrides, data, allow_code, looks=True)
    if out is not None:
        from recipes.reports.plots import curve_figure, save_figure

        written(lambda: save_figure(curve_figure(opened.recipe, opened.dataset), out), "-o")
    if at is None and not as_json and out is None:
        print(curve_text(opened.recipe, opened.dataset))
    elif at is not None or as_json:
        points = curve_points(opened, parse_at(at, opened))
        print_json(points) if as_json else print(points_text(points))
