"""A ring of TCP connections of our own, from each worker to the next: `sockets: true` of a communicator.

The bytes are moved by compiled code (`sockets.c`) without the GIL.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hmac
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any, NamedTuple

import numpy as np

from trainers.communicators.connection import Misfit
from trainers.communicators.wire import LIBRARY
from trainers.runs.stack_dump import waiting_for_ranks

_LEAVING_SECONDS = 5.0  # for the launcher to end the ranks that are left, and to report which one left first
_WINDOW_BYTES = (1 << 16, 1 << 22)  # in flight, at least and at most
_WINDOW_SECONDS = 8e-3  # at the latest rate: how long a small message of MPI's waits at most
_ALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}  # seconds, seconds, probes; where there are such
_WAY_OUT = "; without sockets MPI finds its own way"


class Unreachable(Misfit):
    """A ring of sockets cannot be connected; all workers raise it together."""


class SocketRing:
    """Messages from each worker to the next, all at the same time, over TCP connections of their own.

        the numbers themselves on the wire, from each worker to the next

    MPI over TCP takes two to three times the processor time, in pieces between which other messages get through. Here
    a small receive window lets them through: what the link carries in 8 ms is in flight, at least 64 kB.

    For how neighbours connect see `Rendezvous`. As with MPI, what is sent is neither encrypted nor signed.

    Args:
        mpi: communicator of the workers of the ring.
        whole: of all workers that make such rings together; by default the same.
    Raises:
        Unreachable: a worker cannot reach the next; names both, the addresses and why; on all workers of `whole`.
    """

    def __init__(self, mpi: Any, whole: Any = None) -> None:
        self.rank, self.size = mpi.rank, mpi.size
        self._next: socket.socket | None = None
        self._previous: socket.socket | None = None
        self._failure: ConnectionError | None = None
        trouble = ""
        with waiting_for_ranks():
            if self.size > 1:
                rendezvous = Rendezvous(mpi)
                self._next, self._previous = rendezvous.next, rendezvous.previous
                trouble, self._peers = rendezvous.trouble, rendezvous.peers
            troubles = [text for text in (whole or mpi).allgather(trouble) if text]
        if troubles:
            self.close()
            raise Unreachable(troubles[0] + _WAY_OUT)
        if self.size > 1:
            for connection in (self._next, self._previous):
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for name, value in _ALIVE.items():
                    if hasattr(socket, name):
                        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            self._widen(_WINDOW_BYTES[0])

    def shift(self, sent: np.ndarray, received: np.ndarray) -> None:
        """Send an array to the next worker and receive one, of a length that is known, from the previous one.

        Raises:
            ConnectionError: one of them has left, and the launcher has not ended this one for it.
        """
        if self._failure is not None:
            raise self._failure
        try:
            num_bytes, seconds = transfer(self._next, self._previous, sent, received, self._window)
        except TransferError as error:
            time.sleep(_LEAVING_SECONDS)
            left = self._peers[(self.rank + (1 if error.while_sending else -1)) % self.size]
            self._failure = ConnectionError(f"{left.name} has left: {error}")
            raise self._failure from error
        self._adapt(num_bytes, seconds)

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._next, self._previous):
            if connection is not None:
                connection.close()

    def _adapt(self, num_bytes: int, seconds: float) -> None:
        """Grow the window with the link's rate; never shrink it, which would drop data that the sender may send."""
        if num_bytes < 2 * self._window:
            return
        wanted = min(int(num_bytes / max(seconds, 1e-6) * _WINDOW_SECONDS), _WINDOW_BYTES[1])
        if wanted > 1.5 * self._window:
            self._widen(wanted)

    def _widen(self, window: int) -> None:
        """Set the receive buffer. The system doubles what it is asked for, keeping half, and may grant less."""
        self._previous.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self._window = self._previous.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2


_CONNECT_SECONDS = 3.0  # to one address
_RENDEZVOUS_SECONDS = 15.0  # until the neighbours are connected
_POLL_SECONDS = 0.02
_SECRET_BYTES = 16
_PROOF_BYTES = 32
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network device


