"""A search whose ranks a foreign launcher has started: they are split into groups, and rank 0 starts the supervisor.

The supervisor is a separate process without MPI here, too; the only difference is that its groups run already. If one
rank fails, MPI ends all ranks, and the supervisor ends with rank 0; the same command resumes the search. In a transfer,
groups dismissed from the first search wait for the orders of the second.

The ranks of a group: they train one run after another, as the supervisor orders, in one MPI job.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from trainers.launch.join import join_world, train_together
from trainers.launch.request import TrainRequest
from trainers.runs.errors import EXIT_STOPPED, RunFailed, abort_all_ranks, print_and_drain
from trainers.runs.mpi_ranks import killed_with_parent, limit_threads, parent_is_gone, without_launcher
from trainers.runs.run_folder import LOG
from trainers.runs.stop_request import STOP_FILE, request_stop
from trainers.search.rank_groups import ANSWERS, ORDERS, Group, MessageReader, dismiss, group_folder, write_message
from trainers.training.device import place_here, sit_at

_NOTICE_SECONDS = 1.0  # time for a launcher to end the ranks itself


def run_launched_worker(folder: Path, *, phases: Sequence[Path], each: int, ranks: int) -> int:
    """Serve as a rank of a group, and on rank 0 as the supervisor's parent too; returns the supervisor's exit code.

    Bytes on the wire, beside those of `serve`: about 40 from each rank to each, 60 from rank 0 to all, a barrier, and
    those of MPI_Comm_split and of `place_here`.

    Args:
        folder: of the search.
        phases: folders of the searches to do, in order: the two of a transfer, else only `folder`.
        each: ranks of a group.
        ranks: how many the launcher started, at least `each`.
    """
    from mpi4py import MPI

    from trainers.launch.join import join_world
    from trainers.training.device import place_here, sit_at

    threads = limit_threads()
    world = join_world(ranks)
    sit_at(place_here(world)[0])
    talk = world.bcast(f"world-{time.time_ns()}", root=0)
    over = _watched_neighbour(world)
    supervisor = _supervisor(talk, ranks) if world.rank == 0 else None
    number, groups = world.rank // each, ranks // each
    team = world.Split(number if number < groups else MPI.UNDEFINED, world.rank)
    gone = (lambda: supervisor.poll() is not None) if supervisor else (lambda: False)
    for phase in phases if team != MPI.COMM_NULL else ():
        place = group_folder(phase, number)
        _print_into(place / LOG)
        serve(team, place / talk, threads=threads, gone=gone, stop=folder / STOP_FILE)
    code = None
    if supervisor is not None:
        code = supervisor.wait()
        for phase, other in product(phases, range(groups)):  # in case the supervisor ended before it dismissed them
            dismiss(group_folder(phase, other) / talk)
    met(world)
    over.set()
    return world.bcast(code, root=0)


def launched_groups(told: str, folder: Path, *, each: int) -> list[Group]:
    """The groups of ranks that a foreign launcher started, for the supervisor.

    Args:
        told: value of `--joined`, RANKS:NAME: how many ranks there are, and the name of the groups' message folders.
        folder: of the search.
        each: ranks of a group.
    """
    ranks, _, talk = told.partition(":")
    return [
        Group(number, folder, lambda place, log: _LaunchedRanks(), talk=talk) for number in range(int(ranks) // each)
    ]


class _LaunchedRanks:
    """The ranks of a foreign launcher, in place of a started job: they all end together, and the supervisor too."""

    def poll(self) -> int | None:
        return None

    def kill(self) -> None:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()  # the next line ends this process as well
        os.kill(os.getppid(), signal.SIGKILL)

    def errors(self, since: int = 0) -> str:
        return ""

    def num_errors(self) -> int:
        return 0

    def first_exit(self) -> int | None:
        return None


def _supervisor(talk: str, ranks: int) -> subprocess.Popen[Any]:
    """Start the same command with `--joined`, as the supervisor; each of the two processes ends with the other."""
    command = [sys.executable, "-P", "-m", "kilobatch", *sys.argv[1:], "--joined", f"{ranks}:{talk}"]
    process = subprocess.Popen(killed_with_parent(command), env=without_launcher(), stdin=subprocess.DEVNULL)

    def watch() -> None:
        if process.wait() < 0:
            print_and_drain(f"kilobatch: the supervisor was ended by signal {-process.returncode}")
            abort_all_ranks()

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
    return process


def _watched_neighbour(world: Any) -> threading.Event:
    """End all ranks once the next rank on this host has ended, unless the returned event is set by then.

    mpiexec does so by itself; srun leaves the others waiting unless it was given --kill-on-bad-exit.
    """
    over, host, own = threading.Event(), socket.gethostname(), os.getpid()
    pids = [pid for place, pid in world.allgather((host, own)) if place == host]
    neighbour = pids[(pids.index(own) + 1) % len(pids)]

    def watch() -> None:
        poll = select.poll()
        poll.register(os.pidfd_open(neighbour), select.POLLIN)
        poll.poll()
        if not over.wait(_NOTICE_SECONDS):  # else the search is over, and this rank is about to end, too
            print_and_drain(f"kilobatch: a rank on {host} (process {neighbour}) has ended; the same command goes on")
            abort_all_ranks()

    if neighbour != own and hasattr(os, "pidfd_open"):  # Linux
        threading.Thread(target=watch, name="neighbour", daemon=True).start()
    return over


def _print_into(log: Path) -> None:
    """Redirect this rank's stdout to its group's log; stderr still goes to the launcher."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())


