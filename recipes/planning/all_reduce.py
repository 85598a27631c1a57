"""Seconds of one all-reduce, by algorithm: latency a hop and bytes over the narrowest link (the alpha-beta model).

Notation: S bytes, P devices on N nodes, a a hop's latency, B bytes a second of a ring or tree, whose narrowest link is
a node's own bus or its network cards. All take NumPy arrays for P and N, so that a scan over clusters is one call.

Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of collective communication operations in MPICH", for the terms
of ring, halving-doubling and tree; Mikami 2018, arXiv 1811.05233, for the torus. `Differs:` the constants, see
`constants`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from recipes.planning.constants import TREE_FACTOR


@dataclass(frozen=True, kw_only=True)
class Links:
    """Links inside a node and between nodes, as one all-reduce sees them.

    Args:
        node_bytes_per_second: of a ring over the devices of one node, above 0; infinite where a node has one device.
        node_latency_seconds: a hop inside a node, at least 0.
        network_bytes_per_second: of all network cards of a node together, as an all-reduce reaches it; above 0.
        network_latency_seconds: a hop between nodes.
    Raises:
        ValueError: a bandwidth is not above 0 or a latency is negative.
    """

    node_bytes_per_second: float
    node_latency_seconds: float
    network_bytes_per_second: float
    network_latency_seconds: float

    def __post_init__(self) -> None:
        for name in ("node_bytes_per_second", "network_bytes_per_second"):
            if not getattr(self, name) > 0:
                raise ValueError(f"Links.{name} must be above 0, got {getattr(self, name)}")
        for name in ("node_latency_seconds", "network_latency_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Links.{name} must be at least 0, got {getattr(self, name)}")

    def narrowest(self, devices: Any, nodes: Any) -> Any:
        """Bytes a second of the narrowest link of a ring over all devices."""
        inside = np.where(np.asarray(devices) > nodes, self.node_bytes_per_second, np.inf)
        between = np.where(np.asarray(nodes) > 1, self.network_bytes_per_second, np.inf)
        return np.minimum(inside, between)

    def longest_hop(self, nodes: Any) -> Any:
        """Seconds of the slowest hop."""
        return np.where(np.asarray(nodes) > 1, self.network_latency_seconds, self.node_latency_seconds)


def ring(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """2(P-1) hops, of which 2(N-1) cross nodes; 2 (P-1)/P S over the narrowest link."""
    crossing = np.where(np.asarray(nodes) > 1, nodes, 0)
    within = np.maximum(np.asarray(devices) - np.maximum(crossing, 1), 0)
    hops = 2 * (within * links.node_latency_seconds + np.maximum(crossing - 1, 0) * links.network_latency_seconds)
    return hops + 2 * (np.asarray(devices) - 1) / devices * num_bytes / links.narrowest(devices, nodes)


def tree(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """2 log2(N) hops between nodes and 2 inside; 2.1 S over the narrowest link."""
    hops = 2 * np.ceil(np.log2(nodes)) * links.network_latency_seconds
    hops = hops + 2 * np.where(np.asarray(devices) > nodes, links.node_latency_seconds, 0.0)
    return hops + TREE_FACTOR * num_bytes / links.narrowest(devices, nodes)


def nccl(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """The faster of ring and tree, as NCCL has it from version 2.4 on; a tree only between nodes."""
    flat = ring(num_bytes, devices, nodes, links)
    return np.where(np.asarray(nodes) > 1, np.minimum(flat, tree(num_bytes, devices, nodes, links)), flat)


def halving_doubling(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """Reduce in the node, 2 log2(N) hops and 2 (N-1)/N S between nodes, broadcast in the node (Goyal 2017, 4)."""
    inside = _reduce_and_broadcast(num_bytes, devices, nodes, links)
    hops = 2 * np.ceil(np.log2(nodes)) * links.network_latency_seconds
    return inside + hops + 2 * (np.asarray(nodes) - 1) / nodes * num_bytes / links.network_bytes_per_second


def hierarchical(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """Reduce in the node, ring over nodes, broadcast in the node."""
    inside = _reduce_and_broadcast(num_bytes, devices, nodes, links)
    steps = 2 * (np.asarray(nodes) - 1)
    between = steps * links.network_latency_seconds + steps / nodes * num_bytes / links.network_bytes_per_second
    return inside + between


def torus(rows: int, columns: int) -> Callable[[Any, Any, Any, Links], Any]:
    """Reduce-scatter along a row of X devices, all-reduce of S/X along a column, all-gather along the row."""

    def seconds(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
        if np.ndim(devices) or devices != rows * columns:
            raise ValueError(f"a torus of {rows} x {columns} has {rows * columns} devices, got {devices}")
        return _on_torus(num_bytes, rows, columns, nodes, links)

    return seconds


def nearest_torus(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """A torus as near to a square as the number of devices allows."""
    rows = _rows_up_to(int(np.max(devices)))[devices]
    return _on_torus(num_bytes, rows, devices // rows, nodes, links)


def _on_torus(num_bytes: Any, rows: Any, columns: Any, nodes: Any, links: Links) -> Any:
    speed, hop = links.narrowest(rows * columns, nodes), links.longest_hop(nodes)
    along = 2 * (columns - 1) * (hop + num_bytes / columns / speed)
    return along + 2 * (rows - 1) * (hop + num_bytes / columns / rows / speed)


@cache
def _rows_up_to(most: int) -> np.ndarray:
    """The largest divisor up to the root, of each number from 0 to `most`."""
    found = np.ones(most + 1, dtype=np.int64)
    for side in range(2, math.isqrt(most) + 1):
        found[side * side :: side] = side
    return found


def _reduce_and_broadcast(num_bytes: Any, devices: Any, nodes: Any, links: Links) -> Any:
    """A ring over the devices of each node, the fullest of which counts."""
    each = -(-np.asarray(devices) // nodes)
    return 2 * (each - 1) * links.node_latency_seconds + 2 * (each - 1) / each * num_bytes / links.node_bytes_per_second


ALGORITHMS: dict[str, Callable[[Any, Any, Any, Links], Any]] = {
    "ring": ring,
    "tree": tree,
    "nccl": nccl,
    "halving_doubling": halving_doubling,
    "hierarchical": hierarchical,
    "torus": nearest_torus,
}
