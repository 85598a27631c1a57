"""`kilobatch frontier`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, AllRanks, Data, Device, HangAfter, Hosts, Json, Set

EXAMPLES = """\b
Examples:
  kilobatch frontier digits --dry-run
  kilobatch frontier digits -n 2
  kilobatch frontier digits -n 2 --set budget.trials=20      # goes on with more trials
  kilobatch frontier runs/frontier-digits --cluster mn1      # shows it, with time and cost
"""


def frontier(
    frontier: Annotated[
        str, typer.Argument(metavar="FRONTIER", help="A name in configs/frontiers, a path, or a folder to show.")
    ],
    workers: AllRanks = None,
    hosts: Hosts = None,
    device: Device = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", metavar="C", help="Plan time and cost of each batch on this cluster.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Its folder; runs/frontier-NAME if left out.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print points, trials and samples only.")] = False,
    hang_after: HangAfter = 600.0,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Measure how far your batch can grow.

    That is the fewest updates to a goal, tuned anew at every batch. Each point, a batch of a method, is a search. The
    same command goes on after a stop, and has more trials, batches or methods if the file does. It ends with a table, a
    page and the recipe of every optimum.
    """
    from trainers.runs.mpi_ranks import limit_threads

    limit_threads(workers, threads=1)
    from trainers.frontier.run import frontier as run_frontier
    from trainers.search.outcome import SearchRequest

    request = SearchRequest(
        search=frontier,
        workers=workers,
        hosts=hosts,
        device=device,
        out=out,
        dry_run=dry_run,
        hang_seconds=hang_after,
        data=data,
        allow_code=allow_code,
    )
    raise typer.Exit(run_frontier(request, overrides=overrides or (), cluster=cluster, as_json=as_json))
