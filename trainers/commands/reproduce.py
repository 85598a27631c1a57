"""`kilobatch reproduce`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, Data, Json, Workers, print_json

EXAMPLES = """\b
Examples:
  kilobatch reproduce mine.kilobatch -n 2
  kilobatch reproduce team/resnet50@3 --register --seeds 5
  kilobatch reproduce team/resnet50@3 --part 0.1
"""


def reproduce(
    pack: Annotated[str, typer.Argument(metavar="PACK", help="A pack's file, or its name in a registry.")],
    workers: Workers = None,
    seeds: Annotated[int, typer.Option(min=1, help="Reruns at most; one with the pack's own seed, then others.")] = 5,
    part: Annotated[float, typer.Option(metavar="0.1", help="Rerun this share of the epochs, and compare losses.")] = 1,
    register: Annotated[bool, typer.Option("--register", help="Write margin and seeds down before any run.")] = False,
    kernels: Annotated[str | None, typer.Option(metavar="K", help="As for train.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the runs; a second call goes on there.")] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Rerun what a pack claims, and end in a verdict.

    \b
    Exit code 0: the same bits, the same run, or statistically as good
              5: worse
              6: undecided; the last line says how many more seeds would decide
    """
    from trainers.kernels import ask_for

    ask_for(kernels)
    from recipes.errors import printable
    from trainers.tasks.reproduce import EXIT_CODES, Rerun, RerunFailed
    from trainers.tasks.reproduce import reproduce as rerun_pack

    if not 0 < part <= 1:
        raise typer.BadParameter("write a share above 0 and up to 1", param_hint="--part")
    options = [*(["-n", str(workers)] if workers else []), *(["--kernels", kernels] if kernels else [])]
    asked = Rerun(
        pack=pack,
        seeds=seeds,
        part=part,
        out=out,
        options=tuple(options),
        data=data,
        allow_code=allow_code,
        register=register,
    )
    stream = sys.stderr if as_json else sys.stdout
    try:
        evidence = rerun_pack(asked, tell=lambda line: print(printable(line), file=stream, flush=True))
    except RerunFailed as error:
        print(f"kilobatch: {error}", file=sys.stderr)
        raise typer.Exit(error.code) from None
    if as_json:
        print_json(evidence)
    raise typer.Exit(EXIT_CODES[evidence["verdict"]])
