"""From a command line to a run: check everything, then start the ranks or join those that a launcher started."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused, Problem, RecipeError
from recipes.open import OpenedRecipe, open_cluster, open_recipe
from recipes.planning.planner import Plan, plan
from recipes.positions import parse_position
from trainers.lacks import refuse_unbuilt
from trainers.launch import STOP_FILE, LaunchError, Ranks, launched_by_us, launched_ranks, limit_threads, start_ranks
from trainers.run_folder import (
    LOG,
    METRICS,
    REPORT,
    dataset_facts,
    default_folder,
    require_same_recipe,
    require_usable,
)
from trainers.vocabulary import vocabulary

EXIT_INPUT, EXIT_FAILED, EXIT_STOPPED = 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class TrainRequest:
    """What `kilobatch train` was asked for, word for word."""

    recipe: str
    workers: int | None = None
    cluster: str | None = None
    overrides: tuple[str, ...] = ()
    out: Path | None = None
    resume: bool = False
    stop_after: str | None = None
    checkpoint_every: str = "1ep"
    micro_batch_size: int | None = None
    trace: bool = False
    allow_code: bool = False
    data: Path | None = None

    def arguments(self, folder: Path) -> list[str]:
        """The same request as a command line for the ranks, which learn their number from MPI."""
        words = ["train", self.recipe, "--out", str(folder), "--checkpoint-every", self.checkpoint_every]
        for flag, value in (
            ("--cluster", self.cluster),
            ("--stop-after", self.stop_after),
            ("--micro-batch-size", self.micro_batch_size),
            ("--data", self.data),
        ):
            words += [] if value is None else [flag, str(value)]
        for override in self.overrides:
            words += ["--set", override]
        flags = (("--resume", self.resume), ("--trace", self.trace), ("--allow-code", self.allow_code))
        return words + [flag for flag, given in flags if given]


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A request that has passed every check."""

    opened: OpenedRecipe
    plan: Plan
    stop_after_update: int | None
    checkpoint_every: float | str


def prepare(request: TrainRequest, *, workers: int) -> Prepared:
    """Check recipe, data set, cluster and options, and plan the run; nothing is written.

    Raises:
        RecipeError, PlanError, NotBuilt: the input is wrong.
    """
    words = vocabulary(allow_code=request.allow_code)
    opened = open_recipe(
        request.recipe,
        vocabulary=words,
        overrides=request.overrides,
        allow_code=request.allow_code,
        data_root=request.data,
    )
    refuse_unbuilt(opened.recipe, opened.dataset)
    cluster = open_cluster(request.cluster or "laptop", vocabulary=words)
    if request.cluster is None:  # as many workers as were asked for, on whatever machine this is
        cluster = replace(cluster, workers_per_node=max(workers, 1))
    made = plan(
        recipe=opened.recipe,
        dataset=opened.dataset,
        cluster=cluster,
        workers=workers,
        micro_batch_size=request.micro_batch_size,
    )
    if cluster.device != "cpu":
        raise refused("--cluster", f"{cluster.name} has device {cluster.device}", "training on a GPU is not built yet")

    def position(flag: str, word: str) -> float:
        try:
            at = parse_position(
                _number_or_word(word),
                num_train=opened.dataset.num_train,
                epochs=opened.recipe.epochs,
                updates_to_samples=lambda updates: made.timeline.samples_at(min(updates, made.timeline.num_updates)),
            )
        except ValueError as error:
            raise refused(flag, str(error), "write it as 30ep, 500up, 1.5Msp or 0.5run") from None
        if at <= 0:
            raise refused(flag, f"{word} is no time at all", "give more than 0")
        return at

    return Prepared(
        opened=opened,
        plan=made,
        stop_after_update=request.stop_after
        and made.timeline.first_update_at(position("--stop-after", request.stop_after)),
        checkpoint_every=(
            "update"
            if request.checkpoint_every == "update"
            else position("--checkpoint-every", request.checkpoint_every)
        ),
    )


def refused(flag: str, what: str, way_out: str) -> RecipeError:
    """A wrong option of the command line, as the error that a wrong recipe gives."""
    return RecipeError([Problem(file="command line", line=1, column=1, path=flag, what=what, way_out=way_out)])


