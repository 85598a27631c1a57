"""The exchange of exact mode: gradients of norm groups, summed in one tree whoever computed them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import numpy as np

from recipes.planning.division import MicroBatch
from trainers.communicators.connection import Connection
from trainers.exchange import Exchanged
from trainers.flat_gradients import FlatGradients
from trainers.summation_tree import TreeSum


class ExactExchange:
    """Turns the gradients of all norm groups into their mean, with the same bits on any number of workers.

        mean = scale * T(gradients of the groups)          T: see TreeSum; scale = 1 / global batch, multiplied once

    To `MeanGradient` and the updater it is an `Exchange`. Nothing overlaps: the last group decides every sum. Bytes on
    the wire: those of TreeSum.

    Args:
        flat: the gradients; a micro-batch, which is one group, writes them all.
        connection: of all workers, for their memory and their communicator; its own sums are not used.
        bucket_bytes: gradients that are sent together.
    """

    overlaps, ends_of_buckets = False, ()

    def __init__(self, flat: FlatGradients, connection: Connection, *, bucket_bytes: int) -> None:
        self.flat, self.connection = flat, connection
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None  # all in one bucket
        self._tree = TreeSum(connection.mpi, piece_bytes=bucket_bytes)

    def begin(self, *, scale: float) -> ExactRound:
        """Start an update, or start it again; all workers call this together.

        Args:
            scale: what the sum over the groups is multiplied by.
        """
        self._tree.clear()
        return ExactRound(self.flat, self._tree, scale, self.observe)

    def close(self) -> None:
        """Give the memory back: gradients are gone. All workers call this together."""
        self.flat.forget()
        self.connection.close()


class ExactRound:
    """One exchange, as `Round` is one of the ordinary mode: of `flat.values`, as the gradients of one update."""

    def __init__(
        self, flat: FlatGradients, tree: TreeSum, scale: float, observe: Callable[[int, float, float], None]
    ) -> None:
        self._flat, self._values, self._tree, self._scale = flat, flat.values, tree, scale
        self._observe = observe
        self._found: Exchanged | None = None

    @contextlib.contextmanager
    def part(self, micro_batch: MicroBatch) -> Iterator[None]:
        """Around forward and backward of a micro-batch: its gradients become a leaf of the tree."""
        assert micro_batch.num_groups == 1, "the plan of exact mode"
        self._flat.start_over()
        yield
        self._flat.fill_gaps()
        self._tree.add(micro_batch.offset // micro_batch.size, self._values)

    def finished(self, number: int) -> None:
        """A slot of the flat gradients is whole: nothing is sent before all of them are."""

    def send_rest(self) -> None:
        """All gradients are whole: they are summed here and now."""
        if self._found is None:
            began = time.perf_counter()
            self._tree.total(self._values)
            self._values *= self._values.dtype.type(self._scale)
            ended = time.perf_counter()
            self._observe(0, began, ended)
            seconds = ended - began
            self._found = Exchanged(lost=np.zeros((0, 2), np.int64), seconds=seconds, waited_seconds=seconds)

    def finish(self) -> Exchanged:
        """The values are the mean, on all workers alike."""
        self.send_rest()
        assert self._found is not None
        return self._found
