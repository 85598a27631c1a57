"""Which rank of this machine ended first: when one dies, mpiexec kills the others within milliseconds."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import threading
from contextlib import suppress

_NUMBER = 256  # lowest file descriptor of the connection: above those that a rank is started with
_LAST_SECONDS = 2.0  # for the system to report the last rank's end once mpiexec has ended
LINE = "KILOBATCH_LINE"  # environment variable of ranks we started: the socket to connect to
_line: socket.socket | None = None


class Departures:
    """Learns the order in which ranks end, however late this process wakes up: each rank holds a socket to it.

    mpiexec learns of a rank's end by a socket, too, which the system closes before it reports the process as ended: a
    rank that mpiexec then kills can be reported as ended before the one that died first. A dying process closes its
    file descriptors from the highest on, and a rank gives this socket a higher one than mpiexec's.

    Args:
        num_ranks: of the run, on all hosts.
    """

    def __init__(self, num_ranks: int) -> None:
        self.name: str | None = None
        self._num_ranks = num_ranks
        self._order: list[tuple[int, int]] = []
        if not hasattr(select, "epoll"):  # Linux
            return
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("")  # autobind: an abstract name, no file
        self._listener.listen(128)
        self.name = self._listener.getsockname()[1:].decode()
        self._thread = threading.Thread(target=self._serve, name="departures", daemon=True)
        self._thread.start()

    def order(self) -> list[tuple[int, int]]:
        """(rank, process) in the order of their ends, once mpiexec has ended; empty if some rank did not connect."""
        if self.name is not None:
            with suppress(OSError):  # it may be shut down already
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join(_LAST_SECONDS)
        return list(self._order) if len(self._order) == self._num_ranks else []

    def _serve(self) -> None:
        connections: dict[int, socket.socket] = {}
        callers: dict[int, tuple[int, int]] = {}
        with select.epoll() as poll, self._listener:
            poll.register(self._listener, select.EPOLLIN)
            while len(self._order) < self._num_ranks:
                for descriptor, event in poll.poll():  # in the order in which it happened
                    if descriptor == self._listener.fileno():
                        if event & select.EPOLLHUP:
                            return
                        connection, _ = self._listener.accept()
                        connections[connection.fileno()] = connection
                        poll.register(connection, select.EPOLLIN)
                    elif said := _read(connections[descriptor]):
                        callers[descriptor] = said
                    else:
                        poll.unregister(descriptor)
                        connections.pop(descriptor).close()
                        self._order += [callers.pop(descriptor)] if descriptor in callers else []


def _read(connection: socket.socket) -> tuple[int, int] | None:
    try:
        rank, process = connection.recv(64).split()
        return int(rank), int(process)
    except (OSError, ValueError):  # end of file: the rank has ended
        return None


def hold_line(rank: int) -> None:
    """Connect to the process that started this rank, so that it learns when this rank ends; no-op on other hosts."""
    global _line
    name = os.environ.get(LINE)
    if name is None or _line is not None:
        return
    with socket.socket(socket.AF_UNIX) as made:
        line = socket.socket(fileno=fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _NUMBER))
    try:
        line.connect(f"\0{name}")
        line.send(f"{rank} {os.getpid()}".encode())
    except OSError:  # another host
        line.close()
    else:
        _line = line
