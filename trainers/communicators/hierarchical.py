"""All-reduce by way of a leader on each node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.arguments import require_count, require_flag
from trainers.communicators.connection import Connection, ring_traffic
from trainers.communicators.ring import ring_of, ring_sum
from trainers.communicators.wire import Wire


@dataclass(frozen=True, kw_only=True)
class Hierarchical:
    """Reduce to the leader of each node, ring all-reduce of the leaders, broadcast within the node.

        leader: 2 (k - 1) n in the node, 2 (N - 1)/N n between nodes        others: 2 n, all in the node

    k workers a node, N nodes, n numbers on the wire. For nodes whose inner links are much faster than those between.

    Args:
        ranks_per_node: consecutive ranks that count as one node; null for those that share memory.
        sockets: as for `Ring`, in the ring of the leaders.
    Raises:
        ValueError: `ranks_per_node` is below 1 or `sockets` neither true nor false; once connected, a leader cannot
            reach the next.

    Source: ChainerMN's communicator of that name, gone since version 6 (not checked).
    """

    ranks_per_node: int | None = None
    sockets: bool = False

    def __post_init__(self) -> None:
        require_flag("Hierarchical.sockets", self.sockets)
        if self.ranks_per_node is not None:
            require_count("Hierarchical.ranks_per_node", self.ranks_per_node)

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        node = node_of(mpi, self.ranks_per_node)
        leaders = mpi.Split(0 if node.rank == 0 else 1 + mpi.rank, mpi.rank)  # any other rank is alone in one
        ring = ring_of(leaders, whole=mpi, sockets=self.sockets)
        num_leaders = mpi.allreduce(1 if node.rank == 0 else 0)

        def sum_of(values: np.ndarray, wire: Wire) -> None:
            if node.rank == 0:
                for member in range(1, node.size):
                    received = wire.buffer_to_add(values)
                    node.Recv(received, source=member)
                    wire.add(values, received)
                ring_sum(ring, values, wire)
                packed = wire.pack(values)
            else:
                node.Send(wire.pack(values), 0)
                packed = wire.buffer_to_store(values)
            node.Bcast(packed)
            wire.store(values, packed)

        sent = ring_traffic(num_leaders) + node.size - 1 if node.rank == 0 else 1.0
        wait_mode = "sleeps" if node.size == 1 else "spins within a node"
        release = (node.Free, ring.close, leaders.Free)
        return Connection(mpi, sum_of, num_roundings=num_leaders + 1, release=release, sent=sent, wait_mode=wait_mode)


def node_of(mpi: Any, ranks_per_node: int | None) -> Any:
    """The communicator of this rank's node."""
    if ranks_per_node is not None:
        return mpi.Split(mpi.rank // ranks_per_node, mpi.rank)
    from mpi4py import MPI

    return mpi.Split_type(MPI.COMM_TYPE_SHARED, mpi.rank)
