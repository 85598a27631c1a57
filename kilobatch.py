"""The command line: one short function a command, which imports what it needs only when it runs."""

from __future__ import annotations

import atexit
import gc
import json
from pathlib import Path
from typing import Annotated

import typer

from kilobatch_recipes import OPTIONS, AllowCode, Data, Json, Recipe, open_streams, opened_recipe
from kilobatch_recipes import app as recipes_app

EXAMPLES = """\b
Examples:
  kilobatch recipes list
  kilobatch recipes card goyal2017
  kilobatch plan goyal2017 --cluster mn1 -n 256
  kilobatch train digits/large_batch -n 2
  kilobatch search digits -n 2 --dry-run
"""
app = typer.Typer(add_completion=False, epilog=EXAMPLES, **OPTIONS)
app.add_typer(recipes_app, name="recipes")

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
DeviceToScore = Annotated[str | None, typer.Option(metavar="D", help="cpu, gpu, or auto; left out, the CPU.")]
MicroBatch = Annotated[int | None, typer.Option(min=1, metavar="M", help="The most samples of one forward.")]


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"kilobatch {version('kilobatch')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")]


@app.callback()
def options(version: Version = False) -> None:
    """Trains with large minibatches and keeps the accuracy."""


def main() -> None:
    """Runs the command line."""
    atexit.register(gc.freeze)  # skips the garbage collection at exit, which would take 0.2 s
    try:
        with open_streams():
            app(prog_name="kilobatch")
    except (OSError, ValueError) as error:
        from trainers.runs.console import tell

        tell(error)
        raise


@app.command()
def train(
    recipe: Recipe,
    workers: Workers = None,
    cluster: ClusterName = None,
    overrides: SetBoth = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The run's folder; runs/NAME-DATE-TIME if left out.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint in --out.")] = False,
    stop_after: Annotated[str | None, typer.Option(metavar="30up", help="Stop there, with a checkpoint.")] = None,
    checkpoint_every: Annotated[str, typer.Option(metavar="1ep", help="How often to write a checkpoint.")] = "1ep",
    micro_batch_size: MicroBatch = None,
    device: Device = None,
    kernels: Annotated[
        str | None, typer.Option(metavar="K", help="Kernels: numpy or torch, on a GPU cudnn; chainer: Chainer's own.")
    ] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Write trace.jsonl: samples, images, loss by update.")] = False,
    noise_scale: Annotated[
        bool, typer.Option("--noise-scale", help="Measure the gradient noise scale: see the report.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="The same bits on any number of ranks; slower, see docs/training.md.")
    ] = False,
    profile: Annotated[
        int | None, typer.Option(min=1, metavar="U", help="Write profile.json of U updates, for chrome://tracing.")
    ] = None,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Draw report.html at the end, or leave it to kilobatch report.")
    ] = True,
    watchdog: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="End the run if it makes no progress for so long; 0: never.")
    ] = 120,
    data: Data = None,
    allow_code: AllowCode = False,
    set_by: Annotated[str | None, typer.Option("--set-by", hidden=True)] = None,  # who gave --set, for the origins
) -> None:
    """Train a recipe on N ranks. Starts them on this machine, or is one of those that mpiexec or srun started."""
    from trainers.runs.mpi_ranks import limit_threads

    limit_threads(workers, threads=1 if exact else None)
    from trainers.kernels import ask_for

    ask_for(kernels)
    from trainers.launch.request import TrainRequest
    from trainers.launch.start import train

    request = TrainRequest(
        recipe=recipe,
        workers=workers,
        cluster=cluster,
        overrides=tuple(overrides or ()),
        overrides_from=set_by,
        out=out,
        resume=resume,
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
    )
    raise typer.Exit(train(request))


@app.command()
def search(
    search: Annotated[str, typer.Argument(metavar="SEARCH", help="A name in configs/searches, or a path.")],
    workers: Annotated[int | None, typer.Option("-n", min=1, metavar="N", help="Ranks of all trials together.")] = None,
    hosts: Annotated[str | None, typer.Option(metavar="A,B:4", help="Their hosts: 4 on B, the rest on A.")] = None,
    cluster: ClusterName = None,
    device: Device = None,
    out: Annotated[Path | None, typer.Option("--out", help="Its folder; runs/search-NAME if left out.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only resume the search in --out; start none.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print space, first recipe and budget.")] = False,
    hang_after: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="End a trial that does no update for so long.")
    ] = 600.0,
    storage: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Storage of the study: sqlite, journal, a URL, grpc://H:P.")
    ] = None,
    study: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the study; several searches may share one.")
    ] = None,
    data: Data = None,
    allow_code: AllowCode = False,
    joined: Annotated[str | None, typer.Option("--joined", hidden=True)] = None,  # from rank 0 of a foreign launcher
) -> None:
    """Search for the best values of a recipe. Trials run side by side; the same command resumes a search."""
    from trainers.runs.mpi_ranks import limit_threads

    limit_threads(workers)
    from trainers.search.start import SearchRequest
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
        study=study,
    )
    raise typer.Exit(run_search(request))


