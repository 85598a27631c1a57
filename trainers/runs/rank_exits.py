"""Which rank of this machine exited first: when one dies, mpiexec kills the others within milliseconds."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

_LOWEST_DESCRIPTOR = 256  # of the exit socket: above those that a rank is started with; less under a low ulimit -n
_LAST_SECONDS = 2.0  # for the system to report the last rank's end once mpiexec has ended
_CAUSES = {signal.SIGKILL: " (is the memory full?)", signal.SIGBUS: " (is /dev/shm full?)"}
_SHARED_MEMORY = ("Shared memory error", "MPIDI_POSIX_comm_bootstrap", "MPIDU_Init_shm")  # in MPICH's messages
SHARED_MEMORY_WAY_OUT = (
    "let MPI write to /dev/shm, and make room there; when no rank is running, rm /dev/shm/mpich_shm_*, left by killed "
    "ranks; in a container: docker run --shm-size=2g"
)
_FIRST_SIGNAL = 4  # a lower status is the exit code of a program, not SIGHUP, SIGINT or SIGQUIT
EXIT_SOCKET = "KILOBATCH_EXIT_SOCKET"  # environment variable of ranks we started: the socket to connect to
_LAST = -1, 0  # from `order`, in place of a rank and its process
_exit_socket: socket.socket | None = None


class RankExits:
    """Records the order in which ranks exit, however late this process wakes up: each rank holds a socket to it.

    mpiexec notices a rank's end by a socket, too. The system closes it before it reports the process as ended, so a
    rank that mpiexec then kills can be reported as ended before the one that died first. A dying process closes its
    file descriptors from the highest on, and a rank gives this socket a higher one than mpiexec's.
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
        self._thread = threading.Thread(target=self._serve, name="rank exits", daemon=True)
        self._thread.start()

    def order(self) -> list[tuple[int, int]]:
        """(rank, process) in the order of their ends, once mpiexec has ended; empty if some rank did not connect."""
        if self.name is not None:
            with suppress(OSError), socket.socket(socket.AF_UNIX) as last:  # it may have ended already
                last.connect(f"\0{self.name}")  # taken after all ranks that have connected
                last.send(b"%d %d" % _LAST)
            self._thread.join(_LAST_SECONDS)
        return list(self._order) if len(self._order) == self._num_ranks else []

    def _serve(self) -> None:
        connections: dict[int, socket.socket] = {}
        ranks: dict[int, tuple[int, int]] = {}
        listens = True
        with select.epoll() as poll, self._listener:
            poll.register(self._listener, select.EPOLLIN)
            while len(self._order) < self._num_ranks and (listens or connections):
                for descriptor, _ in poll.poll():  # in the order in which it happened
                    if descriptor == self._listener.fileno():
                        connection, _ = self._listener.accept()
                        connections[connection.fileno()] = connection
                        poll.register(connection, select.EPOLLIN)
                    elif (rank := _read(connections[descriptor])) == _LAST:  # exits of connected ranks may still come
                        listens = False
                        connections.pop(descriptor).close()
                        poll.unregister(self._listener)
                    elif rank:
                        ranks[descriptor] = rank
                    else:
                        poll.unregister(descriptor)
                        connections.pop(descriptor).close()
                        self._order += [ranks.pop(descriptor)] if descriptor in ranks else []
        for connection in connections.values():
            connection.close()


def _read(connection: socket.socket) -> tuple[int, int] | None:
    try:
        rank, process = connection.recv(64).split()
        return int(rank), int(process)
    except (OSError, ValueError):  # end of file: the rank has ended
        return None


def hold_exit_socket(rank: int) -> None:
    """Connect to the process that started this rank, which then notices its exit; no-op on other hosts."""
    global _exit_socket
    name = os.environ.get(EXIT_SOCKET)
    if name is None or _exit_socket is not None:
        return
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            lowest = min(_LOWEST_DESCRIPTOR, allowed // 2)
            held = socket.socket(fileno=fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, lowest))
    except OSError:  # none is free
        return
    try:
        held.connect(f"\0{name}")
        held.send(f"{rank} {os.getpid()}".encode())
    except OSError:  # another host
        held.close()
    else:
        _exit_socket = held


def shared_memory_fault(output: str) -> str:
    """That MPI could not make shared memory when it started, in its words and with the way out; else empty."""
    found = (line.strip() for line in output.splitlines() if any(words in line for words in _SHARED_MEMORY))
    return next((f"MPI cannot start: {line}; {SHARED_MEMORY_WAY_OUT}" for line in found), "")


def describe_first_exit(
    code: int, order: list[tuple[int, int]], finished: set[int], last: dict[str, Any], errors: str = ""
) -> str:
    """Which rank left a run that did not end as it should, in words.

    Args:
        code: mpiexec's exit status; it can be 0, or that of another rank, which mpiexec killed; negative where a signal
            killed mpiexec itself.
        order: in which the ranks ended, (rank, process).
        finished: ranks that did their part of the run.
        last: the last line of the metrics.
        errors: what the ranks wrote to stderr.
    """
    known = list(signal.Signals)
    if code < 0:
        number = signal.Signals(-code).name if -code in known else f"signal {-code}"
        return f"mpiexec itself was killed by {number}, and the ranks ended with it"
    status = f"mpiexec ended with {code}"
    if code >= _FIRST_SIGNAL and code in known:
        status += f", as for {signal.Signals(code).name}{_CAUSES.get(code, '')}"
    if fault := shared_memory_fault(errors):
        return f"{fault}; {status}"
    left = [(rank, process) for rank, process in order if rank not in finished]
    if not left:
        return f"a rank left before the run ended, without an error of its own; {status}"
    rank, process = left[0]
    reached = f"after {last['update'] + (last['key'] == 'train_loss')} updates" if "update" in last else "at the start"
    return (
        f"rank {rank} on {socket.gethostname()} (process {process}) left {reached}, before the run ended and without "
        f"an error of its own: it was killed, crashed or exited; {status}"
    )
