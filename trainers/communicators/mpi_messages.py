"""MPI messages that leave the core to other threads while they wait, and small ones by which all ranks agree."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from trainers.runs.cores import core_quota, within_quotas
from trainers.runs.stack_dump import waiting_for_ranks

_SPINS_SECONDS = 2e-4  # a small message of a fast link is there before
_SPINS_SECONDS_BESIDE = 2e-5  # of a thread beside the main one, which needs the core
_PART_OF_WAIT = 1 / 5  # that a sleep may add to it
_LONGEST_SLEEP_SECONDS = 1e-3  # at 1 Gbit/s a socket's buffer holds what arrives in the meantime
_PIECE_BYTES = 32768
_PIECES_AHEAD = (2, 128)  # handed to MPI at a time, at least and at most; sockets hold some more
_FAST_SECONDS = 1e-3  # between two pieces
_PIECES_SLEPT = 2  # of a slow link: to look at each one that comes takes a fifth more of processor time
_LONGEST_PIECE_SECONDS = 4e-3  # slept for them
_BARRIER_POLLS = 20  # before it sleeps: some microseconds
_BARRIER_SLEEPS_SECONDS = (5e-5, 2e-4)  # the first and the longest


def wait_for(requests: list[Any], *, since: float | None = None, longest: float = _LONGEST_SLEEP_SECONDS) -> None:
    """Return when all of these requests of mpi4py are done.

    MPI waits by polling, at the cost of a core: on a slow link, one that the backward pass needs. This polls without a
    pause for a fifth of a millisecond, on a thread beside the main one for a tenth of that, and then sleeps between, a
    fifth of the time waited so far.

    Args:
        since: `time.perf_counter()` at which the wait began; now by default.
        longest: seconds of a sleep.
    """
    from mpi4py import MPI

    began = time.perf_counter() if since is None else since
    beside = threading.current_thread() is not threading.main_thread()
    spins = _SPINS_SECONDS_BESIDE if beside else _SPINS_SECONDS
    while not MPI.Request.Testall(requests):
        waited = time.perf_counter() - began
        if waited > spins:
            time.sleep(min(waited * _PART_OF_WAIT, longest))


def barrier(mpi: Any, sleeps: Callable[[], bool] = lambda: True) -> None:
    """MPI_Barrier that leaves the core to others while it waits: for a thread beside one that computes, or few cores.

    It polls twenty times and then sleeps between, 50 us at first and 200 at most. A barrier moves no data that would
    have to be kept moving, so it can sleep earlier than `wait_for`. Measured: EXPERIMENTS.md.

    Args:
        sleeps: called before each sleep; once it returns False, no other thread needs the core, and MPI polls.
    """
    request = mpi.Ibarrier()
    for _ in range(_BARRIER_POLLS):
        if request.Test():
            return
    pause, longest = _BARRIER_SLEEPS_SECONDS
    while sleeps():
        time.sleep(pause)
        pause = min(2 * pause, longest)
        if request.Test():
            return
    request.Wait()


def num_cores(node: Any) -> int:
    """Cores that the ranks of a node may use, all together; they call this together.

    Bytes on the wire, within the node: about 40, and 2 a core, from each rank to each.
    """
    each = node.allgather((os.sched_getaffinity(0), core_quota()))
    return within_quotas(set().union(*(cores for cores, _ in each)), (quota for _, quota in each))


def ranks_here(mpi: Any) -> frozenset[int]:
    """The ranks of a communicator that are on this one's host; all of them call this together.

    Bytes on the wire: those of MPI_Comm_split_type, and within the host 8 from each rank to each.
    """
    from mpi4py import MPI

    node = mpi.Split_type(MPI.COMM_TYPE_SHARED, mpi.rank)
    try:
        return frozenset(node.allgather(mpi.rank))
    finally:
        node.Free()


def send_and_receive(
    mpi: Any, sent: np.ndarray, dest: int, received: np.ndarray, source: int, *, within_host: bool
) -> None:
    """MPI_Sendrecv that leaves the core to others while it waits. Bytes on the wire: those of `sent`.

    Args:
        within_host: both messages stay on this host, and `dest` and `source` say so too. They are then copies in
            memory, which MPI makes while it is polled: whole, once both neighbours have come.
    """
    if within_host:
        token = np.zeros(2, np.uint8)
        wait_for([mpi.Irecv(token[:1], source), mpi.Isend(token[1:], dest)])
        copy_for([mpi.Irecv(received, source), mpi.Isend(sent, dest)])
    else:
        _in_pieces(mpi, sent, dest, received, source)


def copy_for(requests: list[Any]) -> None:
    """Return when messages within this host are done: MPI makes the copies while it is polled, so there is no sleep.

    A rank that waits for a core, or the backward pass, gets it between two polls.
    """
    from mpi4py import MPI

    while not MPI.Request.Testall(requests):
        os.sched_yield()


def _in_pieces(mpi: Any, sent: np.ndarray, dest: int, received: np.ndarray, source: int) -> None:
    """The same with such a wait, in pieces that leave room between them. Bytes on the wire: those of `sent`.

    A small message of another thread, such as that of the loss, goes over the same connection and waits until what has
    been handed to MPI before has left: a piece is handed over when one has come in, on a fast link up to 128 at a time.
    Measured at 100 Mbit/s: 14 ms instead of 148 for a small message beside one of 2 MB, at a bandwidth that was a tenth
    to a fifth lower on a busy machine.
    """
    receives = [mpi.Irecv(piece, source) for piece in _pieces(received)]
    sends, unsent = [], list(_pieces(sent))
    since = last = time.perf_counter()
    min_ahead, max_ahead = _PIECES_AHEAD
    ahead, longest = min_ahead, _LONGEST_SLEEP_SECONDS
    for number in range(max(len(receives), len(unsent))):
        while len(sends) < min(number + ahead, len(unsent)):
            sends.append(mpi.Isend(unsent[len(sends)], dest))
        wait_for(receives[number : number + 1], since=since, longest=longest)
        now = time.perf_counter()
        longest = _PIECES_SLEPT * (now - since) / (number + 1)
        longest = min(max(longest, _LONGEST_SLEEP_SECONDS), _LONGEST_PIECE_SECONDS)
        ahead = min(2 * ahead, max_ahead) if now - last < _FAST_SECONDS else max(ahead // 2, min_ahead)
        last = now
    wait_for(sends, since=since)


def _pieces(values: np.ndarray) -> Iterator[np.ndarray]:
    length = _PIECE_BYTES // values.itemsize
    return (values[start : start + length] for start in range(0, len(values), length))


def total_over_ranks(mpi: Any, value: float) -> float:
    """The sum of a number that is not negative over all ranks, the same bits on all, with such a wait.

    Bytes on the wire: 8 from each rank to each.
    """
    values = np.empty(mpi.size)
    with waiting_for_ranks():
        wait_for([mpi.Iallgather(np.array([value]), values)])
    return math.fsum(values)


def gather_flags_and_losses(
    mpi: Any, flags: tuple[bool, ...], losses: list[float], *, max_losses: int
) -> tuple[list[bool], Any]:
    """Gather the flags and losses of all workers, who call this together.

    Bytes on the wire: 8 a flag and 8 for each of the `max_losses` losses, from each worker to each.

    Args:
        losses: of this worker's micro-batches.
        max_losses: the largest number of losses on any worker.
    Returns:
        of each flag whether any worker has set it; the losses, float64 (workers, max_losses), 0 where there is none.
    """
    count = len(flags)
    own = np.zeros(count + max_losses)
    own[:count], own[count : count + len(losses)] = flags, losses
    parts = np.empty((mpi.size, own.size))
    with waiting_for_ranks():
        wait_for([mpi.Iallgather(own, parts)])
    return parts[:, :count].any(axis=0).tolist(), parts[:, count:]


def first_message(mpi: Any, text: str | None) -> tuple[int, str] | None:
    """The first rank whose `text` is not None, and its text; None where there is none. All ranks call this together.

    Bytes on the wire: one from each rank to each; then, if there is one, its text from that rank to all.
    """
    flags = np.empty(mpi.size, dtype=np.int8)
    mpi.Allgather(np.array([text is not None], dtype=np.int8), flags)
    if not flags.any():
        return None
    rank = int(np.flatnonzero(flags)[0])
    return rank, mpi.bcast(text, root=rank)