@app.command(hidden=True)
def search_ranks(messages: Path, ranks_here: int | None = None, ranks_before: int = 0) -> None:
    """Serve as one of the ranks of a search's group; its supervisor starts this command."""
    from trainers.runs.mpi_ranks import launched_rank, launched_ranks, limit_threads
    from trainers.runs.rank_exits import hold_line

    hold_line(launched_rank())
    threads = limit_threads(ranks_here)
    from trainers.search.group_worker import run_worker

    run_worker(messages, ranks=launched_ranks() or 1, threads=threads, ranks_before=ranks_before)


@app.command(name="serve-study")
def serve_study(
    storage: Annotated[str, typer.Argument(metavar="STORAGE", help="A database's URL, or sqlite:////PATH.")],
    host: Annotated[str, typer.Option(help="Name or address to listen at.")] = "localhost",
    port: Annotated[int, typer.Option(help="Port to listen at.")] = 13000,
) -> None:
    """Serve a database of studies to many searches. Start those with `--storage grpc://HOST:PORT`."""
    from trainers.search.storage import serve_study as serve

    serve(storage, host=host, port=port)


@app.command()
def plan(
    recipe: Recipe,
    cluster: ClusterName = None,
    workers: Workers = None,
    micro_batch_size: MicroBatch = None,
    overrides: SetBoth = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Show how workers divide an update. Micro-batches, norm groups and memory, for every stage of the ramp."""
    from recipes.planning.planner import plan
    from recipes.reading.load import overrides_by_file
    from recipes.reports.plan_text import plan_text
    from trainers.launch.preflight import refuse_folder
    from trainers.launch.request import cluster_of
    from trainers.launch.vocabulary import vocabulary
    from trainers.training.build import model_sizes

    own, of_cluster = overrides_by_file(overrides or (), "cluster")
    opened = opened_recipe(recipe, own, data, allow_code)
    refuse_folder(opened.dataset, data)
    made = plan(
        recipe=opened.recipe,
        dataset=opened.dataset,
        cluster=cluster_of(cluster, workers=workers, vocabulary=vocabulary(), overrides=of_cluster)[0],
        workers=workers,
        micro_batch_size=micro_batch_size,
        model=model_sizes(opened.recipe, opened.dataset),
    )
    print(json.dumps(made.as_tree(), indent=2) if as_json else plan_text(made))


@app.command()
def evaluate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    checkpoint: Annotated[str, typer.Option(help="newest, best, or a name such as update-000060.")] = "newest",
    device: DeviceToScore = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Score a checkpoint of a run over each evaluation sample once."""
    from trainers.launch.score_run import score_run, scored_text

    scored = score_run(run, checkpoint=checkpoint, data=data, allow_code=allow_code, device=device)
    print(json.dumps(scored, indent=2) if as_json else scored_text(scored))


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs.")],
    out: Annotated[Path | None, typer.Option("-o", metavar="F.html", help="RUN/report.html if left out.")] = None,
) -> None:
    """Draw a page on a run, or on several beside each other. It is HTML and loads nothing from elsewhere."""
    from recipes.errors import InputRefused
    from recipes.reports.page import write_page
    from recipes.reports.record import open_run

    target = out or (runs[0] / "report.html" if len(runs) == 1 else Path("report.html"))
    opened = [open_run(run) for run in runs]
    try:
        write_page(opened, target)
    except OSError as error:
        raise InputRefused(f"{target} cannot be written: {error.strerror}; give another -o") from error
    print(f"wrote {target}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """What is installed here, what is broken, and what to do. Exit code 3 where nothing trains."""
    from trainers.launch.doctor import examine, print_diagnosis

    diagnosis = examine()
    print_diagnosis(diagnosis, as_json=as_json)
    raise typer.Exit(0 if diagnosis.trains_on_cpu else 3)


if __name__ == "__main__":
    main()
