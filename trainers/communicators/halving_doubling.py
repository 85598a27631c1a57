"""Recursive halving and doubling, with binary blocks."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.communicators.connection import Connection, ring_traffic
from trainers.communicators.mpi_messages import ranks_here, send_and_receive
from trainers.communicators.ring import round_to
from trainers.communicators.wire import Wire


@dataclass(frozen=True, kw_only=True)
class HalvingDoubling:
    """Recursive halving and doubling: partners exchange and add halves, quarters, ..., then return the results.

        2 log2(P) messages a worker                        2 (P - 1)/P n numbers a worker on the wire

    P workers, n numbers. As few bytes as a ring and far fewer latencies: for many workers. Where P is no power of two,
    the workers form blocks of powers of two; each block sums alone, and hands its sums to the next larger one, whose
    results come back the same way: up to n numbers more between two blocks. On a 16-bit wire a partial sum is rounded
    once for each message on its way.

    Source: Thakur et al. 2005, Optimization of collective communication operations in MPICH; binary blocks:
        Rabenseifner 2004 (neither checked); both used by Goyal et al. 2017, arXiv 1706.02677, section 4.
    """

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`, which call this together."""
        blocks = binary_blocks(mpi.size)
        num_roundings = max(size.bit_length() - 1 for _, size in blocks) + len(blocks) - 1
        sent = max(ring_traffic(size) + (len(blocks) > 1) / size for _, size in blocks)
        wait_mode = "sleeps" if len(blocks) == 1 else "sleeps within a block, spins between them"
        sum_of = functools.partial(_sum, mpi, ranks_here(mpi))
        return Connection(mpi, sum_of, num_roundings=num_roundings, sent=sent, wait_mode=wait_mode)


def binary_blocks(size: int) -> list[tuple[int, int]]:
    """First rank and size of the blocks of powers of two that make up `size` ranks, the largest first.

    >>> binary_blocks(7)
    [(0, 4), (4, 2), (6, 1)]
    """
    blocks, start = [], 0
    for power in reversed(range(size.bit_length())):
        if size >> power & 1:
            blocks.append((start, 1 << power))
            start += 1 << power
    return blocks


def segment(total: int, parts: int, part: int) -> slice:
    """One of `parts` (a power of two) segments of `total` values, halved repeatedly, so that segments nest.

    >>> [segment(5, 4, part) for part in range(4)]
    [slice(0, 1, None), slice(1, 2, None), slice(2, 3, None), slice(3, 5, None)]
    """
    low, high = 0, total
    while parts > 1:
        parts //= 2
        middle = (low + high) // 2
        low, high = (middle, high) if part & parts else (low, middle)
    return slice(low, high)


def _sum(mpi: Any, here: frozenset[int], values: np.ndarray, wire: Wire) -> None:
    blocks = binary_blocks(mpi.size)
    block = next(number for number, (start, size) in enumerate(blocks) if start <= mpi.rank < start + size)
    start, size = blocks[block]
    own = mpi.rank - start
    steps = []  # partner, own segment and the partner's; what goes to the partner gets smaller and smaller
    for pieces in (2 << step for step in range(size.bit_length() - 1)):
        other = own ^ (size // pieces)
        parts = (values[segment(len(values), pieces, r * pieces // size)] for r in (own, other))
        steps.append((start + other, *parts))
    for partner, kept, given in steps:  # halving
        received = wire.buffer_to_add(kept)
        send_and_receive(mpi, wire.pack(given), partner, received, partner, within_host=partner in here)
        wire.add(kept, received)

    mine = values[segment(len(values), size, own)]
    if block + 1 < len(blocks):  # what the smaller blocks have summed
        smaller, count = blocks[block + 1]
        received = wire.buffer_to_add(mine)
        mpi.Recv(received, source=smaller + own * count // size)
        wire.add(mine, received)
    if block > 0:
        larger = list(_within(blocks[block - 1], len(values), size, own))
        for rank, part in larger:
            mpi.Send(wire.pack(values[part]), rank)
        for rank, part in larger:
            received = wire.buffer_to_store(values[part])
            mpi.Recv(received, source=rank)
            wire.store(values[part], received)
    else:
        round_to(wire, mine)
    if block + 1 < len(blocks):
        mpi.Send(wire.pack(mine), smaller + own * count // size)

    for partner, summed, wanted in reversed(steps):  # doubling, the same way back
        received = wire.buffer_to_store(wanted)
        send_and_receive(mpi, wire.pack(summed), partner, received, partner, within_host=partner in here)
        wire.store(wanted, received)


def _within(block: tuple[int, int], total: int, size: int, own: int) -> Iterator[tuple[int, slice]]:
    """Ranks of a larger block that hold the pieces of a segment of ours, and those pieces."""
    start, larger = block
    for part in range(own * larger // size, (own + 1) * larger // size):
        yield start + part, segment(total, larger, part)
