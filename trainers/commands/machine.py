"""`kilobatch doctor` and `kilobatch probe`: what this machine can do, and how fast."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainers.commands.options import (
    NAME,
    AllowCode,
    Data,
    Device,
    Json,
    Set,
    Workers,
    opened_recipe,
    print_json,
    written,
)

if TYPE_CHECKING:
    from trainers.tasks.probe import ProbeRequest


def doctor(as_json: Json = False) -> None:
    """What is installed here, what is broken, and what to do. Exit code 3 where nothing trains."""
    from trainers.runs.errors import EXIT_FAILED
    from trainers.tasks.doctor import examine, print_diagnosis

    diagnosis = examine()
    print_diagnosis(diagnosis, as_json=as_json)
    raise typer.Exit(0 if diagnosis.trains_on_cpu else EXIT_FAILED)


def probe(
    recipe: Annotated[str, typer.Argument(metavar="[RECIPE]", help=NAME)] = "digits/large_batch",
    workers: Workers = None,
    seconds: Annotated[
        float, typer.Option(min=1, max=240, metavar="S", help="Seconds of training in all; the rest takes as long.")
    ] = 60,
    out: Annotated[Path, typer.Option("-o", metavar="FILE", help="The cluster's file to write.")] = Path("probed.yaml"),
    device: Device = None,
    overrides: Set = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Measure this machine. Training of a recipe, links and disk, as a cluster's file for `kilobatch plan`.

    Under mpiexec or srun, also on several hosts, it adds what these ranks reach together to the file that -o names.
    """
    from trainers.runs.mpi_ranks import launched_ranks, limit_threads, threads_per_rank

    ranks = launched_ranks()
    if ranks is not None:
        limit_threads(kernels_share_cores=True)  # before NumPy is imported
    from recipes.errors import InputRefused
    from trainers.tasks.probe import ProbeRequest, cluster_text
    from trainers.tasks.probe import probe as measure

    request = ProbeRequest(
        recipe=recipe,
        overrides=tuple(overrides or ()),
        data=data,
        allow_code=allow_code,
        device=device,
        workers=workers or threads_per_rank(1),
        seconds=seconds,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    if ranks is not None:  # under mpiexec or srun: what these ranks reach together
        return _add_ranks(out, request, ranks)
    if out.suffix != ".yaml" or out.exists():
        what = "exists, and nothing is overwritten" if out.exists() else "is no .yaml file"
        raise InputRefused(f"-o {out}: {what}; give another")
    _require_writable(out)
    tree = measure(request, opened_recipe(recipe, overrides, data, allow_code))
    tree["name"] = out.stem
    written(lambda: [_write_new(out, cluster_text(tree))], "-o")
    if as_json:
        print_json(tree)
    else:
        file = str(out) if out.parent != Path() else f"./{out}"
        print(f"kilobatch plan {quote(recipe)} --cluster {quote(file)} now knows this machine")


def _require_writable(file: Path) -> None:
    """Refuse a place for a file before anything is measured for it."""
    from recipes.errors import InputRefused

    if not (file.parent.is_dir() and os.access(file.parent, os.W_OK | os.X_OK)):
        what = "cannot be written" if file.parent.is_dir() else "is no folder"
        raise InputRefused(f"-o {file}: {file.parent} {what}; give another place")


def _write_new(file: Path, text: str) -> Path:
    with file.open("x", encoding="utf-8") as new:
        new.write(text)
    return file


def _add_ranks(file: Path, request: ProbeRequest, ranks: int) -> None:
    """One of the ranks that measure together; rank 0 adds that to a cluster's file."""
    from recipes.errors import InputRefused
    from recipes.reports.wording import counted
    from trainers.launch.join_ranks import join_world
    from trainers.runs.errors import EXIT_INPUT
    from trainers.tasks.probe import cluster_text, measure_as_rank, with_ranks

    world = join_world(ranks)
    before, refusal = {}, None
    if world.rank == 0:
        try:
            before = _cluster_tree(file)
        except InputRefused as error:
            refusal = error
    if world.bcast(refusal is not None):
        raise refusal or typer.Exit(EXIT_INPUT)
    measured = measure_as_rank(request, world)
    if world.rank == 0:
        tree = with_ranks(before, measured, request.recipe)
        new = file.with_suffix(".new")
        written(lambda: [_write_new(new, cluster_text(tree)).replace(file)], "-o")
        nodes = counted(measured["nodes"], "node")
        print(f"{file}: what {measured['workers']} ranks on {nodes} reach together", flush=True)


def _cluster_tree(file: Path) -> dict[str, Any]:
    """What a cluster's file says, to which measurements can be added; raises InputRefused."""
    import yaml

    from recipes import open_cluster
    from recipes.errors import InputRefused
    from trainers.launch.vocabulary import vocabulary

    way_out = f"write it first on one host, without mpiexec: kilobatch probe RECIPE -n N -o {file}"
    if not file.exists():
        raise InputRefused(f"-o {file}: no such file to add what these ranks reach together to; {way_out}")
    _require_writable(file)
    open_cluster(str(file.absolute()), vocabulary=vocabulary())
    tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    if not tree.get("hardware"):
        raise InputRefused(f"-o {file}: has no `hardware` to add what these ranks reach together to; {way_out}")
    return tree


def probe_ranks(asked: str) -> None:
    """One of the ranks that `probe` starts, with its request as JSON; rank 0 prints what they measured."""
    from trainers.runs.mpi_ranks import launched_ranks, limit_threads

    limit_threads(kernels_share_cores=True)  # before NumPy is imported
    from trainers.launch.join_ranks import join_world
    from trainers.tasks.probe import ProbeRequest, measure_as_rank

    tree = json.loads(asked)
    tree["data"] = tree["data"] and Path(tree["data"])
    world = join_world(launched_ranks() or 1)
    measured = measure_as_rank(ProbeRequest(**tree), world)
    if world.rank == 0:
        print(json.dumps(measured), flush=True)
