"""The fastest algorithm for each size of bucket, by a short measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.arguments import require_count
from trainers.communicators.connection import Connection
from trainers.communicators.direct import Direct
from trainers.communicators.fastest import Candidate, Fastest, cost_of
from trainers.communicators.halving_doubling import HalvingDoubling
from trainers.communicators.hierarchical import Hierarchical, node_of
from trainers.communicators.library import MpiAllreduce
from trainers.communicators.ring import MpiRing, Ring
from trainers.communicators.shared_window import SharedWindow
from trainers.communicators.sockets import SocketRing, Unreachable
from trainers.communicators.torus import Torus

_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Auto:
    """Shared memory on one machine; between machines the fastest of a short measurement with buckets of that size.

    For each size of bucket, up to a factor of two, every algorithm sums the first one nine times (three if that takes a
    tenth of a second, once if it takes one); the one with the lowest median cost on the slowest worker sums all others.
    The cost is time; where a thread sums beside the backward pass, plus its processor time, which that pass goes
    without. On a 16-bit wire algorithms that round a partial sum more than 32 times do not compete. The order of a sum,
    and with it the last bits, may differ from one start to the next: name an algorithm where two runs must agree bit
    for bit.

    Rings go by sockets of their own or by MPI, whichever costs less for a message of a megabyte around all workers.

    On GPUs it is Nccl where every worker has a GPU of its own and NCCL is installed. Else the above sums copies in host
    memory. Where every worker's MPI says that it is CUDA-aware, CudaAwareMpi is measured against that for each size of
    bucket, except on a 16-bit wire, which it cannot sum.

    Bytes on the wire: those of what was chosen; before, up to nine sums by each, and 18 messages of a megabyte.

    Args:
        ranks_per_node: consecutive ranks that count as one node; null for those that share memory.
    Raises:
        ValueError: `ranks_per_node` is below 1.

    Source: measured on the spot; what was chosen stands in the log.
    """

    ranks_per_node: int | None = None

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None:
            require_count("Auto.ranks_per_node", self.ranks_per_node)

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        node = node_of(mpi, self.ranks_per_node)
        sizes = mpi.allgather(node.size)
        node.Free()
        if sizes[0] == mpi.size:
            connection = SharedWindow(ranks_per_node=self.ranks_per_node).connect(mpi)
            connection.choices = ["SharedWindow: all workers share memory"]
            return connection
        sockets, said = _sockets_pay(mpi)
        per_node = {"ranks_per_node": self.ranks_per_node, "sockets": sockets}
        others: list[Any] = [SharedWindow(**per_node)] if len(set(sizes)) == 1 and sizes[0] > 1 else []
        others += [Ring(sockets=sockets), HalvingDoubling(), Direct(), MpiAllreduce(), Torus(sockets=sockets)]
        others.append(Hierarchical(**per_node))  # not first: the first one's memory serves all of them
        connection = Fastest(mpi, [_candidate(component, mpi.Dup()) for component in others])
        connection.choices = [said]
        return connection


def _sockets_pay(mpi: Any) -> tuple[bool, str]:
    """Whether a ring by sockets costs the workers less than one by MPI, and both costs in words; the same on all."""
    try:
        by_sockets = SocketRing(mpi)
    except Unreachable as error:
        return False, f"rings by MPI: {error}"
    sent, received = np.zeros((2, _MESSAGE_BYTES), np.uint8)
    rings = {"sockets": by_sockets, "MPI": MpiRing(mpi)}
    with contextlib.closing(by_sockets):
        costs = {name: cost_of(mpi, functools.partial(ring.pass_on, sent, received), 1) for name, ring in rings.items()}
    best = min(costs, key=costs.__getitem__)
    words = " and ".join(f"{1000 * cost:.3g} ms by {name}" for name, cost in costs.items())
    return best == "sockets", f"rings by {best}: a megabyte to the next worker costs {words}"


def _candidate(component: Any, mpi: Any) -> Candidate:
    """A component, connected; without sockets on all workers where one of its socket rings cannot be connected."""
    try:
        connection = component.connect(mpi)
    except Unreachable:
        connection = dataclasses.replace(component, sockets=False).connect(mpi)
    halves = getattr(component, "sums_16_bits", True)
    return Candidate(name=type(component).__name__, connection=connection, sums_16_bits=halves)
