"""`kilobatch train`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from trainers.commands.options import (
    AllowCode,
    ClusterName,
    Data,
    Decoder,
    Device,
    Exact,
    MicroBatch,
    Recipe,
    SetBoth,
)


def train(
    recipe: Recipe,
    workers: Annotated[
        int | None,
        typer.Option(
            "-n",
            min=1,
            metavar="N",
            help="Workers, one process each; left out, the fewest that are fastest on the cores here, or one on a GPU.",
        ),
    ] = None,
    cluster: ClusterName = None,
    overrides: SetBoth = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; runs/NAME-DATE-TIME if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    accept_changed: Annotated[
        str | None,
        typer.Option(metavar="data,code", help="With --resume: go on with other data or code of your own, recorded."),
    ] = None,
    stop_after: Annotated[str | None, typer.Option(metavar="30up", help="Stop there, with a checkpoint.")] = None,
    checkpoint_every: Annotated[str, typer.Option(metavar="1ep", help="How often to write a checkpoint.")] = "1ep",
    micro_batch_size: MicroBatch = None,
    device: Device = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="K", help="numpy, torch or chainer; on a GPU cudnn, torch or chainer.")
    ] = None,
    decoder: Decoder = None,
    loader_workers: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Workers of each rank that load ahead; 0: the rank itself.")
    ] = None,
    loader: Annotated[
        str | None, typer.Option(metavar="threads|processes", help="What they are; left out, what is faster.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.jsonl: samples, images, loss by update.")] = False,
    noise_scale: Annotated[
        bool, typer.Option("--noise-scale", help="Measure the gradient noise scale: see the report.")
    ] = False,
    exact: Exact = None,
    profile: Annotated[
        int | None, typer.Option(min=1, metavar="U", help="Write profile.json of U updates, for chrome://tracing.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Draw report.html at the end, or leave it to kilobatch report.")
    ] = True,
    watchdog: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="End the run if it makes no progress for so long; 0: never.")
    ] = 120,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print only how the run ended.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Print a line an update.")] = False,
    data: Data = None,
    allow_code: AllowCode = False,
    as_rank: Annotated[str | None, typer.Option("--as-rank", hidden=True)] = None,  # the request, from our parent
) -> None:
    """Train a recipe on N ranks. Starts them on this machine, or is one of those that mpiexec or srun started."""
    from trainers.runs.mpi_ranks import limit_threads

    given = json.loads(as_rank) if as_rank else {}
    limit_threads(workers, threads=None if given.get("exact", exact) is False else 1, kernels_share_cores=True)
    from trainers.augmentations import decoders
    from trainers.kernels import ask_for

    ask_for(kernels)
    decoders.ask_for(decoder)
    from recipes.reading.registry import path_of_pack
    from trainers.launch.request import TrainRequest
    from trainers.launch.start_ranks import start_or_join

    if given:
        raise typer.Exit(start_or_join(TrainRequest.from_tree(given)))
    request = TrainRequest(
        recipe=path_of_pack(recipe),
        workers=workers,
        cluster=cluster,
        overrides=tuple(overrides or ()),
        out=out,
        resume=resume,
        accept_changed=tuple(accept_changed.replace(" ", "").split(",")) if accept_changed else (),
        stop_after=stop_after,
        checkpoint_every=checkpoint_every,
        micro_batch_size=micro_batch_size,
        device=device,
        trace=trace,
        measure_noise=noise_scale,
        exact=exact,
        profile=profile,
        data=data,
        allow_code=allow_code,
        report=report,
        watchdog_seconds=watchdog,
        verbosity=verbose - quiet,
        loader_workers=loader_workers,
        loader=loader,
    )
    raise typer.Exit(start_or_join(request))


def load_samples(socket: int, memory: int) -> None:
    """A loader worker's process, which a rank starts; the arguments are file descriptors."""
    from trainers.launch.load_samples import serve_samples

    serve_samples(socket, memory)
