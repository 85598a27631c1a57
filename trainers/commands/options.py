"""Options that several commands share, and the recipe that they open."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_FOUND = 5  # of a command that looks for mistakes, and found one
OPTIONS_OF_GROUPS = {"no_args_is_help": True, "rich_markup_mode": None, "pretty_exceptions_enable": False}

NAME = "A name of `kilobatch recipes list`, a path, or the folder of a run."
NAMES = "Names of `kilobatch recipes list`, paths, or folders of runs."


def recipe_names(incomplete: str) -> list[str]:
    """Names of recipes that begin so, for the completion of a shell."""
    from recipes.reading.registry import names

    return [name for name in names("recipes") if name.startswith(incomplete)]


Recipe = Annotated[str, typer.Argument(metavar="RECIPE", help=NAME, autocompletion=recipe_names)]
Set = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="Change a value; may be repeated.")]
AllowCode = Annotated[
    bool, typer.Option("--allow-code", help="Let `kind: mymodule.MyNet` import from this folder or the recipe's.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[Path | None, typer.Option("--data", help="Folder of the data set's files.")]
Workers = Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Workers, one process each.")]
ClusterName = Annotated[str | None, typer.Option("--cluster", help="Name or path of a cluster's file.")]
SetBoth = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Change a value of the recipe or, as cluster.A.B=C, of the cluster's file: cluster.exchange.wire=float16, "
        "'cluster.exchange.communicator={kind: Ring}'. May be repeated.",
    ),
]
Device = Annotated[str | None, typer.Option(metavar="D", help="cpu, gpu, or auto; left out, the cluster's or the CPU.")]
AllRanks = Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Ranks of all trials together.")]
Hosts = Annotated[str | None, typer.Option(metavar="A,B:4", help="Their hosts: 4 on B, the rest on A.")]
HangAfter = Annotated[
    float, typer.Option(min=1, metavar="SECONDS", help="End a trial that does no update for so long.")
]
Decoder = Annotated[
    str | None,
    typer.Option(metavar="D", help="Decoder of images: turbo, opencv, pillow; nvimgcodec or dali where installed."),
]
MicroBatch = Annotated[
    int | None, typer.Option(min=1, metavar="M", help="The most samples of one forward; more accumulate.")
]


def opened_recipe(
    recipe: str, overrides: Sequence[str | None] | None, data: Path | None, allow_code: bool, *, looks: bool = False
) -> Any:
    """The opened recipe of a name or path; raises `RecipeError` if it is refused.

    Args:
        looks: the command only looks at the recipe: it leaves code of the user's own alone without `allow_code`, and
            opens a run's recipe that a new run would be refused for.
    """
    from recipes.reading.open import open_recipe
    from trainers.launch.vocabulary import vocabulary
    from trainers.runs.errors import print_warnings

    opened = open_recipe(
        recipe,
        vocabulary=vocabulary(allow_code=allow_code),
        overrides=overrides or (),
        allow_code=allow_code or (None if looks else False),
        data_root=data,
        of_run=None if looks else False,
    )
    print_warnings(opened.warnings)
    return opened


def print_json(tree: Any) -> None:
    """Print plain data as JSON, see `finite`."""
    from recipes.reports.json_text import finite

    print(json.dumps(finite(tree), indent=2))


def written(write: Callable[[], list[Path]], option: str) -> None:
    """Writes files and says which; if that fails, the option is refused."""
    from recipes.errors import printable

    try:
        files = write()
    except (OSError, ValueError) as error:
        raise typer.BadParameter(printable(str(error)), param_hint=option) from None
    print(printable(f"wrote {' and '.join(map(str, files))}"), file=sys.stderr)


Exact = Annotated[
    bool | None,
    typer.Option(
        "--exact/--fast", help="Same bits on any number of ranks: refuse a run that cannot hold them, or give them up."
    ),
]
