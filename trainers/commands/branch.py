"""`kilobatch branch`, and `kilobatch recipes ramp`, which writes what was measured as a recipe."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, Data, Json, Workers, print_json

EXAMPLES = """\b
Examples:
  kilobatch branch runs/a --batches 1k,2k,4k
  kilobatch branch runs/a --at 30ep --batches 1k,2k,4k,8k --window 5ep --seeds 3 -n 4
  kilobatch branch runs/a --batches 512,1024 -o grown.yaml
"""


def branch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    batches: Annotated[str, typer.Option("--batches", metavar="1k,2k,4k", help="Global batches; k is 1,024.")],
    at: Annotated[str | None, typer.Option("--at", metavar="30ep", help="The checkpoint, if not the newest.")] = None,
    window: Annotated[
        str, typer.Option(metavar="1ep", help="How long each branch trains: epochs, 500up of the run's batch, 1Msp.")
    ] = "1ep",
    seeds: Annotated[int, typer.Option(min=1, help="Branches of each batch; several measure epsilon.")] = 1,
    epsilon: Annotated[
        float | None, typer.Option(min=0, help="The loss that counts as none; left out, from the seeds, or 0.01.")
    ] = None,
    workers: Workers = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the branches; call again to go on.")] = None,
    recipe: Annotated[
        Path | None, typer.Option("-o", metavar="F.yaml", help="If it may, write a recipe that doubles its batch here.")
    ] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Try several batches from a checkpoint of a run.

    Short runs show how large the batch may be there. Each keeps the optimizer's state; its rate follows the batch (SGD:
    in proportion, Adam: by the root). The critical batch is the largest whose training loss, over the last quarter of
    the window, is not above that of a smaller one.
    """
    from recipes.errors import printable
    from recipes.scale import parse_batch
    from trainers.tasks.branch import Branching, branches_text, grown_recipe, measure_branches
    from trainers.tasks.reproduce import RerunFailed

    asked = Branching(
        run=run,
        batches=tuple(parse_batch(text, option="--batches") for text in batches.split(",")),
        at=at,
        window=window,
        seeds=seeds,
        epsilon=epsilon,
        out=out,
        workers=workers,
        data=data,
        allow_code=allow_code,
    )
    try:
        result, folder = measure_branches(asked, tell=lambda line: print(line, file=sys.stderr, flush=True))
    except RerunFailed as error:
        print(f"kilobatch: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    if as_json:
        print_json({**asdict(result), "critical_batch": result.critical.batch, "at_least": result.is_largest})
    else:
        print(printable(branches_text(result)), end="")
        print(f"wrote {folder}; a ramp of it: kilobatch recipes ramp --from {quote(str(folder))}{asked.options}")
    if recipe is not None:
        print(grown_recipe(asked, result, recipe), file=sys.stderr if as_json else sys.stdout)


def ramp(
    source: Annotated[
        list[Path],
        typer.Option("--from", metavar="DIR", help="A run with --noise-scale, or folders of `branch` of one run."),
    ],
    out: Annotated[Path | None, typer.Option("-o", metavar="FILE", help="The new file; NAME-ramp.yaml here.")] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Write a measured noise scale, or branches, as a batch ramp.

    The batch doubles where they allow it, up to a tenth of the data; the rate follows.
    """
    from recipes.scale import scaled_text
    from trainers.tasks.branch import measured_ramp

    scaled = measured_ramp(source, out=out, data=data, allow_code=allow_code)
    print(scaled_text(scaled, as_json, allow_code=allow_code), end="")
