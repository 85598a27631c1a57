"""The ranks of a group: they train one run after another, as the supervisor requests, in one MPI job.

The supervisor starts each group itself (`run_worker`), or a foreign launcher has started all ranks at once
(`run_launched_worker`); both end in `worker_loop`.
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
from trainers.launch.join_ranks import join_world, train_together
from trainers.launch.request import TrainRequest
from trainers.runs.errors import EXIT_STOPPED, NotFinite, Overflow, RunFailed, abort_all_ranks, print_and_drain
from trainers.runs.mpi_ranks import killed_with_parent, limit_threads, parent_is_gone, without_launcher
from trainers.runs.run_folder import LOG
from trainers.runs.stop_request import STOP_FILE, request_stop, stop_signals
from trainers.search.rank_groups import REQUESTS, RESULTS, Group, MessageReader, dismiss, group_folder, write_message
from trainers.training.device import choose_gpu, local_rank_of

_POLL_SECONDS = 0.01
_LAUNCHER_SECONDS = 1.0  # time for a launcher to end the ranks itself


def run_worker(messages: Path, *, ranks: int, threads: int, ranks_before: int) -> None:
    """Run one of the ranks of a group that has an MPI job of its own; see `worker_loop`.

    Args:
        ranks: of the group.
        ranks_before: ranks of earlier groups on the machine of its first rank, whose GPUs are theirs.
    """
    world = join_world(ranks)
    local_rank, on_first_host = local_rank_of(world)
    choose_gpu(local_rank + (ranks_before if on_first_host else 0))
    worker_loop(world, messages, threads=threads)


def worker_loop(
    comm: Any,
    messages: Path,
    *,
    threads: int,
    supervisor_is_dead: Callable[[], bool] = parent_is_gone,
    stop: Path | None = None,
) -> None:
    """Train one requested run after another, until the supervisor dismisses the group or has ended.

    All ranks of `comm` call this together. If a run ends on all of them together, also with an error, the supervisor
    gets the result, and the next run may follow. An exception on one rank alone is raised and ends all ranks, because
    the others may wait for it.

    Bytes on the wire, beside those of the runs: a barrier a run, and the request, about 300 and its texts, from the
    first rank to all.

    Args:
        comm: communicator of the group's ranks.
        messages: folder of the requests and results.
        threads: of BLAS and OpenMP, for the log.
        supervisor_is_dead: called on the first rank.
        stop: file that asks the whole search to stop, made when a signal reaches a rank; None: signals have no effect.
    """
    requests = _Requests(messages, supervisor_is_dead) if comm.rank == 0 else None

    def ask_to_stop(number: int, frame: object) -> None:  # a rank goes on: the others would wait for it
        if stop is not None:
            request_stop(stop, "signal")

    with handling_signals(ask_to_stop):
        while True:
            tree = None if requests is None else requests.next()
            _sleeping_barrier(comm)
            tree = comm.bcast(tree, root=0)
            if tree is None:
                return
            orphaned = parent_is_gone if requests is None else requests.abandoned
            result = _train(TrainRequest.from_tree(tree), comm, threads, orphaned)
            gc.collect()  # a run's objects are in reference cycles
            if comm.rank == 0:
                write_message(messages / RESULTS, result)


def _sleeping_barrier(comm: Any) -> None:
    """A barrier of all ranks that leaves the core to other processes, for hours if need be.

    Bytes on the wire: those of MPI_Ibarrier, which carries no data.
    """
    barrier = comm.Ibarrier()
    while not barrier.Test():
        time.sleep(_POLL_SECONDS / 4)


class _Requests:
    """The supervisor's requests, as the first rank reads them."""

    def __init__(self, messages: Path, supervisor_is_dead: Callable[[], bool]) -> None:
        self._reader, self._supervisor_is_dead = MessageReader(messages / REQUESTS), supervisor_is_dead
        self._waiting: list[dict[str, Any]] = []

    def next(self) -> dict[str, Any] | None:
        """The next run; None where there will be none."""
        while True:
            self._waiting += self._reader.read()
            if self._waiting:
                return self._waiting.pop(0)["train"]
            if self.abandoned():
                return None
            time.sleep(_POLL_SECONDS)

    def abandoned(self) -> bool:
        """Whether the supervisor has ended."""
        self._waiting += self._reader.read()
        return self._supervisor_is_dead() or self._reader.writer_is_dead


def _train(request: TrainRequest, comm: Any, threads: int, orphaned: Callable[[], bool]) -> dict[str, Any]:
    """Train a run; returns how it ended, as the fields of a `RunEnd`."""
    try:
        code = train_together(request, comm, threads=threads, served=True, orphaned=orphaned)
    except RunFailed as error:
        cause = error.__cause__ or error
        if isinstance(cause, NotFinite | Overflow):
            return {"how": "diverged", "reason": str(error), "update": cause.update}
        rank = getattr(cause, "rank", None)
        return {"how": "failed", "reason": str(error), "rank": rank}
    except InputRefused as error:
        return {"how": "failed", "reason": str(error)}
    return {"how": "stopped" if code == EXIT_STOPPED else "success"}


