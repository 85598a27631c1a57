"""Where the gradient is averaged over the workers: bucket by bucket, while backward goes on.

backward of a layer     FlatGradients adds its gradients to their slots of one flat array
ExchangeHandle.finished a bucket whose slots are complete is queued, in the order of the buckets
exchange thread         `mean`: the bucket is scaled, summed over the workers (all-reduce) and scaled
ExchangeHandle.finish   waits for all buckets; the array then holds the mean, which the optimizer applies

`ExactExchange` has the same interface. In exact mode it sums in a fixed tree, whichever worker computed a norm group.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.planning.division import MicroBatch
from trainers.communicators.connection import Connection
from trainers.communicators.mpi_messages import total_over_ranks
from trainers.communicators.tree_sum import TreeSum
from trainers.communicators.wire import FullWire, Wire, largest_absolute
from trainers.gradients.flat_gradients import FlatGradients
from trainers.runs.phase_clock import ExchangeStats
from trainers.runs.stack_dump import waiting_for_ranks


class Exchange:
    """Turns the workers' sums of gradients into their mean, bucket by bucket, in the order of the buckets.

        mean = scale * sum over workers                    scale = 1 / global batch

    On a 16-bit wire a bucket is first multiplied by S * scale and afterwards divided by S, which rounds nothing. S is
    the largest power of two with which no partial sum can overflow; the workers agree on it. So neither many workers
    nor large gradients overflow, and small ones are flushed to zero only beside large ones.

    Bytes on the wire: 2 a number on a 16-bit wire, else 4 (float64: 8), times the numbers that the connection's
    algorithm sends for all gradients; for S, 8 a bucket from each worker to each.

    With `overlap` a separate thread sums a bucket as soon as backward has finished it and all before it, in the same
    order on all workers. Without, the caller of `ExchangeHandle.finish` sums them all.

    Args:
        flat: the gradients, in memory that the connection allocated.
        connection: of all workers.
        wire: format of the numbers sent.
        bucket_bytes: a bucket is closed by the parameter that reaches it.
        overlap: use the thread.
    Attributes:
        observe: called with (bucket, began, ended) after every bucket; on the thread, where there is one.
        range: called with a name, gives what is put around the sum of a bucket.
    """

    def __init__(
        self, flat: FlatGradients, connection: Connection, *, wire: Wire, bucket_bytes: int, overlap: bool
    ) -> None:
        self.flat, self.connection, self.wire = flat, connection, wire
        self.buckets, self.bucket_of = buckets_of(flat, bucket_bytes)
        self.overlaps = overlap and connection.mpi.size > 1
        connection.set_beside_backward(self.overlaps)
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None
        self.range: Callable[[str], contextlib.AbstractContextManager[None]] = lambda name: contextlib.nullcontext()
        self._ready: queue.SimpleQueue[tuple[ExchangeHandle, int, Any] | None] = queue.SimpleQueue()
        self.thread: threading.Thread | None = None
        if self.overlaps:
            self.thread = threading.Thread(target=self._serve, name="exchange", daemon=True)
            self.thread.start()

    @property
    def ends_of_buckets(self) -> list[int]:
        """The last slot of each bucket."""
        return [last - 1 for last in itertools.accumulate(bucket.num_slots for bucket in self.buckets)]

    def begin(self, *, scale: float) -> ExchangeHandle:
        """Start the exchange of the gradients about to be written to `flat.values`; all workers call this together.

        Args:
            scale: what the sum over workers is multiplied by.
        """
        return ExchangeHandle(self, self.flat.values, scale)

    def send(self, handle: ExchangeHandle, number: int) -> None:
        """Average a bucket: queued for the thread, or at once."""
        event = self.connection.record_event()
        if self.overlaps:
            self._ready.put((handle, number, event))
        else:
            handle.average(number, event)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """While the main thread only waits for the exchange thread, which need not leave the core to it."""
        self.connection.set_beside_backward(False)
        try:
            yield
        finally:
            self.connection.set_beside_backward(self.overlaps)

    def close(self) -> None:
        """End the thread and free the memory of the gradients. All workers call this together."""
        if self.thread is not None:
            self._ready.put(None)
            with waiting_for_ranks(self.thread):
                self.thread.join()
        self.flat.release()
        with waiting_for_ranks():
            self.connection.close()

    def _serve(self) -> None:
        while (task := self._ready.get()) is not None:
            handle, number, event = task
            handle.average(number, event)


class ExchangeHandle:
    """The exchange of one update's gradients, in `values`, while it is under way; `Exchange.begin` makes it."""

    def __init__(self, exchange: Exchange, values: np.ndarray, scale: float) -> None:
        self._exchange, self._values, self._scale = exchange, values, scale
        self._missing = [bucket.num_slots for bucket in exchange.buckets]
        self._next = 0
        self._done = threading.Semaphore(0)
        self._failure: BaseException | None = None
        self._stats: ExchangeStats | None = None
        self._seconds, self._lost = 0.0, np.zeros((len(exchange.buckets), 2), np.int64)

    def part(self, micro_batch: MicroBatch) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; does nothing, since gradients add up in `values`."""
        return contextlib.nullcontext()

    def fail(self) -> None:
        """Memory ran out on this worker: its part of the sum is worthless, and is sent all the same."""

    def finished(self, number: int) -> None:
        """A slot of the flat gradients is complete: with `overlap`, send the buckets that are complete, in order."""
        exchange = self._exchange
        self._missing[exchange.bucket_of[number]] -= 1
        while exchange.overlaps and self._next < len(exchange.buckets) and not self._missing[self._next]:
            self._send_next()

    def send_rest(self) -> None:
        """All gradients are complete: send the remaining buckets, unless this would block; then `finish` does."""
        exchange = self._exchange
        while (exchange.overlaps or not exchange.connection.waits) and self._next < len(exchange.buckets):
            self._send_next()

    def finish(self) -> ExchangeStats:
        """Send the remaining buckets and wait for all; `values` are then the mean, the same on all workers."""
        if self._stats is None:
            began = time.perf_counter()
            while self._next < len(self._exchange.buckets):
                self._send_next()
            with waiting_for_ranks(self._exchange.thread), self._exchange.alone():
                for _ in self._exchange.buckets:
                    self._done.acquire()
                    if self._failure is not None:
                        raise self._failure
            waited_seconds = time.perf_counter() - began
            self._stats = ExchangeStats(lost=self._lost, seconds=self._seconds, waited_seconds=waited_seconds)
        return self._stats

    def average(self, number: int, event: Any) -> None:
        """Average a bucket that is complete at `event` over the workers; `finish` raises what goes wrong here."""
        began = time.perf_counter()
        try:
            around = self._exchange.range(f"bucket {number}")
            with waiting_for_ranks(), around, self._exchange.connection.on_stream_after(event):
                exchange, values = self._exchange, self._values[self._exchange.buckets[number].span]
                self._lost[number] = mean(values, exchange.connection, exchange.wire, self._scale)
        except BaseException as error:
            self._failure = error
        ended = time.perf_counter()
        self._seconds += ended - began
        self._exchange.observe(number, began, ended)
        self._done.release()

    def _send_next(self) -> None:
        self._next += 1
        self._exchange.send(self, self._next - 1)


class HandleAtEnd:
    """The exchange of one update's gradients, all of it once they are complete; the counterpart of `ExchangeHandle`.

    Args:
        exchange: exchanges the gradients and returns what `mean` would, of each bucket.
        observe: as of `Exchange`.
    """

    def __init__(self, exchange: Callable[[], np.ndarray], observe: Callable[[int, float, float], None]) -> None:
        self._exchange, self._observe = exchange, observe
        self._stats: ExchangeStats | None = None

    def part(self, micro_batch: MicroBatch) -> contextlib.AbstractContextManager[None]:
        """Around forward and backward of a micro-batch; does nothing, since gradients add up."""
        return contextlib.nullcontext()

    def fail(self) -> None:
        """Memory ran out on this worker: its part of the sum is worthless, and is sent all the same."""

    def finished(self, number: int) -> None:
        """A slot is complete: nothing is sent before all are."""

    def send_rest(self) -> None:
        """All gradients are complete: `finish` sends them."""

    def finish(self) -> ExchangeStats:
        """Exchange the gradients, once."""
        if self._stats is None:
            began = time.perf_counter()
            with waiting_for_ranks():
                lost = self._exchange()
            ended = time.perf_counter()
            self._observe(0, began, ended)
            self._stats = ExchangeStats(lost=lost, seconds=ended - began, waited_seconds=ended - began)
        return self._stats


def mean(values: np.ndarray, connection: Connection, wire: Wire, scale: float) -> tuple[int, int]:
    """values <- scale * sum over workers, see `Exchange`; returns the counts of overflowed and of flushed numbers."""
    if isinstance(wire, FullWire):
        return connection.mean(values, wire, 1.0, scale)
    total = total_over_ranks(connection.mpi, scale * largest_absolute(values))
    factor = wire_factor(total, wire, connection.num_roundings)
    return connection.mean(values, wire, scale * factor, 1.0 / factor)


def wire_factor(total: float, wire: Wire, num_roundings: int) -> float:
    """S, a power of two: with it no partial sum exceeds the wire's largest number, even if every rounding is up.

    Args:
        total: the sum over the workers of each one's largest absolute value.
        wire: that the numbers cross.
        num_roundings: how often a partial sum is rounded before it is complete.
    """
    if math.isinf(wire.largest) or not 0.0 < total < math.inf:
        return 1.0
    room = wire.largest / (1.0 + wire.epsilon) ** (num_roundings + 1)
    return 2.0 ** min(math.floor(math.log2(room / total)), 126)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring slots that are sent together."""

    span: slice
    num_slots: int


