"""The seconds of an update by phase: exchange split into communication and waiting, and the straggler."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# In order. `exposed`: gradient exchange not hidden by computation; `waiting`: for other workers, in collective calls.
PHASES = ("input", "forward", "backward", "exposed", "optimizer", "waiting")
_OWN = [PHASES.index(name) for name in ("input", "forward", "backward", "optimizer")]
_EXPOSED, _WAITING = PHASES.index("exposed"), PHASES.index("waiting")


def split_exchange(seconds: np.ndarray) -> np.ndarray:
    """The same seconds, (workers, phases), with the time in the exchange split into communication and waiting.

        communication = least time of a worker in it          waiting += the time above that

    A worker that is early waits in the exchange for the last one. The last one does not wait: its time is that of the
    communication itself.

    >>> split_exchange(np.array([[0.0, 1, 1, 3, 0, 0], [0.0, 2, 2, 1, 0, 0]])).tolist()
    [[0.0, 1.0, 1.0, 1.0, 0.0, 2.0], [0.0, 2.0, 2.0, 1.0, 0.0, 0.0]]
    """
    least = seconds[:, _EXPOSED].min()
    result = seconds.copy()
    result[:, _WAITING] += seconds[:, _EXPOSED] - least
    result[:, _EXPOSED] = least
    return result


def busy_seconds(seconds: np.ndarray) -> np.ndarray:
    """Seconds of each worker's own work, which does not depend on other workers; `seconds` is (workers, phases).

    >>> busy_seconds(np.array([[1.0, 2, 3, 50, 4, 60]])).tolist()
    [10.0]
    """
    return seconds[:, _OWN].sum(axis=1)


@dataclass(frozen=True, kw_only=True)
class Straggler:
    """The worker that the others wait for.

    Args:
        rank: of the worker.
        behind: its own work over the median of the others', minus 1: 0.12 is 12 % more.
        phase: in which it is furthest behind the others' median.
        seconds: by which it is behind in that phase.
    """

    rank: int
    behind: float
    phase: str
    seconds: float


def find_straggler(seconds: np.ndarray) -> Straggler | None:
    """The worker with the most seconds of own work, without waiting for others.

    Args:
        seconds: (workers, phases).
    Returns:
        None with one worker, or where the others have not worked.

    >>> worker = find_straggler(np.array([[1.0, 1, 2, 0, 0, 2], [3.0, 1, 2, 0, 0, 0]]))
    >>> worker.rank, worker.phase, worker.behind, worker.seconds
    (1, 'input', 0.5, 2.0)
    """
    busy = busy_seconds(seconds)
    rank = int(busy.argmax())
    others = np.delete(seconds[:, _OWN], rank, axis=0)
    middle = float(np.median(others.sum(axis=1))) if len(others) else 0.0
    if middle <= 0:
        return None
    above = seconds[rank, _OWN] - np.median(others, axis=0)
    worst = int(above.argmax())
    phase = PHASES[_OWN[worst]]
    return Straggler(rank=rank, behind=float(busy[rank] / middle - 1), phase=phase, seconds=float(above[worst]))