@contextmanager
def handling_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Within, the signals that ask for a stop call `handler`."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def run_launched_worker(folder: Path, *, phases: Sequence[Path], each: int, ranks: int) -> int:
    """Run one of the ranks that a foreign launcher started; returns the supervisor's exit code.

    The ranks are split into groups. Rank 0 also starts the supervisor, which is a separate process without MPI here,
    too; the only difference is that its groups run already. If one rank fails, MPI ends all ranks, and the supervisor
    ends with rank 0; the same command resumes the search. In a transfer, groups dismissed from the first search wait
    for the requests of the second.

    Bytes on the wire, beside those of `worker_loop`: about 40 from each rank to each, 60 from rank 0 to all, a barrier,
    and those of MPI_Comm_split and of `local_rank_of`.

    Args:
        folder: of the search.
        phases: folders of the searches to do, in order: the two of a transfer, else only `folder`.
        each: ranks of a group.
        ranks: how many the launcher started, at least `each`.
    """
    from mpi4py import MPI

    threads = limit_threads(threads=1)
    world = join_world(ranks)
    choose_gpu(local_rank_of(world)[0])
    messages = world.bcast(f"world-{time.time_ns()}", root=0)
    search_ended = _watch_next_rank(world)
    supervisor = _start_supervisor(messages, ranks) if world.rank == 0 else None
    number, groups = world.rank // each, ranks // each
    group = world.Split(number if number < groups else MPI.UNDEFINED, world.rank)
    is_dead = (lambda: supervisor.poll() is not None) if supervisor else (lambda: False)
    for phase in phases if group != MPI.COMM_NULL else ():
        own = group_folder(phase, number)
        own.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        with open(own / LOG, "ab") as log:  # stderr still goes to the launcher
            os.dup2(log.fileno(), sys.stdout.fileno())
        worker_loop(group, own / messages, threads=threads, supervisor_is_dead=is_dead, stop=folder / STOP_FILE)
    code = None
    if supervisor is not None:
        code = supervisor.wait()
        for phase, other in product(phases, range(groups)):  # in case the supervisor ended before it dismissed them
            dismiss(group_folder(phase, other) / messages)
    _sleeping_barrier(world)
    search_ended.set()
    return world.bcast(code, root=0)


def launched_groups(joined: str, folder: Path, *, each: int) -> list[Group]:
    """The groups of ranks that a foreign launcher started, for the supervisor.

    Args:
        joined: value of `--joined`, RANKS:NAME: how many ranks there are, and the name of the groups' message folders.
        folder: of the search.
        each: ranks of a group.
    """
    ranks, _, messages = joined.partition(":")
    return [
        Group(number, folder, lambda *paths: _LaunchedRanks(), messages=messages)
        for number in range(int(ranks) // each)
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


def _start_supervisor(messages: str, ranks: int) -> subprocess.Popen[Any]:
    """Start the same command with `--joined`, as the supervisor; each of the two processes ends with the other."""
    command = [sys.executable, "-P", "-m", "kilobatch", *sys.argv[1:], "--joined", f"{ranks}:{messages}"]
    process = subprocess.Popen(killed_with_parent(command), env=without_launcher(), stdin=subprocess.DEVNULL)

    def watch() -> None:
        if process.wait() < 0:
            print_and_drain(f"kilobatch: the supervisor was ended by signal {-process.returncode}")
            abort_all_ranks()

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
    return process


def _watch_next_rank(world: Any) -> threading.Event:
    """End all ranks once the next rank on this host has ended, unless the returned event is set by then.

    mpiexec does so by itself; srun leaves the others waiting unless it was given --kill-on-bad-exit.
    """
    search_ended, host, own = threading.Event(), socket.gethostname(), os.getpid()
    pids = [pid for other, pid in world.allgather((host, own)) if other == host]
    next_pid = pids[(pids.index(own) + 1) % len(pids)]

    def watch() -> None:
        poll = select.poll()
        poll.register(os.pidfd_open(next_pid), select.POLLIN)
        poll.poll()
        if not search_ended.wait(_LAUNCHER_SECONDS):
            print_and_drain(f"kilobatch: a rank on {host} (process {next_pid}) has ended; the same command goes on")
            abort_all_ranks()

    if next_pid != own and hasattr(os, "pidfd_open"):  # Linux
        threading.Thread(target=watch, name="next rank", daemon=True).start()
    return search_ended
