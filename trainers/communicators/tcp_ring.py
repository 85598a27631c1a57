"""How the workers of a ring connect to their neighbours by TCP, and authenticate them.

Send on one socket and receive on another one at the same time: compiled (`sockets.c`), or in Python.

A ring of TCP connections of our own, from each worker to the next.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hmac
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from trainers.communicators.connection import Misfit
from trainers.communicators.wire import LIBRARY
from trainers.runs.stack_dump import waiting_for_ranks

_CONNECT_SECONDS = 3.0  # to one address
_MEETING_SECONDS = 15.0  # until the neighbours have been found
_POLL_SECONDS = 0.02
_SECRET_BYTES = 16
_PROOF_BYTES = 32
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network device
Place = tuple[int, str]  # rank of the whole run, and its host


class Meeting:
    """Connections with both neighbours in a ring of at least two workers.

    Every worker listens, at a port that the system chooses, until the worker before it has connected. Both prove that
    they know a secret, which was sent by MPI, without sending it by TCP. Connections of strangers are closed.

    Bytes on the wire: about 50 and its addresses from each worker to each, 40 from the first one to all; by TCP 48 from
    each to both neighbours.

    Args:
        mpi: communicator of the workers, which make this together.
    Attributes:
        after, before: connections; None where one failed, which the other workers may not know.
        trouble: why a connection failed, in words; empty where none did.
        places: of the ring's workers.
    """

    def __init__(self, mpi: Any) -> None:
        self.after: socket.socket | None = None
        self.before: socket.socket | None = None
        secret, end = mpi.bcast(secrets.token_bytes(_SECRET_BYTES)), time.monotonic() + _MEETING_SECONDS
        listener, self.trouble = _listener()
        try:
            told = mpi.allgather((_own_place(), own_addresses(), listener and listener.getsockname()[1]))
            self.places: list[Place] = [place for place, _, _ in told]
            if listener is not None:
                self._meet(mpi, listener, told, secret, end)
        finally:
            if listener is not None:
                listener.close()

    def _meet(self, mpi: Any, listener: socket.socket, told: list[Any], secret: bytes, end: float) -> None:
        after, before = (mpi.rank + 1) % mpi.size, (mpi.rank - 1) % mpi.size
        listens = threading.Thread(target=self._listen, args=(listener, Proof(secret, before, mpi.rank), end))
        listens.start()
        own, (place, addresses, port) = _named(self.places[mpi.rank]), told[after]
        why = self._call(place[1], addresses, port, Proof(secret, mpi.rank, after), end)
        listens.join()
        if self.after is None:
            self.trouble = f"{own} cannot reach {_named(place)} by TCP ({why})"
        elif self.before is None:
            self.trouble = f"{_named(self.places[before])} has not reached {own} by TCP"

    def _call(self, host: str, addresses: list[str], port: int | None, proof: Proof, end: float) -> str:
        """Connect to the worker after; returns why no address worked, or nothing."""
        troubles = []
        if port is None:
            return "it cannot listen"
        for address in nearest_first(addresses, same_host=host == socket.gethostname()):
            try:
                connection = socket.create_connection((address, port), timeout=min(_CONNECT_SECONDS, _rest(end)))
                try:
                    proof.give(connection, min(end, time.monotonic() + _CONNECT_SECONDS))
                except OSError:
                    connection.close()
                    raise
                self.after = connection
                return ""
            except OSError as error:
                troubles.append(f"{address}: {error}")
        return "; ".join(troubles) or "it has no IPv4 address"

    def _listen(self, listener: socket.socket, proof: Proof, end: float) -> None:
        """Accept the worker before and nobody else; each caller is checked on a thread and delays no other."""
        listener.settimeout(_POLL_SECONDS)
        while self.before is None and time.monotonic() < end:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no file descriptor is free for now
                time.sleep(_POLL_SECONDS)
                continue
            threading.Thread(target=self._let_in, args=(connection, proof, end), daemon=True).start()

    def _let_in(self, connection: socket.socket, proof: Proof, end: float) -> None:
        try:
            proof.take(connection, min(end, time.monotonic() + _CONNECT_SECONDS))
            self.before = connection
        except OSError:
            connection.close()


class Proof:
    """Proves to a caller and the worker it calls that both know the secret of a ring, by challenge and response.

    Args:
        secret: of the ring.
        caller, called: their places in it.
    """

    def __init__(self, secret: bytes, caller: int, called: int) -> None:
        self._secret, self._between = secret, struct.pack("!II", caller, called)

    def give(self, connection: socket.socket, end: float) -> None:
        """The caller's side.

        Raises:
            OSError: the other one cannot prove it, hangs up or takes too long.
        """
        question = secrets.token_bytes(_SECRET_BYTES)
        connection.sendall(question)
        asked = _read(connection, _SECRET_BYTES, end)
        if not hmac.compare_digest(_read(connection, _PROOF_BYTES, end), self._answer(b"called", question, asked)):
            raise ConnectionRefusedError("somebody else answers")
        connection.sendall(self._answer(b"caller", asked, question))

    def take(self, connection: socket.socket, end: float) -> None:
        """The side of the worker that is called; as `give`."""
        asked, question = _read(connection, _SECRET_BYTES, end), secrets.token_bytes(_SECRET_BYTES)
        connection.sendall(question + self._answer(b"called", asked, question))
        if not hmac.compare_digest(_read(connection, _PROOF_BYTES, end), self._answer(b"caller", question, asked)):
            raise ConnectionRefusedError("somebody else calls")

    def _answer(self, who: bytes, to: bytes, own: bytes) -> bytes:
        return hmac.digest(self._secret, who + to + own + self._between, "sha256")


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine's network devices."""
    found = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # has none
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                found.append(socket.inet_ntoa(answer[20:24]))
    return found


