"""Sums whose bits do not depend on which worker holds what: one binary tree over the norm groups of an update."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from trainers.runs.stack_dump import waiting_for_ranks

PartsExchange = Callable[[list[list[Any]], list[list[Any]]], None]
Span = tuple[int, int]  # leaves start ... stop - 1 of the tree


def exchange_by_mpi(mpi: Any, sent: list[list[np.ndarray]], received: list[list[np.ndarray]]) -> None:
    """Send each of the others its arrays and receive theirs, in order; this worker's own are left alone.

    Bytes on the wire: those of `sent`, but for this worker's own.
    """
    from mpi4py import MPI

    others = [(mpi.rank + step) % mpi.size for step in range(1, mpi.size)]
    requests = [mpi.Irecv(array, other) for other in others for array in received[other]]
    requests += [mpi.Isend(array, other) for other in others for array in sent[other]]
    MPI.Request.Waitall(requests)  # spins: no backward pass runs meanwhile


def halves(start: int, stop: int) -> tuple[Span, Span]:
    """The two children of a node of at least two leaves: the left one has the largest power of two below their number.

    >>> halves(0, 7), halves(4, 7)
    (((0, 4), (4, 7)), ((4, 6), (6, 7)))
    """
    middle = start + (1 << (stop - start - 1).bit_length() - 1)
    return (start, middle), (middle, stop)


def sum_of_tree(known: Mapping[Span, np.ndarray], start: int, stop: int) -> np.ndarray:
    """The sum of leaves start ... stop - 1, from the sums of nodes that make up this one.

    Raises:
        KeyError: a leaf is in none of them.
    """
    if (start, stop) in known:
        return known[start, stop]
    if stop - start == 1:
        raise KeyError(f"norm group {start} is in no sum")
    left, right = halves(start, stop)
    return sum_of_tree(known, *left) + sum_of_tree(known, *right)


@dataclass(kw_only=True)
class _Block:
    """A complete subtree: leaves start ... start + size - 1, size a power of two that divides start."""

    start: int
    size: int
    values: np.ndarray


class TreeSum:
    """The sum of one array a norm group, over all workers; its bits do not depend on which worker holds which group.

        T(1 leaf) = the array        T(n leaves) = T(first p) + T(the other n - p)        p: largest power of two < n

    The shape depends on the number of groups alone. Blocks of 2^k leaves that start at a multiple of 2^k are nodes of
    the tree for every n; a worker adds two siblings as soon as it has both, and keeps at most 2 log2(n) + 1 arrays. At
    the end each worker receives its part of all blocks, finishes the tree for that part and sends the sum to all.

        (b + 1) (P - 1)/P m numbers a worker on the wire, (b + 1) (P - 1) messages a piece

    Notation: P workers, b blocks of this worker, arrays of m numbers.

    Args:
        mpi: communicator of all workers, which nothing else uses during a sum.
        piece_bytes: bytes of an array that are exchanged at a time, so that copies take little memory.
        exchange: sends each of the others its arrays and receives theirs, as `exchange_by_mpi` does for arrays of the
            host.

    Source: the shape: RFC 6962, section 2.1 (not checked).
    Differs: not MPI_Alltoallv and MPI_Allgatherv, which in MPICH are up to ten times slower on busy cores
        (EXPERIMENTS.md).
    """

    def __init__(self, mpi: Any, *, piece_bytes: int = 4_000_000, exchange: PartsExchange | None = None) -> None:
        self._mpi, self._exchange = mpi, exchange or functools.partial(exchange_by_mpi, mpi)
        self._piece_bytes = piece_bytes
        self._blocks: list[_Block] = []
        self._incomplete = False
        self._free: list[np.ndarray] = []  # arrays to use again, of blocks that were added to others

    @property
    def held(self) -> dict[Span, np.ndarray]:
        """The sums that this worker holds, by node of the tree, in order."""
        return {(block.start, block.start + block.size): block.values for block in self._blocks}

    def clear(self) -> None:
        """Drop all leaves: an update begins."""
        self._free += [block.values for block in self._blocks]
        self._blocks, self._incomplete = [], False

    def fail(self) -> None:
        """Leaves of this worker will stay missing: until `clear`, no worker gets a sum."""
        self._incomplete = True

    def add(self, leaf: int, values: np.ndarray, *, leaves: int = 1) -> None:
        """Add the array of a norm group, or the sum of some that are a node of the tree; its values are copied.

        Args:
            leaf: number of the first group in the update, larger than those before; a multiple of `leaves`.
            values: one-dimensional, of the same length and type for all groups.
            leaves: how many groups, a power of two.
        """
        start, size, summed = leaf, leaves, values
        while start % (2 * size) == size and (start - size, size) == self._last_block():
            left = self._blocks.pop()
            left.values += summed
            self._free += [] if summed is values else [summed]
            start, size, summed = left.start, 2 * size, left.values
        if summed is values:
            summed = self._memory_like(values)
            summed[...] = values
        self._blocks.append(_Block(start=start, size=size, values=summed))

    def total(self, out: np.ndarray) -> bool:
        """Write the sum over all groups to `out`, the same bits on all workers, who call this together.

        Returns:
            whether it did; on all workers False where `fail` was called on any.
        """
        with waiting_for_ranks():
            spans = self._mpi.allgather(None if self._incomplete else list(self.held))
            complete = None not in spans
            if complete:
                num_leaves = max(stop for _, stop in chain(*spans))
                step = max(1, self._piece_bytes // out.itemsize)
                for start in range(0, len(out), step):
                    self._total_of(slice(start, start + step), out[start : start + step], spans, num_leaves)
        self.clear()
        return complete

    def _total_of(self, piece: slice, out: np.ndarray, spans: list[list[Span]], num_leaves: int) -> None:
        workers, rank = self._mpi.size, self._mpi.rank
        parts = np.array_split(out, workers)  # each worker finishes one part of the piece
        own = parts[rank]
        blocks = [np.array_split(block.values[piece], workers) for block in self._blocks]
        sent = [[block[other] for block in blocks] for other in range(workers)]
        received = [[np.empty_like(own) for _ in held] for held in spans]
        received[rank] = sent[rank]
        self._exchange(sent, received)
        own[...] = sum_of_tree(dict(zip(chain(*spans), chain(*received), strict=True)), 0, num_leaves)
        self._exchange([[own]] * workers, [[part] for part in parts])

    def _last_block(self) -> tuple[int, int] | None:
        return (self._blocks[-1].start, self._blocks[-1].size) if self._blocks else None

    def _memory_like(self, values: np.ndarray) -> np.ndarray:
        while self._free:
            memory = self._free.pop()
            if memory.shape == values.shape and memory.dtype == values.dtype:
                return memory
        return np.empty_like(values)
