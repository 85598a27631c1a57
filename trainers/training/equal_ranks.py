"""What must be the same on all ranks: the recipe, and bit for bit the weights and running statistics."""

from __future__ import annotations

import socket
import zlib
from collections import Counter
from typing import Any

import chainer
import numpy as np

from recipes.errors import listed
from recipes.planning.cluster import GradientExchange
from trainers.runs.checkpoint import weights_of
from trainers.runs.errors import RunFailed


class WeightsDiffer(RunFailed):
    """Ranks hold different weights. All ranks raise it together.

    Args:
        parameter: path of the first one that differs.
        ranks: `rank R on HOST` of those that differ from most others, or from rank 0.
        update: how many updates were done; 0 where they began with different weights.
    """

    def __init__(self, *, parameter: str, ranks: list[str], update: int) -> None:
        super().__init__(
            f"after {update} updates {parameter} is not the same on all ranks: {listed(ranks)} "
            f"differ{'s' * (len(ranks) == 1)} from the others. A model's own code that draws or changes weights must "
            "do so alike on all ranks; else suspect the memory or the libraries of that host"
        )


def require_one_recipe(digest: str, mpi: Any) -> None:
    """All ranks must have read the same recipe and cluster: their files may differ between hosts.

    Bytes on the wire: about 100 from each rank to each.

    Args:
        digest: of the resolved recipe and the cluster.
        mpi: communicator of all workers, which call this together.
    Raises:
        RunFailed: on all ranks.
    """
    digests_and_hosts = mpi.allgather((digest, socket.gethostname()))
    (first_digest, first_host), *_ = digests_and_hosts
    if others := sorted({host for other, host in digests_and_hosts if other != first_digest}):
        named = ", ".join(others)
        raise RunFailed(f"recipe or cluster on {named} differ from those of rank 0 on {first_host}; copy one to all")


def checksums(model: chainer.Link) -> np.ndarray:
    """CRC-32 of each parameter and running statistic of a model, in the order of their paths."""
    arrays = weights_of(model)
    return np.array([_crc(arrays[path]) for path in sorted(arrays)], dtype=np.uint32)


def require_equal_weights(model: chainer.Link, mpi: Any, *, update: int) -> None:
    """Compare the weights of all ranks, which call this together.

    Bytes on the wire: 4 a parameter from each rank to each. Two arrays that differ in one number, or in numbers within
    four bytes of each other, never have the same CRC-32; others do once in four thousand million.

    Raises:
        WeightsDiffer: on all ranks.
    """
    of_ranks = mpi.allgather(checksums(model).tobytes())
    if len(set(of_ranks)) == 1:
        return
    sums = [dict(enumerate(np.frombuffer(one, dtype=np.uint32).tolist())) for one in of_ranks]
    first = next(index for index in range(max(map(len, sums))) if len({one.get(index) for one in sums}) > 1)
    firsts = [one.get(first) for one in sums]  # None where a rank's model has fewer parameters
    usual, _ = Counter(firsts).most_common(1)[0]  # of equally frequent ones, that of the lowest rank
    hosts = mpi.allgather(socket.gethostname())
    ranks = [f"rank {rank} on {hosts[rank]}" for rank, one in enumerate(firsts) if one != usual]
    paths = mpi.bcast(sorted(weights_of(model)), root=max(range(mpi.size), key=lambda rank: len(sums[rank])))
    raise WeightsDiffer(parameter=paths[first], ranks=ranks, update=update)


def why_weights_differ(settings: GradientExchange, mpi: Any) -> str:
    """Why the weights of the ranks are meant to drift apart; empty where they must stay equal.

    A communicator that sums nothing says so by a class attribute `weights_drift = True`.
    """
    if mpi.size == 1 or not getattr(settings.communicator, "weights_drift", False):
        return ""
    return (
        f"{type(settings.communicator).__name__} exchanges no gradients, so that the weights of the ranks differ by "
        "intention: they are not compared, no checkpoint is written, and the scores are of no model"
    )


def _crc(array: Any) -> int:
    values = chainer.get_device("@numpy").send(array)
    return zlib.crc32(np.ascontiguousarray(values).reshape(-1).view(np.uint8))