def _number_or_word(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def check_folder(request: TrainRequest, folder: Path, prepared: Prepared) -> None:
    """Refuse a folder that holds something else.

    Raises:
        FolderRefused: it is not empty, or holds a run of another recipe.
    """
    require_usable(folder, resume=request.resume)
    require_same_recipe(folder, prepared.opened.tree, dataset_facts(prepared.opened.dataset))


def train(request: TrainRequest) -> int:
    """Run a request, as the parent of its ranks or as one of them; returns the exit code.

    Raises:
        InputRefused: before anything was started or written.
    """
    ranks = launched_ranks()
    if ranks is not None:
        return _join(request, ranks)
    workers = request.workers or 1
    prepared = prepare(request, workers=workers)
    folder = request.out or default_folder(prepared.opened.recipe.name)
    check_folder(request, folder, prepared)
    return _start(request, prepared, folder, workers)


def _start(request: TrainRequest, prepared: Prepared, folder: Path, workers: int) -> int:
    """Start the ranks here and show their progress until they end."""
    from rich.console import Console

    from trainers.progress import follow

    timeline, console = prepared.plan.timeline, Console()
    folder.mkdir(parents=True, exist_ok=True)
    began_ms = int(time.time() * 1000)
    started = start_ranks(workers, request.arguments(folder), log=folder / LOG)
    with _asking_to_stop(started, folder):
        code = follow(
            folder,
            started.process,
            timeline.num_updates,
            console,
            total_samples=timeline.num_samples,
            since_ms=began_ms,
        )
    code = _verdict(code, folder, began_ms, started)
    if code == 0:
        console.print(f"run: {folder}  report: {folder / REPORT}", markup=False, highlight=False, soft_wrap=True)
    return code


def _join(request: TrainRequest, ranks: int) -> int:
    """Train as one of the ranks that a launcher started."""
    threads = limit_threads()
    from mpi4py import MPI

    from trainers.faults import abort_on_exception

    world = MPI.COMM_WORLD
    abort_on_exception(world.rank)
    if world.size != ranks:
        raise LaunchError(
            f"{ranks} ranks were launched, but MPI joins {world.size}: the launcher and mpi4py use different MPIs; "
            "`kilobatch doctor` tells which MPI this is"
        )
    prepared, folder = _prepared_together(request, world)
    from trainers.train import TrainOptions, train_as_rank

    options = TrainOptions(
        folder=folder,
        resume=request.resume,
        stop_after_update=prepared.stop_after_update,
        checkpoint_every=prepared.checkpoint_every,
        trace=request.trace,
        threads=threads,
    )
    try:
        code = train_as_rank(prepared.opened, prepared.plan, options, mpi=world, launched_by_us=launched_by_us())
    except InputRefused as error:  # on this rank alone, perhaps: nobody may wait for it
        raise RuntimeError(str(error)) from error
    return 0 if launched_by_us() else code  # mpiexec calls any other code a failure; our parent reads the last line


def _prepared_together(request: TrainRequest, world: Any) -> tuple[Prepared, Path]:
    """What `prepare` gives and the run's folder; rank 0 checks first, so that a wrong input is told once."""
    prepared, folder, complaint = None, None, None
    if world.rank == 0:
        try:
            if request.workers not in (None, world.size):
                raise LaunchError(
                    f"-n {request.workers} was asked for and {world.size} ranks were launched; leave -n out"
                )
            prepared = prepare(request, workers=world.size)
            folder = request.out or default_folder(prepared.opened.recipe.name)
            if not launched_by_us():  # our parent has done so, and begun the log there
                check_folder(request, folder, prepared)
        except InputRefused as error:
            complaint = error
    told = world.bcast((folder, complaint and str(complaint)), root=0)
    if complaint is not None:
        raise complaint
    if told[1]:
        sys.exit(EXIT_INPUT)
    return prepared or prepare(request, workers=world.size), told[0]


class _asking_to_stop:
    """While ranks run: the first SIGINT or SIGTERM asks them to stop after their update, the second ends them."""

    def __init__(self, ranks: Ranks, folder: Path) -> None:
        self._ranks, self._folder, self._asked = ranks, folder, False

    def __enter__(self) -> None:
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._ranks.process.poll() is None:
            self._ranks.kill()

    def _note(self, number: int, frame: object) -> None:
        if self._asked:
            self._ranks.kill()
            return
        self._asked = True
        os.write(2, b"\nstopping after this update, with a checkpoint; once more to end at once\n")
        (self._folder / STOP_FILE).touch()


def _verdict(code: int, folder: Path, began_ms: int, ranks: Ranks) -> int:
    """The exit code of a run: good only if mpiexec says so and the ranks wrote the last line."""
    errors = ranks.errors()
    last = _last_line(folder / METRICS)
    ended = last.get("key") == "run_stop" and last["time_ms"] >= began_ms
    if code == 0 and ended and last["value"] != "failed":
        return EXIT_STOPPED if last["reason"] == "signal" else 0
    sys.stderr.write(errors)
    if code == 0:
        print("kilobatch: a rank left before the run ended, without an error of its own", file=sys.stderr)
    elif code not in (EXIT_INPUT, EXIT_FAILED):
        print(f"kilobatch: mpiexec ended with {code}: a rank was killed or crashed", file=sys.stderr)
    if code != EXIT_INPUT:
        print(
            f"kilobatch: the run failed; log: {folder / LOG}; "
            f"to go on from its newest checkpoint: --out {folder} --resume",
            file=sys.stderr,
        )
    return EXIT_INPUT if code == EXIT_INPUT else EXIT_FAILED


def _last_line(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, IndexError, ValueError):
        return {}
