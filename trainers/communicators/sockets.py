"""A ring of TCP connections of our own, from each worker to the next."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

import numpy as np

from trainers.communicators.meeting import Meeting
from trainers.faults import RunFailed

_LEAVING_SECONDS = 5.0  # in which whoever started the ranks ends those that are left, and says which one left first
_WINDOW_BYTES = (1 << 16, 1 << 22)  # on their way, at least and at most
_WINDOW_SECONDS = 8e-3  # of what came lately: what a small message of MPI's waits for at most
_POLL_SECONDS = 0.1
_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # seconds, seconds, questions; as the system has
_WAY_OUT = "; without sockets MPI finds its own way"


class Unreachable(RunFailed, ValueError):
    """There can be no such ring; all workers raise it together."""


class SocketRing:
    """Messages from each worker to the next, all at the same time, over TCP connections that nobody else uses.

        the numbers themselves on the wire, from each worker to the next

    MPI over TCP takes two to three times the processor time for them, in pieces that leave room for other messages.
    These leave room by a small window: what is on its way is what the link carries in 8 ms, at least 64 kB.

    Every worker listens, at a port that the system chooses, until the one before has called. Both prove that they know
    a secret which went by MPI, without telling it. As with MPI, what is sent is neither encrypted nor signed.

    Args:
        mpi: communicator of the workers of the ring.
        whole: of all workers that make such rings together; by default the same.
    Raises:
        Unreachable: a worker cannot reach the next: both, the addresses and why; on all workers of `whole` alike.
    """

    def __init__(self, mpi: Any, whole: Any = None) -> None:
        self.rank, self.size = mpi.rank, mpi.size
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None
        self._failure: ConnectionError | None = None
        trouble = ""
        if self.size > 1:
            meeting = Meeting(mpi)
            self._next, self._before, trouble, self._places = (
                meeting.after,
                meeting.before,
                meeting.trouble,
                meeting.places,
            )
        if found := [text for text in (whole or mpi).allgather(trouble) if text]:
            self.close()
            raise Unreachable(found[0] + _WAY_OUT)
        if self.size > 1:
            for line in (self._next, self._before):
                line.setblocking(False)
                line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _ALIVE.items():
                    if hasattr(socket, name):
                        line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._widen(_WINDOW_BYTES[0])

    def pass_on(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Send an array to the next worker and receive one, of a length that is known, from the worker before.

        Raises:
            ConnectionError: one of them has left, and nobody has ended this one for it.
        """
        if self._failure is not None:
            raise self._failure
        out, room = _bytes_of(sent), _bytes_of(received)
        began = ended = 0.0
        first = 0
        while True:
            missing = len(room)
            out, room = self._sent(out), self._received(room)
            if len(room) < missing:
                ended = time.perf_counter()
                if not first:
                    began, first = ended, received.nbytes - len(room)
            if not out and not room:
                break
            self._sleep(len(out), len(room))
        self._adapt(received.nbytes - first, ended - began)

    def close(self) -> None:
        """Hang up."""
        for line in (self._next, self._before):
            if line is not None:
                line.close()

    def _sleep(self, num_out: int, num_in: int) -> None:
        """Until a window or all that is missing has come, or there is room for what is to be sent."""
        poll = select.poll()
        if num_out:
            poll.register(self._next, select.POLLOUT)
        if num_in:
            self._before.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(num_in, self._window))
            poll.register(self._before, select.POLLIN)
        poll.poll(1000 * _POLL_SECONDS)

    def _sent(self, out: memoryview) -> memoryview:
        """What could not be sent yet."""
        try:
            return out[self._next.send(out) :] if out else out
        except BlockingIOError:
            return out
        except OSError as error:
            raise self._left(self.rank + 1, error) from error

    def _received(self, room: memoryview) -> memoryview:
        """Where nothing has come yet."""
        try:
            count = self._before.recv_into(room) if room else 0
        except BlockingIOError:
            return room
        except OSError as error:
            raise self._left(self.rank - 1, error) from error
        if room and not count:
            raise self._left(self.rank - 1, "it closed the connection")
        return room[count:]

    def _left(self, rank: int, why: object) -> ConnectionError:
        time.sleep(_LEAVING_SECONDS)
        world, host = self._places[rank % self.size]
        self._failure = ConnectionError(f"rank {world} on {host} has left: {why}")
        return self._failure

    def _adapt(self, num_bytes: int, seconds: float) -> None:
        """Let the window grow with what the link carries; a smaller one would drop what has been asked for."""
        if num_bytes < 2 * self._window:
            return
        wanted = min(int(num_bytes / max(seconds, 1e-6) * _WINDOW_SECONDS), _WINDOW_BYTES[1])
        if wanted > 1.5 * self._window:
            self._widen(wanted)

    def _widen(self, window: int) -> None:
        """The system doubles what it is asked for, half being its own, and may grant less."""
        self._before.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._window = self._before.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.view(np.uint8))
