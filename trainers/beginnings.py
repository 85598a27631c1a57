"""Whether all ranks start up: until each has given signs of life, they cannot watch one another."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

from trainers.launch import Ranks
from trainers.pulse import PATIENCE
from trainers.run_folder import METRICS
from trainers.watchdog import fate_of, is_stopped, read_sign

_LOOK_SECONDS = 0.5
_LEAST_SECONDS = 60.0  # to import everything and to join MPI, on a slow disk and busy cores


class Beginning:
    """Kills all ranks if one does not start up in time, for example because it was stopped before it joined in MPI.

    Args:
        folder: of the run, without signs of a previous run.
        ranks: that were just started.
        seconds: to start up.
    Attributes:
        told: which ranks did not start up, in words, if all were killed for it; else None.
    """

    def __init__(self, folder: Path, ranks: Ranks, *, seconds: float) -> None:
        self.told: str | None = None
        self._folder, self._ranks, self._seconds = folder, ranks, seconds
        self._metrics_before = self._metrics()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="beginning", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """The ranks have ended."""
        self._over.set()
        self._thread.join()

    def _serve(self) -> None:
        waited = 0.0
        while missing := self._missing():
            if self._over.wait(_LOOK_SECONDS):
                return
            waited += _LOOK_SECONDS  # not by the clock: this process may have been stopped as well
            if waited >= self._seconds:
                self.told = self._fates(missing)
                self._ranks.kill()
                return

    def _missing(self) -> list[int]:
        """Ranks that have not given a second sign yet."""
        if self._metrics() != self._metrics_before:  # they train, even if their signs cannot be seen from here
            return []
        signs = (read_sign(self._folder, rank) for rank in range(self._ranks.num_ranks))
        return [rank for rank, sign in enumerate(signs) if sign is None or not (sign.finished or sign.beat > 1)]

    def _metrics(self) -> int | None:
        try:
            return (self._folder / METRICS).stat().st_mtime_ns
        except OSError:
            return None

    def _fates(self, missing: list[int]) -> str:
        processes = self._ranks.processes()
        stopped = [rank for rank in missing if rank in processes and is_stopped(processes[rank])]
        named = [
            f"rank {rank} on {socket.gethostname()} (process {processes[rank]}) did not begin within "
            f"{self._seconds:g} s: {fate_of(processes[rank])}"
            for rank in stopped
        ]
        ranks = ", ".join(map(str, missing))
        return "\n".join(named) or f"these ranks did not begin within {self._seconds:g} s: {ranks}"


def seconds_to_begin(watchdog_seconds: float) -> float:
    """Time that ranks have to start up, until they watch one another; 0 for no limit.

    >>> seconds_to_begin(120), seconds_to_begin(3), seconds_to_begin(0)
    (600, 60.0, 0.0)
    """
    return max(PATIENCE * watchdog_seconds, _LEAST_SECONDS) if watchdog_seconds > 0 else 0.0
