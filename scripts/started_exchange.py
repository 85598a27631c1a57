"""Other ways to progress an MPI all-reduce during the backward pass, to compare with that of `Exchange`."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.communicators.connection import Connection
from trainers.communicators.wire import Wire
from trainers.gradients.exchange import Exchange, Exchanged, Round

STARTED = ("wait", "test", "poll")
POLL_SECONDS = 2e-4
ASKING_SECONDS, SLEEP_SECONDS = 2e-4, 1e-3  # of `Sleeping`, in turns


class Started(Exchange):
    """Starts an Iallreduce of each finished bucket on the main thread, and progresses it by one of STARTED.

    Args:
        built: whose gradients, connection and wire it takes; without overlap, so that it has no thread.
        bucket_bytes: a bucket is closed by the parameter that reaches it.
        way: one of STARTED.
    Attributes:
        requests: of the buckets on their way; only who holds `asking` asks for them.
    """

    def __init__(self, built: Exchange, *, bucket_bytes: int, way: str) -> None:
        super().__init__(built.flat, built.connection, wire=built.wire, bucket_bytes=bucket_bytes, overlap=False)
        self.overlaps = True  # for a round: buckets go as soon as they are whole
        self.tests = way == "test"
        self.requests: list[Any] = []
        self.asking = threading.Lock()
        self.under_way = threading.Event()
        self._ends = False
        self._poller = threading.Thread(target=self._poll, daemon=True) if way == "poll" else None
        if self._poller is not None:
            self._poller.start()

    def begin(self, *, scale: float) -> Round:
        """Start the exchange of what will be in `flat.values`; all workers call this together."""
        self.requests = []
        return StartedRound(self, self.flat.values, scale)

    def send(self, sent: Round, number: int) -> None:
        """Start the sum of a bucket."""
        from mpi4py import MPI

        values = self.flat.values[self.buckets[number].place]
        self.requests.append(self.connection.mpi.Iallreduce(MPI.IN_PLACE, values))
        self.under_way.set()

    def test(self) -> None:
        """Let MPI progress the requests."""
        from mpi4py import MPI

        with self.asking:
            MPI.Request.Testall(self.requests)

    def close(self) -> None:
        """End the thread and free the memory; all workers call this together."""
        self._ends = True
        self.under_way.set()
        if self._poller is not None:
            self._poller.join()
        super().close()

    def _poll(self) -> None:
        while self.under_way.wait() and not self._ends:
            self.test()
            time.sleep(POLL_SECONDS)


class StartedRound(Round):
    """One exchange through `Started`."""

    _exchange: Started

    def finished(self, number: int) -> None:
        """A slot of the flat gradients is complete: send complete buckets, and progress the requests if `way` does."""
        super().finished(number)
        if self._exchange.tests:
            self._exchange.test()

    def finish(self) -> Exchanged:
        """Wait for the sums and divide them into means."""
        exchange, began = self._exchange, time.perf_counter()
        self.send_rest()
        exchange.under_way.clear()
        with exchange.asking:
            for request, bucket in zip(exchange.requests, exchange.buckets, strict=True):
                request.Wait()
                self._values[bucket.place] *= np.float32(self._scale)
        waited = time.perf_counter() - began
        return Exchanged(lost=self._lost, seconds=waited, waited_seconds=waited)


@dataclass(frozen=True, kw_only=True)
class Sleeping:
    """The MPI library's all-reduce, polled with sleeps in between while another thread computes."""

    def connect(self, mpi: Any) -> Connection:
        """Ready on all workers of `mpi`."""
        from mpi4py import MPI

        def total(values: np.ndarray, wire: Wire) -> None:
            request = mpi.Iallreduce(MPI.IN_PLACE, values)
            while connection.beside_backward and not _done_within(request, ASKING_SECONDS):
                time.sleep(SLEEP_SECONDS)
            request.Wait()

        connection = Connection(mpi, total, num_roundings=0)
        return connection


def _done_within(request: Any, seconds: float) -> bool:
    until = time.perf_counter() + seconds
    while not (done := request.Test()) and time.perf_counter() < until:
        pass
    return done
