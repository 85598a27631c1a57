"""`kilobatch rehearse`: a large run without its model."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from trainers.commands.options import (
    EXIT_FOUND,
    AllowCode,
    ClusterName,
    Data,
    Exact,
    Json,
    MicroBatch,
    Recipe,
    SetBoth,
    opened_recipe,
    print_json,
)

if TYPE_CHECKING:
    from recipes.planning.planner import Plan
    from recipes.planning.rehearsal import Failure
    from recipes.schema import Dataset

_MEASURED_FILES = 500
_WRITTEN = "write it as 3@epoch12: the rank, then a place such as epoch12, 12ep, 500up, 1.5Msp or 0.5run"


def rehearse(
    recipe: Recipe,
    workers: Annotated[
        int | None, typer.Option("-n", "--workers", min=1, metavar="N", help="Workers; all of the cluster's.")
    ] = None,
    cluster: ClusterName = None,
    fail: Annotated[
        list[str] | None,
        typer.Option("--fail", metavar="3@epoch12", help="Rank 3 dies at epoch 12, or 500up, 0.5run. May be repeated."),
    ] = None,
    restart_on: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Workers after a failure; as many as before if left out.")
    ] = None,
    checkpoint_every: Annotated[str, typer.Option(metavar="1ep", help="As of kilobatch train.")] = "1ep",
    image_bytes: Annotated[
        float | None,
        typer.Option(min=1, metavar="B", help="Bytes of an image's file; left out, those below --data are measured."),
    ] = None,
    images_per_second: Annotated[
        float | None, typer.Option(min=1, metavar="X", help="Images that all workers train a second.")
    ] = None,
    micro_batch_size: MicroBatch = None,
    overrides: SetBoth = None,
    exact: Exact = None,
    data: Data = None,
    allow_code: AllowCode = False,
    as_json: Json = False,
) -> None:
    """Go through a large run without its model. Order, rates, checkpoints, restarts and storage, in seconds.

    Every sample of the run is drawn for every worker and counted. Exit code 0: all holds, 5: a fault was found.
    """
    from recipes.errors import InputRefused, refused
    from recipes.planning.forecast import forecast
    from recipes.planning.rehearsal import Storage, least_memory
    from recipes.planning.rehearsal import rehearse as run
    from recipes.planning.timing import NoForecast
    from recipes.reading.load import overrides_by_file
    from recipes.reports.rehearsal import rehearsal_text, rehearsed_time_text
    from trainers.launch.model_costs import model_of
    from trainers.launch.preflight import refuse_folder
    from trainers.launch.request import checkpoint_every_of, cluster_of, planned
    from trainers.launch.vocabulary import vocabulary
    from trainers.runs.memory import installed_bytes

    own, of_cluster = overrides_by_file(overrides or ())
    opened = opened_recipe(recipe, own, data, allow_code, looks=True)
    refuse_folder(opened.dataset, data)
    if restart_on is not None and not fail:
        raise refused("--restart-on", "is for a run in which a rank dies", "name it: --fail 3@epoch12")
    most = workers and max(workers, restart_on or 0)
    where, _ = cluster_of(cluster, workers=most, vocabulary=vocabulary(), overrides=of_cluster)
    how = {"model": model_of(opened), "exact": exact, "micro_batch_size": micro_batch_size}
    made = then = planned(opened, where, workers=workers, **how)
    if restart_on is not None:
        then = planned(opened, where, workers=restart_on, **how)
    every = checkpoint_every_of(checkpoint_every, made)
    failures = failures_of(fail or [], made, then)
    needed, installed = least_memory(made), installed_bytes()
    if installed is not None and needed > installed:
        what = f"to count the samples of this run takes {needed:,} bytes of memory, and this machine has {installed:,}"
        raise InputRefused(f"{what}; rehearse it on a larger machine, or with fewer epochs: --set epochs=2")
    reads, measured = _files_of(opened.dataset, look=data is not None)
    known = Storage(
        reads=reads,
        image_bytes=measured if image_bytes is None else image_bytes,
        images_per_second=images_per_second,
        workers_per_node=None if cluster is None else where.workers_per_node,
    )
    with _progress() as tell:
        rehearsed = run(made, checkpoint_every=every, failures=failures, restart_plan=then, storage=known, tell=tell)
    try:
        seconds = rehearsed.seconds(forecast(made), forecast(then))
    except NoForecast as error:
        seconds, time = None, f"time: not planned: {error}"
    else:
        time = rehearsed_time_text(*seconds, len(rehearsed.restarts))
    if as_json:
        names = ("seconds", "seconds_with_failures")
        more = dict.fromkeys(names) if seconds is None else dict(zip(names, seconds, strict=True))
        print_json(rehearsed.as_tree() | more)
    else:
        print(f"{rehearsal_text(rehearsed)}\n{time}")
    raise typer.Exit(0 if rehearsed.holds else EXIT_FOUND)


def failures_of(texts: list[str], made: Plan, then: Plan) -> list[Failure]:
    """The failures of `--fail R@WHERE`, in the order of time.

    Args:
        texts: as they were typed.
        made: the plan of the run, whose ranks the first failure may name.
        then: that after a failure, whose ranks the others may name.
    Raises:
        RecipeError: not a rank and a place, a rank that is not there, or a place after the end of the run.
    """
    from recipes.errors import refused
    from recipes.planning.rehearsal import Failure
    from recipes.schema.positions import first_sample_at
    from trainers.launch.request import epochs_of

    timeline, found = made.timeline, []
    for text in texts:
        match = re.fullmatch(r"\s*([0-9]{1,9})\s*@\s*(epoch|update)?\s*(.+?)\s*", text)
        if match is None:
            raise refused("--fail", f"{text!r} is not a rank and a place", _WRITTEN)
        unit = {"epoch": "ep", "update": "up", None: ""}[match[2]]
        epoch = epochs_of("--fail", match[3] + unit, made)
        sample = first_sample_at(epoch, timeline.num_train)
        if sample >= timeline.num_samples:
            end = f"its last update ends at epoch {timeline.epoch_at(timeline.num_updates):.6g}"
            raise refused("--fail", f"{text} lies after the end of the run: {end}", "name an earlier place")
        found.append((Failure(rank=int(match[1]), update=timeline.update_of(sample)), text))
    found.sort(key=lambda pair: pair[0].update)
    for number, (failure, text) in enumerate(found):
        there = then.workers if number else made.workers
        if failure.rank >= there:
            after = " after the failure before" if number else ""
            raise refused(
                "--fail", f"{text}: there is no rank {failure.rank}{after}", f"ranks go from 0 to {there - 1}"
            )
    return [failure for failure, _ in found]


def _files_of(dataset: Dataset, *, look: bool) -> tuple[bool, float | None]:
    """Whether images are read while a run goes on, and the mean size of evenly spaced ones, where it is known.

    Args:
        look: refuse a data set that cannot be opened; else it is opened only where its own folder is here.
    Raises:
        DataRefused: its files cannot be read, with `look`.
    """
    from recipes.schema.vocabulary import Unbuilt
    from trainers.launch.preflight import DataRefused

    unknown = getattr(dataset.reader, "reads_folder", True), None
    is_here = dataset.root is not None and os.path.exists(dataset.root)
    if not look and (not is_here or isinstance(dataset.reader, Unbuilt)):
        return unknown
    from trainers.datasets.samples import SamplesInMemory

    try:
        samples = dataset.reader.open(dataset.root, "train")
        if not hasattr(samples, "encoded"):
            return not isinstance(samples, SamplesInMemory), None
        count = min(len(samples), _MEASURED_FILES)
        sizes = (len(samples.encoded(number * len(samples) // count)) for number in range(count))
        return True, sum(sizes) / count
    except (LookupError, OSError, ValueError) as error:
        if not look:
            return unknown
        what = f"data set {dataset.name}: {error}"
        raise DataRefused(f"{what}; correct --data, or leave it out and give --image-bytes") from error


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A line on a terminal that says how many epochs are checked."""
    from rich.console import Console

    with Console(stderr=True).status("drawing the samples") as status:
        yield lambda done, of: status.update(f"drawing the samples: {done:,} of {of:,} epochs")
