"""A search whose ranks a foreign launcher has started: they are split into groups, and rank 0 starts the supervisor.

The supervisor is a separate process without MPI here, too; the only difference is that its groups run already. If one
rank fails, MPI ends all ranks, and the supervisor ends with rank 0; the same command resumes the search. In a transfer,
groups dismissed from the first search wait for the orders of the second.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from trainers.faults import end_all, say
from trainers.launch import ending_with_us, limit_threads, without_launcher
from trainers.run_folder import LOG
from trainers.search.group import Group, dismiss, group_folder
from trainers.stopping import STOP_FILE

_NOTICE_SECONDS = 1.0  # time for a launcher to end the ranks itself


def search_as_rank(folder: Path, *, phases: Sequence[Path], each: int, ranks: int) -> int:
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

    from trainers.device import place_here, sit_at
    from trainers.search.serve import met, serve  # imports Chainer, which takes seconds; the supervisor needs none
    from trainers.world import join_world

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


def joined_groups(told: str, folder: Path, *, each: int) -> list[Group]:
    """The groups of ranks that a foreign launcher started, for the supervisor.

    Args:
        told: value of `--joined`, RANKS:NAME: how many ranks there are, and the name of the groups' message folders.
        folder: of the search.
        each: ranks of a group.
    """
    ranks, _, talk = told.partition(":")
    return [Group(number, folder, lambda place, log: _Joined(), talk=talk) for number in range(int(ranks) // each)]


class _Joined:
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

    def first_to_leave(self) -> int | None:
        return None


def _supervisor(talk: str, ranks: int) -> subprocess.Popen[Any]:
    """Start the same command with `--joined`, as the supervisor; each of the two processes ends with the other."""
    command = [sys.executable, "-P", "-m", "kilobatch", *sys.argv[1:], "--joined", f"{ranks}:{talk}"]
    process = subprocess.Popen(ending_with_us(command), env=without_launcher(), stdin=subprocess.DEVNULL)

    def watch() -> None:
        if process.wait() < 0:
            say(f"kilobatch: the supervisor was ended by signal {-process.returncode}")
            end_all()

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
            say(f"kilobatch: a rank on {host} (process {neighbour}) has ended; the same command goes on")
            end_all()

    if neighbour != own and hasattr(os, "pidfd_open"):  # Linux
        threading.Thread(target=watch, name="neighbour", daemon=True).start()
    return over


def _print_into(log: Path) -> None:
    """Redirect this rank's stdout to its group's log; stderr still goes to the launcher."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    with open(log, "ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
