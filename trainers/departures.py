"""Which rank of this machine ended first: when one dies, mpiexec ends the others within milliseconds."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

from trainers.watchdog import Sign

_CAUSES = {signal.SIGKILL: " (is the memory full?)", signal.SIGBUS: " (is /dev/shm full?)"}
_NUMBER = 256  # of the connection, at least: above those that a rank is started with
_LAST_SECONDS = 2.0  # for the system to tell of the last rank once mpiexec has ended
LINE = "KILOBATCH_LINE"  # in the environment of ranks we started: whom to call
_line: socket.socket | None = None


class Departures:
    """Hears which rank ends first, however late this process wakes up: each holds a connection to it.

    mpiexec learns of a rank's end by a connection, too, and the system closes those of a process before it tells of its
    end: another that mpiexec then kills can be gone by all other signs before the first one is. The connection of the
    highest number is closed first, and a rank gives this one a higher number than mpiexec's has.

    Args:
        num_ranks: how many there will be, wherever they are.
    """

    def __init__(self, num_ranks: int) -> None:
        self.name: str | None = None
        self._num_ranks = num_ranks
        self._order: list[tuple[int, int]] = []
        if not hasattr(select, "epoll"):  # Linux
            return
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind("")  # a name that no file has
        self._door.listen(128)
        self.name = self._door.getsockname()[1:].decode()
        self._thread = threading.Thread(target=self._serve, name="departures", daemon=True)
        self._thread.start()

    def order(self) -> list[tuple[int, int]]:
        """(rank, process) once mpiexec has ended, the first one first; empty if not all ranks called from here."""
        if self.name is not None:
            with suppress(OSError):  # a second time
                self._door.shutdown(socket.SHUT_RDWR)
            self._thread.join(_LAST_SECONDS)
        return list(self._order) if len(self._order) == self._num_ranks else []

    def _serve(self) -> None:
        lines: dict[int, socket.socket] = {}
        callers: dict[int, tuple[int, int]] = {}
        with select.epoll() as poll, self._door:
            poll.register(self._door, select.EPOLLIN)
            while len(self._order) < self._num_ranks:
                for descriptor, event in poll.poll():  # in the order in which it happened
                    if descriptor == self._door.fileno():
                        if event & select.EPOLLHUP:
                            return
                        line, _ = self._door.accept()
                        lines[line.fileno()] = line
                        poll.register(line, select.EPOLLIN)
                    elif said := _read(lines[descriptor]):
                        callers[descriptor] = said
                    else:
                        poll.unregister(descriptor)
                        lines.pop(descriptor).close()
                        self._order += [callers.pop(descriptor)] if descriptor in callers else []


def _read(line: socket.socket) -> tuple[int, int] | None:
    try:
        rank, process = line.recv(64).split()
        return int(rank), int(process)
    except (OSError, ValueError):  # nothing: it has ended
        return None


def hold_line(rank: int) -> None:
    """Let the process that started this rank know when it ends; nothing on another host."""
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


def first_to_leave(code: int, order: list[tuple[int, int]], signs: list[Sign | None], last: dict[str, Any]) -> str:
    """Which rank left a run that did not end as it should, in words.

    Args:
        code: mpiexec's exit status; it can be 0 or that of another rank, which mpiexec ended.
        order: of the ranks' ends.
        signs: of life, the last one of each rank.
        last: line of the metrics.
    """
    said = f"mpiexec ended with {code}"
    with suppress(ValueError):
        said += f", as for {signal.Signals(code).name}{_CAUSES.get(code, '')}"
    left = [entry for entry in order if not ((sign := signs[entry[0]]) and sign.finished)]
    if not left:
        return f"a rank left before the run ended, without an error of its own; {said}"
    rank, process = left[0]
    reached = f"after {last['update'] + (last['key'] == 'train_loss')} updates" if "update" in last else "at the start"
    return (
        f"rank {rank} on {socket.gethostname()} (process {process}) left {reached}, before the run ended and without "
        f"an error of its own: it was killed, crashed or exited; {said}"
    )
