"""The exchange of exact mode: gradients of norm groups, summed in a fixed tree, whichever worker computed them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

from recipes.planning.division import MicroBatch
from trainers.communicators.connection import Connection
from trainers.communicators.tree_sum import TreeSum
from trainers.gradients.flat_gradients import FlatGradients
from trainers.runs.phase_clock import ExchangeStats
from trainers.runs.stack_dump import waiting_for_ranks


class ExactExchange:
    """Turns the gradients of all norm groups into their mean, with the same bits on any number of workers.

        mean = scale * T(gradients of the groups)          T: see TreeSum; scale = 1 / global batch, multiplied once

    It has the interface of `Exchange`. Nothing overlaps with backward: every sum needs the last group. Bytes on the
    wire: those of TreeSum.

    Args:
        flat: the gradients; every micro-batch is one norm group and overwrites them.
        connection: of all workers; its memory and its communicator are used, its sums are not.
        bucket_bytes: gradients that are sent together.
    """

    overlaps, ends_of_buckets = False, ()

    def __init__(self, flat: FlatGradients, connection: Connection, *, bucket_bytes: int) -> None:
        self.flat, self.connection = flat, connection
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None  # all in one bucket
        self._tree = TreeSum(connection.mpi, piece_bytes=bucket_bytes)

    def begin(self, *, scale: float) -> ExactHandle:
        """Start the exchange of an update, or of one that is done again; all workers call this together.

        Args:
            scale: what the sum over the groups is multiplied by.
        """
        self._tree.clear()
        return ExactHandle(self.flat, self._tree, scale, self.observe)

    def close(self) -> None:
        """Free the memory of the gradients. All workers call this together."""
        self.flat.release()
        with waiting_for_ranks():
            self.connection.close()


class ExactHandle:
    """The exchange of one update's gradients, in `flat.values`; the counterpart of `ExchangeHandle`."""

    def __init__(
        self, flat: FlatGradients, tree: TreeSum, scale: float, observe: Callable[[int, float, float], None]
    ) -> None:
        self._flat, self._values, self._tree, self._scale = flat, flat.values, tree, scale
        self._observe = observe
        self._stats: ExchangeStats | None = None

    @contextlib.contextmanager
    def part(self, micro_batch: MicroBatch) -> Iterator[None]:
        """Around forward and backward of a micro-batch: its gradients become a leaf of the tree."""
        assert micro_batch.num_groups == 1, "the plan of exact mode"
        self._flat.overwrite()
        yield
        self._flat.zero_unwritten()
        self._tree.add(micro_batch.offset // micro_batch.size, self._values)

    def finished(self, number: int) -> None:
        """A slot is complete: nothing to do, since nothing is sent before all slots are."""

    def send_rest(self) -> None:
        """All gradients are complete: sum them now."""
        if self._stats is None:
            began = time.perf_counter()
            self._tree.total(self._values)
            self._values *= self._values.dtype.type(self._scale)
            ended = time.perf_counter()
            self._observe(0, began, ended)
            seconds = ended - began
            self._stats = ExchangeStats(lost=np.zeros((0, 2), np.int64), seconds=seconds, waited_seconds=seconds)

    def finish(self) -> ExchangeStats:
        """Sum the gradients if that was not done; the values are then the mean, the same on all workers."""
        self.send_rest()
        assert self._stats is not None
        return self._stats
