"""Which rank of this machine ended first: when one dies, mpiexec ends the others within milliseconds."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainers.watchdog import Sign

_CAUSES = {signal.SIGKILL: " (is the memory full?)", signal.SIGBUS: " (is /dev/shm full?)"}
_SCAN_SECONDS = 0.1
_LAST_SECONDS = 2.0  # for the system to tell of the last rank once mpiexec has ended


class Departures:
    """Watches ranks from their start; the system keeps the order of their ends, however late this process wakes up.

    Args:
        mpiexec: who started them.
        num_ranks: how many there will be.
        descendants: process -> processes below it, children before their own children.
        rank_names: environment variables of which one holds a rank's number.
    """

    def __init__(
        self,
        mpiexec: subprocess.Popen[Any],
        num_ranks: int,
        *,
        descendants: Callable[[int], list[int]],
        rank_names: Iterable[str],
    ) -> None:
        self._mpiexec, self._num_ranks, self._descendants = mpiexec, num_ranks, descendants
        self._names = tuple(f"{name}=".encode() for name in rank_names)
        self._ended = threading.Event()
        self._order: list[tuple[int, int]] = []
        self._thread = threading.Thread(target=self._serve, name="departures", daemon=True)
        if hasattr(os, "pidfd_open") and hasattr(select, "epoll"):  # Linux
            self._thread.start()

    def order(self) -> list[tuple[int, int]]:
        """(rank, process) of all whose end was seen, once mpiexec has ended; the first one first."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_SECONDS)
        return list(self._order)

    def _serve(self) -> None:
        watched: dict[int, tuple[int, int]] = {}  # by file descriptor
        with select.epoll() as poll:
            while len(self._order) < self._num_ranks:
                if len(watched) < self._num_ranks and not self._ended.is_set():
                    self._add_new(watched, poll)
                found = poll.poll(_SCAN_SECONDS)  # in the order in which it happened
                for descriptor, _ in found:
                    self._order.append(watched[descriptor])
                    poll.unregister(descriptor)
                if self._ended.is_set() and not found:
                    break
        for descriptor in watched:
            os.close(descriptor)

    def _add_new(self, watched: dict[int, tuple[int, int]], poll: select.epoll) -> None:
        known = {rank for rank, _ in watched.values()}
        for process in self._descendants(self._mpiexec.pid):
            rank = self._rank_of(process)
            if rank is None or rank in known:  # a child of a rank has its environment
                continue
            with suppress(OSError):  # it has just ended, or this kernel has no such descriptors
                descriptor = os.pidfd_open(process)
                known.add(rank)
                watched[descriptor] = (rank, process)
                poll.register(descriptor, select.EPOLLIN)

    def _rank_of(self, process: int) -> int | None:
        with suppress(OSError):
            for entry in Path(f"/proc/{process}/environ").read_bytes().split(b"\0"):
                if entry.startswith(self._names) and (number := entry.partition(b"=")[2]).isdigit():
                    return int(number)
        return None


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