class Peer(NamedTuple):
    """A worker of a ring: rank of the whole run, host, addresses, and the port it listens on, if it can listen."""

    rank: int
    host: str
    addresses: list[str]
    port: int | None

    @property
    def name(self) -> str:
        """Rank and host, for a message."""
        return f"rank {self.rank} on {self.host}"


class Rendezvous:
    """Connects the workers of a ring of at least two with both neighbours.

    Every worker listens, at a port that the system chooses, until the previous worker has connected. Both prove that
    they have a secret, which was sent by MPI, without sending it by TCP. Connections of strangers are closed.

    Bytes on the wire: about 50 and its addresses from each worker to each, 40 from the first one to all; by TCP 48 from
    each to both neighbours.

    Args:
        mpi: communicator of the workers, which make this together.
    Attributes:
        next, previous: connections; None where one failed, which the other workers may not have noticed.
        trouble: why a connection failed, in words; empty where none did.
        peers: the ring's workers.
    """

    def __init__(self, mpi: Any) -> None:
        from mpi4py import MPI

        self.next: socket.socket | None = None
        self.previous: socket.socket | None = None
        self.trouble = ""
        host, port = socket.gethostname(), None
        secret, end = mpi.bcast(secrets.token_bytes(_SECRET_BYTES)), time.monotonic() + _RENDEZVOUS_SECONDS
        with contextlib.ExitStack() as stack:
            try:
                if COMPILED is None:
                    raise OSError("kilobatch was installed without a C compiler")
                listener = stack.enter_context(socket.create_server(("", 0)))
                port = listener.getsockname()[1]
            except OSError as error:
                self.trouble = f"{host} cannot listen: {error}"
            own = Peer(MPI.COMM_WORLD.rank, host, own_addresses(), port)
            self.peers = [Peer(*peer) for peer in mpi.allgather(tuple(own))]
            if port is not None:
                self._connect(mpi, listener, secret, end)

    def _connect(self, mpi: Any, listener: socket.socket, secret: bytes, end: float) -> None:
        own, following, preceding = mpi.rank, (mpi.rank + 1) % mpi.size, (mpi.rank - 1) % mpi.size
        listens = threading.Thread(target=self._listen, args=(listener, Handshake(secret, preceding, own), end))
        listens.start()
        why = self._call(self.peers[following], Handshake(secret, own, following), end)
        listens.join()
        if self.next is None:
            self.trouble = f"{self.peers[own].name} cannot reach {self.peers[following].name} by TCP ({why})"
        elif self.previous is None:
            self.trouble = f"{self.peers[preceding].name} has not reached {self.peers[own].name} by TCP"

    def _call(self, peer: Peer, handshake: Handshake, end: float) -> str:
        """Connect to the next worker; returns why no address worked, or nothing."""
        troubles = []
        if peer.port is None:
            return "it cannot listen"
        for address in nearest_first(peer.addresses, same_host=peer.host == socket.gethostname()):
            try:
                connection = socket.create_connection((address, peer.port), timeout=min(_CONNECT_SECONDS, _left(end)))
                try:
                    handshake.call(connection, min(end, time.monotonic() + _CONNECT_SECONDS))
                except OSError:
                    connection.close()
                    raise
                self.next = connection
                return ""
            except OSError as error:
                troubles.append(f"{address}: {error}")
        return "; ".join(troubles) or "it has no IPv4 address"

    def _listen(self, listener: socket.socket, handshake: Handshake, end: float) -> None:
        """Accept the previous worker and nobody else; each caller is checked on a thread and delays no other."""
        listener.settimeout(_POLL_SECONDS)
        while self.previous is None and time.monotonic() < end:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            except OSError:  # no file descriptor is free for now
                time.sleep(_POLL_SECONDS)
                continue
            threading.Thread(target=self._check, args=(connection, handshake, end), daemon=True).start()

    def _check(self, connection: socket.socket, handshake: Handshake, end: float) -> None:
        try:
            handshake.answer(connection, min(end, time.monotonic() + _CONNECT_SECONDS))
            self.previous = connection
        except OSError:
            connection.close()


