"""The ranks of a group: they train one run after another, as the supervisor requests, in one MPI job.

The supervisor starts a group, or a foreign launcher starts the ranks of all of them (`run_launched_worker`).
"""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from recipes.errors import InputRefused
from trainers.communicators.mpi_messages import wait_for
from trainers.launch.join_ranks import join_world, train_together
from trainers.launch.request import TrainRequest
from trainers.runs.errors import EXIT_STOPPED, NotFinite, Overflow, RunFailed, abort_all_ranks, print_and_drain
from trainers.runs.mpi_ranks import killed_with_parent, limit_threads, parent_is_gone, without_launcher
from trainers.runs.run_folder import LOG
from trainers.runs.stop_request import STOP_FILE, handling_signals, request_stop
from trainers.runs.watchdog import watch_next_rank
from trainers.search.group import ANSWERS, ORDERS, MessageReader, dismiss, group_folder, write_message
from trainers.search.placement import place
from trainers.training.device import choose_gpu, chosen_gpu, local_rank_of

_POLL_SECONDS = 0.005  # ranks wait for hours if need be, and leave the core to other processes


def worker_loop(comm: Any, messages: Path, *, threads: int, stop: Path | None = None) -> None:
    """Train one requested run after another, until the supervisor dismisses the group or has ended.

    All ranks of `comm` call this together. First the supervisor gets each rank's host and GPU. If a run ends on all of
    them together, also with an error, the supervisor gets the result, and the next run may follow. An exception on one
    rank alone is raised and ends all ranks, because the others may wait for it.

    Bytes on the wire: 60 from each rank to the first one; a run, 300 and the texts of its request from that one to all.

    Args:
        comm, messages: communicator of the group's ranks, and folder of their messages.
        threads: of BLAS and OpenMP, for the log.
        stop: file that asks the whole search to stop, made when a signal reaches a rank; None: signals have no effect.
    """
    requests = MessageReader(messages / ORDERS)  # on the first rank

    def is_orphan() -> bool:
        return parent_is_gone() or (comm.rank == 0 and requests.writer_is_dead)

    gpu = chosen_gpu()
    places = comm.gather(socket.gethostname() + (f" (GPU {gpu})" if gpu else ""), root=0)
    if comm.rank == 0:
        write_message(messages / ANSWERS, {"joined": places})
    with handling_signals(lambda *_: stop and request_stop(stop, "signal")):  # this rank goes on: others wait for it
        while True:
            message = None
            while comm.rank == 0 and (message := requests.next()) is None and not is_orphan():
                time.sleep(_POLL_SECONDS)
            wait_for([comm.Ibarrier()], longest=_POLL_SECONDS)
            tree = comm.bcast(message and message["train"], root=0)
            if tree is None:
                return
            result = _train(TrainRequest.from_tree(tree), comm, threads, is_orphan)
            gc.collect()  # a run's objects are in reference cycles
            if comm.rank == 0:
                write_message(messages / ANSWERS, result)


def _train(request: TrainRequest, comm: Any, threads: int, is_orphan: Callable[[], bool]) -> dict[str, Any]:
    """Train a run; returns how it ended, as the fields of a `RunEnd`."""
    try:
        code = train_together(request, comm, threads=threads, served=True, is_orphan=is_orphan)
    except (RunFailed, InputRefused) as error:
        cause = error.__cause__ or error
        if isinstance(cause, NotFinite | Overflow):
            return {"how": "diverged", "reason": str(error), "update": cause.update}
        return {"how": "failed", "reason": str(error)}
    return {"how": "stopped" if code == EXIT_STOPPED else "success"}


def run_launched_worker(folder: Path, *, each: int, ranks: int) -> int:
    """Run one of the ranks that a foreign launcher started; returns the supervisor's exit code.

    The ranks are split into groups. Rank 0 also starts the supervisor, a separate process without MPI here, too. If one
    rank fails, all ranks end, and the supervisor ends with rank 0; the same command resumes the search.
    Bytes on the wire, beside those of `worker_loop`: about 80 from each rank to each.

    Args:
        folder: of the search.
        each, ranks: of a group, and how many the launcher started, at least `each`.
    """
    threads = limit_threads(threads=1)
    world = join_world(ranks)

    from mpi4py import MPI

    choose_gpu(local_rank_of(world))
    messages = world.bcast(f"world-{time.time_ns()}", root=0)
    search_ended = watch_next_rank(world, "the same command goes on")
    of_groups = [group_folder(folder, number) / messages for number in range(ranks // each)]
    supervisor = _start_supervisor(f"{ranks}:{messages}", of_groups) if world.rank == 0 else None
    number = _group_of(world.rank, world.allgather(socket.gethostname()), each=each)
    group = world.Split(MPI.UNDEFINED if number is None else number, world.rank)
    if number is not None:
        own = of_groups[number]
        own.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        with open(own.with_name(LOG), "ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())  # stderr still goes to the launcher
        worker_loop(group, own, threads=threads, stop=folder / STOP_FILE)
    code = supervisor and supervisor.wait()
    wait_for([world.Ibarrier()], longest=_POLL_SECONDS)
    search_ended.set()
    return world.bcast(code, root=0)


def _group_of(rank: int, hosts: Sequence[str], *, each: int) -> int | None:
    """The group of a rank, whole on one host if it fits; None for a rank that is left over.

    >>> [_group_of(rank, ["a", "b", "a", "b", "b"], each=2) for rank in range(5)]
    [0, 1, 0, 1, None]
    """
    own = hosts[:rank].count(hosts[rank])  # its number on its host
    placed = place(Counter(hosts), each=each, groups=len(hosts) // each)
    numbers = [number for number, group in enumerate(placed) for host in group if host == hosts[rank]]
    return numbers[own] if own < len(numbers) else None


def _start_supervisor(joined: str, of_groups: Sequence[Path]) -> subprocess.Popen[Any]:
    """Start the same command with `--joined`, as the supervisor; when it ends, so do the groups of these messages."""
    command = [sys.executable, "-P", "-m", "kilobatch", *sys.argv[1:], "--joined", joined]
    process = subprocess.Popen(killed_with_parent(command), env=without_launcher(), stdin=subprocess.DEVNULL)

    def watch() -> None:
        if process.wait() < 0:
            print_and_drain(f"kilobatch: the supervisor was ended by signal {-process.returncode}")
            abort_all_ranks()
        for messages in of_groups:  # in case it ended before it dismissed them
            dismiss(messages)

    threading.Thread(target=watch, daemon=True).start()
    return process
