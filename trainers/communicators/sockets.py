"""A ring of TCP connections of our own, from each worker to the next."""

from __future__ import annotations

import socket
import time
from typing import Any

import numpy as np

from trainers.communicators.connection import Misfit
from trainers.communicators.meeting import Meeting
from trainers.communicators.passing import Broken, pass_on

_LEAVING_SECONDS = 5.0  # for the launcher to end the ranks that are left, and to say which one left first
_WINDOW_BYTES = (1 << 16, 1 << 22)  # in flight, at least and at most
_WINDOW_SECONDS = 8e-3  # at the latest rate: how long a small message of MPI's waits at most
_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # seconds, seconds, probes; where there are such
_WAY_OUT = "; without sockets MPI finds its own way"


class Unreachable(Misfit):
    """A ring of sockets cannot be connected; all workers raise it together."""


class SocketRing:
    """Messages from each worker to the next, all at the same time, over TCP connections that nobody else uses.

        the numbers themselves on the wire, from each worker to the next

    MPI over TCP takes two to three times the processor time, in pieces between which other messages get through. Here
    a small receive window lets them through: what the link carries in 8 ms is in flight, at least 64 kB.

    For how neighbours connect see `Meeting`. As with MPI, what is sent is neither encrypted nor signed.

    Args:
        mpi: communicator of the workers of the ring.
        whole: of all workers that make such rings together; by default the same.
    Raises:
        Unreachable: a worker cannot reach the next; names both, the addresses and why; on all workers of `whole`.
    """

    def __init__(self, mpi: Any, whole: Any = None) -> None:
        self.rank, self.size = mpi.rank, mpi.size
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None
        self._failure: ConnectionError | None = None
        trouble = ""
        if self.size > 1:
            meeting = Meeting(mpi)
            self._next, self._before = meeting.after, meeting.before
            trouble, self._places = meeting.trouble, meeting.places
        if found := [text for text in (whole or mpi).allgather(trouble) if text]:
            self.close()
            raise Unreachable(found[0] + _WAY_OUT)
        if self.size > 1:
            for connection in (self._next, self._before):
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _ALIVE.items():
                    if hasattr(socket, name):
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._widen(_WINDOW_BYTES[0])

    def pass_on(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Send an array to the next worker and receive one, of a length that is known, from the worker before.

        Raises:
            ConnectionError: one of them has left, and the launcher has not ended this one for it.
        """
        if self._failure is not None:
            raise self._failure
        try:
            num_bytes, seconds = pass_on(self._next, self._before, sent, received, self._window)
        except Broken as error:
            raise self._left(self.rank + (1 if error.out else -1), error) from error
        self._adapt(num_bytes, seconds)

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._next, self._before):
            if connection is not None:
                connection.close()

    def _left(self, rank: int, why: object) -> ConnectionError:
        time.sleep(_LEAVING_SECONDS)
        world, host = self._places[rank % self.size]
        self._failure = ConnectionError(f"rank {world} on {host} has left: {why}")
        return self._failure

    def _adapt(self, num_bytes: int, seconds: float) -> None:
        """Grow the window with the link's rate; never shrink it, which would drop data that the sender may send."""
        if num_bytes < 2 * self._window:
            return
        wanted = min(int(num_bytes / max(seconds, 1e-6) * _WINDOW_SECONDS), _WINDOW_BYTES[1])
        if wanted > 1.5 * self._window:
            self._widen(wanted)

    def _widen(self, window: int) -> None:
        """Set the receive buffer. The system doubles what it is asked for, keeping half, and may grant less."""
        self._before.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._window = self._before.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2
