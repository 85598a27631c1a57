"""A ring of TCP connections of our own, from each worker to the next."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import secrets
import select
import socket
import struct
import threading
import time
from typing import Any

import numpy as np

_CONNECT_SECONDS = 3.0  # to one address
_MEETING_SECONDS = 15.0  # until the neighbours have been found
_LEAVING_SECONDS = 5.0  # in which whoever started the ranks ends those that are left, and says which one left first
_WINDOW_BYTES = (1 << 16, 1 << 22)  # on their way, at least and at most
_WINDOW_SECONDS = 8e-3  # of what came lately: what a small message of MPI's waits for at most
_POLL_MILLISECONDS = 100
_SECRET_BYTES = 16
_WAY_OUT = "; without sockets MPI finds its own way"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network device


class Unreachable(ValueError):
    """There can be no such ring."""


class SocketRing:
    """Messages from each worker to the next, all at the same time, over TCP connections that nobody else uses.

    MPI over TCP takes two to three times the processor time for them, in pieces that leave room for other messages.
    These leave room by a small window: what is on its way is what the link carries in 8 ms.

    Every worker listens, at a port that the system chooses, until the one before has called; a caller has to know 16
    secret bytes that went by MPI. As with MPI, what is sent is neither encrypted nor signed.

    Args:
        mpi: communicator of the workers, which make this together.
    Raises:
        Unreachable: a worker cannot reach the next, with both, the addresses and why; on all workers alike.
    """

    def __init__(self, mpi: Any) -> None:
        self.rank, self.size = mpi.rank, mpi.size
        self._next: socket.socket | None = None
        self._before: socket.socket | None = None
        if self.size == 1:
            return
        if found := [trouble for trouble in mpi.allgather(self._meet(mpi)) if trouble]:
            self.close()
            raise Unreachable(found[0])
        for line in (self._next, self._before):
            line.setblocking(False)
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._widen(_WINDOW_BYTES[0])

    def pass_on(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Send an array to the next worker and receive one, of a length that is known, from the worker before.

        Raises:
            ConnectionError: one of them has left, and nobody has ended this one for it.
        """
        out, room = _bytes_of(sent), _bytes_of(received)
        began, first = 0.0, 0
        while True:
            out, room = self._sent(out), self._received(room)
            if not first and (first := received.nbytes - len(room)):
                began = time.perf_counter()
            if not out and not room:
                break
            self._sleep(len(out), len(room))
        self._adapt(received.nbytes - first, time.perf_counter() - began)

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
        poll.poll(_POLL_MILLISECONDS)

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
        return ConnectionError(f"rank {rank % self.size} of a ring of {self.size} has left: {why}")

    def _adapt(self, num_bytes: int, seconds: float) -> None:
        """Let the window follow what the link carries."""
        if num_bytes < 2 * self._window:
            return
        least, most = _WINDOW_BYTES
        wanted = min(max(int(num_bytes / seconds * _WINDOW_SECONDS), least), most)
        if not self._window / 2 < wanted < self._window * 2:
            self._widen(wanted)

    def _widen(self, window: int) -> None:
        self._window = window
        self._before.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)

    def _meet(self, mpi: Any) -> str:
        """Connect with both neighbours; why that was not possible, or nothing."""
        secret = mpi.bcast(secrets.token_bytes(_SECRET_BYTES))
        with socket.create_server(("", 0)) as door:
            places = mpi.allgather((socket.gethostname(), own_addresses(), door.getsockname()[1]))
            after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
            listens = threading.Thread(target=self._listen, args=(door, secret + struct.pack("!II", before, self.rank)))
            listens.start()
            host, addresses, port = places[after]
            hello, troubles = secret + struct.pack("!II", self.rank, after), []
            for address in addresses:
                try:
                    self._next = _called(address, port, hello)
                    break
                except OSError as error:
                    troubles.append(f"{address}: {error}")
            listens.join()
        if self._next is None:
            own = places[self.rank][0]
            why = "; ".join(troubles) or "it has no IPv4 address"
            return f"rank {self.rank} on {own} cannot reach rank {after} on {host} by TCP ({why}){_WAY_OUT}"
        return "" if self._before is not None else f"rank {before} has not reached rank {self.rank} by TCP{_WAY_OUT}"

    def _listen(self, door: socket.socket, expected: bytes) -> None:
        """Let in the worker before and nobody else."""
        end = time.monotonic() + _MEETING_SECONDS
        while self._before is None and (rest := end - time.monotonic()) > 0:
            with contextlib.suppress(OSError):
                door.settimeout(rest)
                line, _ = door.accept()
                self._before = _let_in(line, expected)


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine's network devices, those that only it can reach at the end."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # has none
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return sorted(found, key=lambda address: address.startswith("127."))


def _called(address: str, port: int, hello: bytes) -> socket.socket:
    """Connected with who expects this greeting; an address can be another machine's as well, such as a container's."""
    line = socket.create_connection((address, port), timeout=_CONNECT_SECONDS)
    try:
        line.sendall(hello)
        if line.recv(1) != hello[-1:]:
            raise ConnectionRefusedError("somebody else answers")
    except OSError:
        line.close()
        raise
    return line


def _let_in(line: socket.socket, expected: bytes) -> socket.socket | None:
    """Answered, where the caller says what is expected; else hung up."""
    line.settimeout(_CONNECT_SECONDS)
    try:
        with line.makefile("rb", buffering=len(expected)) as said:
            if hmac.compare_digest(said.read(len(expected)), expected):
                line.sendall(expected[-1:])
                return line
    except OSError:
        pass
    line.close()
    return None


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.view(np.uint8))