_POLL_SECONDS = 0.01


def serve(
    mpi: Any, talk: Path, *, threads: int, gone: Callable[[], bool] = parent_is_gone, stop: Path | None = None
) -> None:
    """Train what the orders in a folder say, until one says that there are no more, or the supervisor has gone.

    All ranks of `mpi` call this together. A run that ends on all of them together, also with an error, is answered, and
    the next run may follow. An exception on one rank alone is raised and ends all ranks: the others may wait for it.

    Bytes on the wire, beside those of the runs: a barrier a run, and the order, about 300 and its texts, from the first
    rank to all.

    Args:
        mpi: communicator of the group's ranks.
        talk: folder of the orders and answers.
        threads: of BLAS and OpenMP, for the log.
        gone: whether the supervisor is known to have ended; asked on the first rank.
        stop: file that asks the whole search to stop, made when a signal reaches a rank; None: signals are only noted.
    """
    orders = _Orders(talk, gone) if mpi.rank == 0 else None
    with _signals_ask(stop):
        while (order := _next(mpi, orders)) is not None:
            orphaned = parent_is_gone if orders is None else orders.abandoned
            answer = _trained(TrainRequest.from_tree(order), mpi, threads, orphaned)
            gc.collect()  # a run's objects are in reference cycles
            if mpi.rank == 0:
                write_message(talk / ANSWERS, answer)


def run_worker(talk: Path, *, ranks: int, threads: int, before: int) -> None:
    """Be one of the ranks of a group that has an MPI job of its own; see `serve`.

    Args:
        ranks: of the group.
        before: ranks of earlier groups on the machine of its first rank, whose GPUs are theirs.
    """
    world = join_world(ranks)
    place, has_first_claim = place_here(world)
    sit_at(place + (before if has_first_claim else 0))
    serve(world, talk, threads=threads)


def met(mpi: Any) -> None:
    """A barrier of all ranks of `mpi` that sleeps: it leaves the core to others, for hours if need be.

    Bytes on the wire: those of MPI_Ibarrier, which carries no data.
    """
    request = mpi.Ibarrier()
    while not request.Test():
        time.sleep(_POLL_SECONDS / 4)


class _Orders:
    """The orders of the supervisor, as the first rank reads them."""

    def __init__(self, talk: Path, gone: Callable[[], bool]) -> None:
        self._inbox, self._gone = MessageReader(talk / ORDERS), gone
        self._waiting: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next run; None where there will be none."""
        while True:
            self._waiting += self._inbox.new()
            if self._waiting:
                return self._waiting.pop(0)["train"]
            if self.abandoned():
                return None
            time.sleep(_POLL_SECONDS)

    def abandoned(self) -> bool:
        """Whether the supervisor has ended."""
        self._waiting += self._inbox.new()
        return self._gone() or self._inbox.silent


def _next(mpi: Any, orders: _Orders | None) -> dict[str, Any] | None:
    order = None if orders is None else orders.next()
    met(mpi)
    return mpi.bcast(order, root=0)


def _trained(request: TrainRequest, mpi: Any, threads: int, orphaned: Callable[[], bool]) -> dict[str, Any]:
    """How the run ended, as the fields of an `RunEnd`."""
    try:
        code = train_together(request, mpi, threads=threads, served=True, orphaned=orphaned)
    except RunFailed as error:
        rank = getattr(error.__cause__ or error, "rank", None)
        return {"how": "failed", "reason": str(error), "rank": rank}
    except InputRefused as error:
        return {"how": "failed", "reason": str(error)}
    return {"how": "stopped" if code == EXIT_STOPPED else "success"}


@contextmanager
def _signals_ask(stop: Path | None) -> Iterator[None]:
    """Within, SIGINT and SIGTERM ask the search to stop and do not end a rank, for which the others would wait."""

    def note(number: int, frame: object) -> None:
        if stop is not None:
            request_stop(stop, "signal")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
