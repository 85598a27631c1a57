"""What the workers tell each other once an update, in small messages."""

from __future__ import annotations

from typing import Any

import numpy as np

from trainers.waiting import wait_for


def flags_and_losses(mpi: Any, flags: tuple[bool, ...], losses: list[float], *, most: int) -> tuple[list[bool], Any]:
    """Bring flags and losses of all workers together, who call this together.

    Bytes on the wire: 8 a flag and 8 for each of the `most` losses, from each worker to each.

    Args:
        flags: of this worker.
        losses: of its micro-batches.
        most: losses that a worker may have.
    Returns:
        which flags are set on any worker, and the losses, float64 (workers, most), 0 where there are none.
    """
    count = len(flags)
    own = np.zeros(count + most)
    own[:count], own[count : count + len(losses)] = flags, losses
    parts = np.empty((mpi.size, own.size))
    wait_for([mpi.Iallgather(own, parts)])
    return parts[:, :count].any(axis=0).tolist(), parts[:, count:]


def first_of(mpi: Any, told: str | None) -> tuple[int, str] | None:
    """The first rank that has something to tell, and what; None where none has.

    Bytes on the wire: one from each rank to each; where one has something, those of the text from it to all.
    """
    flags = np.empty(mpi.size, dtype=np.int8)
    mpi.Allgather(np.array([told is not None], dtype=np.int8), flags)
    if not flags.any():
        return None
    rank = int(np.flatnonzero(flags)[0])
    return rank, mpi.bcast(told, root=rank)
