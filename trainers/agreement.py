"""What the workers agree on once an update, by small messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.waiting import wait_for


def flags_and_losses(mpi: Any, flags: tuple[bool, ...], losses: list[float], *, most: int) -> tuple[list[bool], Any]:
    """Gather the flags and losses of all workers, who call this together.

    Bytes on the wire: 8 a flag and 8 for each of the `most` losses, from each worker to each.

    Args:
        flags: of this worker.
        losses: of its micro-batches.
        most: the largest number of losses on any worker.
    Returns:
        of each flag whether any worker has set it; the losses, float64 (workers, most), 0 where there is none.
    """
    count = len(flags)
    own = np.zeros(count + most)
    own[:count], own[count : count + len(losses)] = flags, losses
    parts = np.empty((mpi.size, own.size))
    wait_for([mpi.Iallgather(own, parts)])
    return parts[:, :count].any(axis=0).tolist(), parts[:, count:]


def first_of(mpi: Any, told: str | None) -> tuple[int, str] | None:
    """The first rank whose `told` is not None, and its text; None where there is none. All ranks call this together.

    Bytes on the wire: one from each rank to each; then, if there is one, its text from that rank to all.
    """
    flags = np.empty(mpi.size, dtype=np.int8)
    mpi.Allgather(np.array([told is not None], dtype=np.int8), flags)
    if not flags.any():
        return None
    rank = int(np.flatnonzero(flags)[0])
    return rank, mpi.bcast(told, root=rank)
