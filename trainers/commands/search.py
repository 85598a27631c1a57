"""`kilobatch search`, and the ranks that it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import AllowCode, AllRanks, ClusterName, Data, Device, HangAfter, Hosts, Json, print_json


def search(
    search: Annotated[str, typer.Argument(metavar="SEARCH", help="A name in configs/searches, or a path.")],
    workers: AllRanks = None,
    hosts: Hosts = None,
    cluster: ClusterName = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Its folder; runs/search-NAME if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only resume the search in --out; start none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print space, samples and time only.")] = False,
    hang_after: HangAfter = 600.0,
    storage: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Storage of the study: sqlite, journal, a URL, grpc://H:P.")
    ] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    joined: Annotated[str | None, typer.Option("--joined", hidden=True)] = None,  # from rank 0 of a foreign launcher
) -> None:
    """Search for the best values of a recipe. Trials run side by side; the same command resumes a search."""
    from trainers.runs.mpi_ranks import limit_threads

    limit_threads(workers, threads=1)
    from trainers.search.outcome import SearchRequest
    from trainers.search.start import search as run_search

    request = SearchRequest(
        search=search,
        workers=workers,
        hosts=hosts,
        cluster=cluster,
        device=device,
        joined=joined,
        out=out,
        resume=resume,
        dry_run=dry_run,
        hang_seconds=hang_after,
        data=data,
        allow_code=allow_code,
        storage=storage,
    )
    raise typer.Exit(run_search(request))


def search_status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a search, or a copy of it.")],
    as_json: Json = False,
) -> None:
    """Show what a search does now.

    Trials by state, the best so far, the trials that run, and the end of the log. It locks and writes nothing.
    """
    from trainers.search.status import status_text, status_tree

    tree = status_tree(folder)
    print_json(tree) if as_json else print(status_text(tree))


def search_ranks(messages: Path, local_ranks: str) -> None:
    """Serve as one of the ranks of a search's group; its supervisor starts this command."""
    from trainers.runs.mpi_ranks import launched_rank, launched_ranks, limit_threads
    from trainers.runs.rank_exits import hold_exit_socket

    hold_exit_socket(launched_rank())
    threads = limit_threads(threads=1)
    from trainers.launch.join_ranks import join_world
    from trainers.search.group_worker import worker_loop
    from trainers.training.device import choose_gpu

    world = join_world(launched_ranks() or 1)
    choose_gpu(int(local_ranks.split(",")[world.rank]))
    worker_loop(world, messages, threads=threads)