def nearest_first(addresses: list[str], *, same_host: bool) -> list[str]:
    """Another worker's addresses, those that share most leading bits with one of ours first.

    A loopback address is tried last, and on the same host only: elsewhere it is another machine's.
    """
    own = [_number(address) for address in own_addresses()]

    def distance(address: str) -> tuple[bool, int]:
        return address.startswith("127."), min((number ^ _number(address) for number in own), default=0).bit_length()

    return sorted((one for one in addresses if same_host or not one.startswith("127.")), key=distance)


def _number(address: str) -> int:
    return int.from_bytes(socket.inet_aton(address))


def _own_place() -> Place:
    from mpi4py import MPI

    return MPI.COMM_WORLD.rank, socket.gethostname()


def _named(place: Place) -> str:
    return f"rank {place[0]} on {place[1]}"


def _listener() -> tuple[socket.socket | None, str]:
    """The socket that this worker listens on, or why there is none."""
    try:
        return socket.create_server(("", 0)), ""
    except OSError as error:
        return None, f"{socket.gethostname()} cannot listen: {error}"


def _rest(end: float) -> float:
    return max(end - time.monotonic(), 1e-3)


def _read(connection: socket.socket, num_bytes: int, end: float) -> bytes:
    found = b""
    while len(found) < num_bytes:
        connection.settimeout(_rest(end))
        if not (part := connection.recv(num_bytes - len(found))):
            raise ConnectionResetError("it hung up")
        found += part
    return found


_STEP_POLL_SECONDS = 0.1
_WAITS, _OUT_FAILED = 1, 2
_CLOSED = "it closed the connection"


class Broken(Exception):
    """A connection that failed.

    Args:
        out: whether it is the one that sends.
        why: the error.
    """

    def __init__(self, why: object, *, out: bool) -> None:
        super().__init__(str(why))
        self.out = out


class _Passing(ctypes.Structure):
    """As in `sockets.c`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("out", "into", "window", "low", "error")),
        ("sent", ctypes.c_void_p),
        ("received", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_sent", "num_received", "num_first")),
        ("first", ctypes.c_double),
        ("last", ctypes.c_double),
    ]


def _loaded() -> Callable[..., int] | None:
    """None where nothing was compiled, or an older version."""
    try:
        run = LIBRARY.pass_on
    except AttributeError:
        return None
    run.argtypes, run.restype = (ctypes.POINTER(_Passing),), ctypes.c_int
    return run


COMPILED = _loaded()


def pass_on(
    out: socket.socket, into: socket.socket, sent: np.ndarray, received: np.ndarray, window: int
) -> tuple[int, float]:
    """Send all of `sent` on `out` while filling `received` from `into`, non-blocking sockets; sleeps meanwhile.

    The compiled version runs without the GIL.

    Args:
        window: bytes of `received` that are worth waking up for.
    Returns:
        bytes received after the first call of `recv` that gave some, and the seconds that they took.
    Raises:
        Broken: one of them has failed or was closed.
    """
    if COMPILED is None:
        return _pass_on(out, into, _bytes_of(sent), _bytes_of(received), window)
    state = _Passing(
        out=out.fileno(),
        into=into.fileno(),
        window=window,
        sent=sent.ctypes.data,
        received=received.ctypes.data,
        num_sent=sent.nbytes,
        num_received=received.nbytes,
    )
    while (ended := COMPILED(state)) == _WAITS:
        pass  # Python handles signals here
    if ended:
        raise Broken(os.strerror(state.error) if state.error else _CLOSED, out=ended == _OUT_FAILED)
    return received.nbytes - state.num_first, state.last - state.first


def _pass_on(
    out: socket.socket, into: socket.socket, sent: memoryview, room: memoryview, window: int
) -> tuple[int, float]:
    num_received, first, began, ended = len(room), 0, 0.0, 0.0
    while True:
        missing = len(room)
        sent, room = _sent(out, sent), _received(into, room)
        if len(room) < missing:
            ended = time.perf_counter()
            if not first:
                began, first = ended, num_received - len(room)
        if not sent and not room:
            return num_received - first, ended - began
        poll = select.poll()
        if sent:
            poll.register(out, select.POLLOUT)
        if room:
            into.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, min(len(room), window))
            poll.register(into, select.POLLIN)
        poll.poll(1000 * _STEP_POLL_SECONDS)


def _sent(out: socket.socket, sent: memoryview) -> memoryview:
    """Send what the socket takes; returns the rest."""
    try:
        return sent[out.send(sent) :] if sent else sent
    except BlockingIOError:
        return sent
    except OSError as error:
        raise Broken(error, out=True) from error


def _received(into: socket.socket, room: memoryview) -> memoryview:
    """Receive what has arrived; returns the room that is left."""
    try:
        count = into.recv_into(room) if room else 0
    except BlockingIOError:
        return room
    except OSError as error:
        raise Broken(error, out=False) from error
    if room and not count:
        raise Broken(_CLOSED, out=False)
    return room[count:]


def _bytes_of(array: np.ndarray) -> memoryview:
    return memoryview(array.view(np.uint8))


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
            with waiting_for_ranks():
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
