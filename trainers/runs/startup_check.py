"""Whether all ranks start up: until each has written heartbeats, they cannot watch one another."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from trainers.runs.heartbeat import PATIENCE, read_heartbeat
from trainers.runs.mpi_ranks import Ranks
from trainers.runs.run_folder import METRICS
from trainers.runs.watchdog import is_stopped, process_state

_CHECK_SECONDS = 0.5
_LEAST_SECONDS = 60.0  # to import everything and to join MPI, on a slow disk and busy cores


class StartupCheck:
    """Kills all ranks if one does not start up in time, for example because it was stopped before it joined MPI.

    Args:
        folder: of the run, without heartbeats of a previous run.
        ranks: that were just started.
        seconds: to start up.
    Attributes:
        failure: which ranks did not start up, in words, if all were killed for it; else None.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, seconds: float) -> None:
        self.failure: str | None = None
        self._folder, self._ranks, self._seconds = folder, ranks, seconds
        self._metrics_before = self._metrics_changed_ns()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="startup check", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The ranks have ended."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        waited = 0.0
        while missing := self._missing():
            if self._over.wait(_CHECK_SECONDS):
                return
            waited += _CHECK_SECONDS  # not by the clock: this process may have been stopped as well
            if waited >= self._seconds:
                self.failure = self._describe(missing)
                self._ranks.kill()
                return

    def _missing(self) -> list[int]:
        """Ranks that have not written a second heartbeat yet."""
        if self._metrics_changed_ns() != self._metrics_before:  # they train, even if this host sees no heartbeats
            return []
        records = (read_heartbeat(self._folder, rank) for rank in range(self._ranks.num_ranks))
        return [rank for rank, record in enumerate(records) if not (record and (record.finished or record.beat > 1))]

    def _metrics_changed_ns(self) -> int | None:
        try:
            return (self._folder / METRICS).stat().st_mtime_ns
        except OSError:
            return None

    def _describe(self, missing: list[int]) -> str:
        processes = self._ranks.processes()
        stopped = [
            f"rank {rank} on {socket.gethostname()} (process {processes[rank]}) did not begin within "
            f"{self._seconds:g} s: {process_state(processes[rank])}"
            for rank in missing
            if rank in processes and is_stopped(processes[rank])
        ]
        ranks = ", ".join(map(str, missing))
        return "\n".join(stopped) or f"these ranks did not begin within {self._seconds:g} s: {ranks}"


def startup_seconds(watchdog_seconds: float) -> float:
    """Time that ranks have to start up, until they watch one another; 0 for no limit.

    >>> startup_seconds(120), startup_seconds(3), startup_seconds(0)
    (600, 60.0, 0.0)
    """
    return max(PATIENCE * watchdog_seconds, _LEAST_SECONDS) if watchdog_seconds > 0 else 0.0
