"""How the workers of a ring connect to their neighbours by TCP, and authenticate them."""

from __future__ import annotations

import contextlib
import fcntl
import hmac
import secrets
import socket
import struct
import threading
import time
from typing import Any

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
