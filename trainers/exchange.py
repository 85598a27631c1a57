"""The exchange of an update's gradients: buckets that are summed over the workers while backward goes on."""

from __future__ import annotations

import math
import queue
import threading
import time
from dataclasses import dataclass

import numpy as np

from trainers.communicators.connection import Connection
from trainers.communicators.wire import FullWire, Wire
from trainers.flat_gradients import FlatGradients


@dataclass(kw_only=True)
class Exchanged:
    """What an exchange was.

    Args:
        num_overflowed: of this worker's numbers, how many the wire could not hold.
        num_flushed: how many it made zero of.
        seconds: of all buckets, on whatever thread.
        waited_seconds: of them, those in which the worker did nothing else.
    """

    num_overflowed: int = 0
    num_flushed: int = 0
    seconds: float = 0.0
    waited_seconds: float = 0.0


class Exchange:
    """Turns the workers' sums of gradients into their mean, bucket by bucket, in the order of the buckets.

        mean = scale * sum over workers                    scale = 1 / global batch

    On a 16-bit wire a bucket is first multiplied by S * scale, S the largest power of two with which no partial sum can
    overflow, agreed upon by the workers (8 bytes a bucket), and afterwards divided by S, which rounds nothing. So
    neither many workers nor large gradients overflow, and small ones are flushed to zero only beside large ones.

    With `overlap` a thread of its own sends a bucket as soon as backward has finished it and all before it: the order
    is the same on all workers. Without, the caller sends them all in `finish`.

    Args:
        flat: the gradients; their memory is the connection's.
        connection: of all workers.
        wire: format of the numbers sent.
        bucket_bytes: a bucket is closed by the parameter that reaches it.
        overlap: use the thread.
    """

    def __init__(
        self, flat: FlatGradients, connection: Connection, *, wire: Wire, bucket_bytes: int, overlap: bool
    ) -> None:
        self._flat, self._connection, self._wire = flat, connection, wire
        self.buckets, self._bucket_of = buckets_of(flat, bucket_bytes)
        self._overlap = overlap and connection.mpi.size > 1
        self._ready: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._done = threading.Semaphore(0)
        self._failure: BaseException | None = None
        if self._overlap:
            threading.Thread(target=self._serve, name="exchange", daemon=True).start()

    def begin(self, *, scale: float) -> None:
        """Start an update; all workers call this together.

        Args:
            scale: what the sum over workers is multiplied by.
        """
        self._scale = scale
        self._missing = [bucket.num_slots for bucket in self.buckets]
        self._next = 0
        self.found = Exchanged()

    def finished(self, number: int) -> None:
        """A slot of the flat gradients is whole: its bucket may go if that is the last it waited for."""
        self._missing[self._bucket_of[number]] -= 1
        while self._overlap and self._next < len(self.buckets) and not self._missing[self._next]:
            self._send_next()

    def finish(self) -> Exchanged:
        """Send what has not been sent, wait for all of it; the flat gradients are the mean, on all workers alike."""
        began = time.perf_counter()
        while self._next < len(self.buckets):
            self._send_next()
        if self._overlap:
            for _ in self.buckets:
                self._done.acquire()
                if self._failure is not None:
                    raise self._failure
        self.found.waited_seconds = time.perf_counter() - began
        return self.found

    def close(self) -> None:
        """End the thread and give the memory back; all workers call this together."""
        if self._overlap:
            self._ready.put(None)
        self._connection.close()

    def _send_next(self) -> None:
        if self._overlap:
            self._ready.put(self._next)
        else:
            self._average(self.buckets[self._next])
        self._next += 1

    def _serve(self) -> None:
        while (number := self._ready.get()) is not None:
            try:
                self._average(self.buckets[number])
            except BaseException as error:
                self._failure = error
            self._done.release()

    def _average(self, bucket: Bucket) -> None:
        began = time.perf_counter()
        values = self._flat.values[bucket.place]
        if isinstance(self._wire, FullWire):
            self._connection.mean(values, self._wire, self._scale)
        else:
            self._average_in_16_bits(values)
        self.found.seconds += time.perf_counter() - began

    def _average_in_16_bits(self, values: np.ndarray) -> None:
        values *= np.float32(self._scale)
        factor = self._wire_factor(values)
        values *= np.float32(factor)
        overflowed, flushed = self._wire.losses(values)
        self.found.num_overflowed += overflowed
        self.found.num_flushed += flushed
        self._connection.sum(values, self._wire)
        values *= np.float32(1.0 / factor)

    def _wire_factor(self, values: np.ndarray) -> float:
        """S: with it the sum over the workers of each one's largest number stays below what the wire holds."""
        if math.isinf(self._wire.largest):
            return 1.0
        largest = float(np.abs(values).max(initial=0.0))
        total = self._connection.mpi.allreduce(largest)
        if not (0.0 < total < math.inf):
            return 1.0
        room = self._wire.largest / (1.0 + self._wire.epsilon) ** (self._connection.num_roundings + 1)
        return 2.0 ** min(math.floor(math.log2(room / total)), 126)


@dataclass(frozen=True, kw_only=True)
class Bucket:
    """Neighbouring slots that are sent together."""

    place: slice
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
        if last or (slot.place.stop - start) * flat.values.itemsize >= bucket_bytes:
            buckets.append(Bucket(place=slice(start, slot.place.stop), num_slots=count))
            start, count = slot.place.stop, 0
    return buckets, bucket_of