def buckets_of(flat: FlatGradients, bucket_bytes: int) -> tuple[list[Bucket], list[int]]:
    """The buckets, and the bucket of each slot."""
    buckets: list[Bucket] = []
    bucket_of = []
    start = count = 0
    for number, slot in enumerate(flat.slots):
        count += 1
        bucket_of.append(len(buckets))
        last = number + 1 == len(flat.slots)
        if last or (slot.span.stop - start) * flat.values.itemsize >= bucket_bytes:
            buckets.append(Bucket(span=slice(start, slot.span.stop), num_slots=count))
            start, count = slot.span.stop, 0
    return buckets, bucket_of


class ExactExchange:
    """Turns the gradients of all norm groups into their mean, with the same bits on any number of workers.

        mean = scale * T(gradients of the groups)          T: see TreeSum; scale = 1 / global batch, multiplied once

    Nothing overlaps with backward: every sum needs the last group. Bytes on the wire: those of TreeSum.

    Args:
        flat: the gradients; every micro-batch is a node of the tree and overwrites them.
        connection: of all workers; its memory and its communicator are used, its sums are not.
        bucket_bytes: gradients that are sent together.
    """

    overlaps, ends_of_buckets = False, ()

    def __init__(self, flat: FlatGradients, connection: Connection, *, bucket_bytes: int) -> None:
        self.flat, self.connection = flat, connection
        self.observe: Callable[[int, float, float], None] = lambda number, began, ended: None  # all in one bucket
        self._tree = TreeSum(connection.mpi, piece_bytes=bucket_bytes, exchange=connection.exchange_parts)

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
        """Around forward and backward of a micro-batch: its gradients become a node of the tree."""
        self._flat.overwrite()
        yield
        self._flat.zero_unwritten()
        self._tree.add(micro_batch.first_group, self._values, leaves=micro_batch.num_groups)

    def fail(self) -> None:
        """Memory ran out on this worker: no worker gets a sum, and the values are worthless."""
        self._tree.fail()

    def finished(self, number: int) -> None:
        """A slot is complete: nothing to do, since nothing is sent before all slots are."""

    def send_rest(self) -> None:
        """All gradients are complete: sum them now."""
        if self._stats is None:
            began = time.perf_counter()
            if self._tree.total(self._values):
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