class Handshake:
    """Proves to a caller and the worker it calls that both have the secret of a ring, by challenge and response."""

    def __init__(self, secret: bytes, caller: int, called: int) -> None:
        self._secret, self._between = secret, struct.pack("!II", caller, called)

    def call(self, connection: socket.socket, end: float) -> None:
        """The caller's side.

        Raises:
            OSError: the other one cannot prove it, hangs up or takes too long.
        """
        own = secrets.token_bytes(_SECRET_BYTES)
        connection.sendall(own)
        challenge = _read(connection, _SECRET_BYTES, end)
        if not hmac.compare_digest(_read(connection, _PROOF_BYTES, end), self._proof(b"called", own, challenge)):
            raise ConnectionRefusedError("somebody else answers")
        connection.sendall(self._proof(b"caller", challenge, own))

    def answer(self, connection: socket.socket, end: float) -> None:
        """The side of the worker that is called; as `call`."""
        challenge, own = _read(connection, _SECRET_BYTES, end), secrets.token_bytes(_SECRET_BYTES)
        connection.sendall(own + self._proof(b"called", challenge, own))
        if not hmac.compare_digest(_read(connection, _PROOF_BYTES, end), self._proof(b"caller", own, challenge)):
            raise ConnectionRefusedError("somebody else calls")

    def _proof(self, side: bytes, challenge: bytes, own: bytes) -> bytes:
        return hmac.digest(self._secret, side + challenge + own + self._between, "sha256")


def own_addresses() -> list[str]:
    """IPv4 addresses of this machine's network devices."""
    addresses = []
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # has none
                reply = fcntl.ioctl(control, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                addresses.append(socket.inet_ntoa(reply[20:24]))
    return addresses


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


def _left(end: float) -> float:
    return max(end - time.monotonic(), 1e-3)


def _read(connection: socket.socket, num_bytes: int, end: float) -> bytes:
    data = b""
    while len(data) < num_bytes:
        connection.settimeout(_left(end))
        if not (part := connection.recv(num_bytes - len(data))):
            raise ConnectionResetError("it hung up")
        data += part
    return data


_WAITS, _SENDING_FAILED = 1, 2
_CLOSED = "it closed the connection"


class TransferError(Exception):
    """A connection failed: the one that sends, or the one that receives."""

    def __init__(self, why: object, *, while_sending: bool) -> None:
        super().__init__(str(why))
        self.while_sending = while_sending


class _Transfer(ctypes.Structure):
    """As in `sockets.c`."""

    _fields_ = [
        *((name, ctypes.c_int32) for name in ("out", "into", "window", "low", "error")),
        ("sent", ctypes.c_void_p),
        ("received", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("num_sent", "num_received", "num_first")),
        ("first", ctypes.c_double),
        ("last", ctypes.c_double),
    ]


COMPILED = getattr(LIBRARY, "send_and_receive", None)  # None where nothing was compiled, or an older version
if COMPILED is not None:
    COMPILED.argtypes, COMPILED.restype = (ctypes.POINTER(_Transfer),), ctypes.c_int


def transfer(
    out: socket.socket, into: socket.socket, sent: np.ndarray, received: np.ndarray, window: int
) -> tuple[int, float]:
    """Send all of `sent` on `out` while filling `received` from `into`, non-blocking sockets; sleeps meanwhile.

    Args:
        window: bytes of `received` that are worth waking up for.
    Returns:
        bytes received after the first call of `recv` that gave some, and the seconds that they took.
    Raises:
        TransferError: one of them has failed or was closed.
    """
    state = _Transfer(
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
        why = os.strerror(state.error) if state.error else _CLOSED
        raise TransferError(why, while_sending=ended == _SENDING_FAILED)
    return received.nbytes - state.num_first, state.last - state.first
