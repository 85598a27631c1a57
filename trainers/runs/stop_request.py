"""How a run or a search is asked to stop: by a signal, or by a file in its folder."""

from __future__ import annotations

import signal
from pathlib import Path

STOP_FILE = "stop"  # in the run's folder: ask a run to stop at its next update, from anywhere


def request_stop(file: Path, who: str) -> None:
    """Make the stop file of a run or a search, with a word on who asks: `signal` or `search`. A user's own is empty."""
    file.write_text(who, encoding="ascii")


def stop_requester(file: Path) -> str:
    """The word of `request_stop` in a stop file; `stop file` where a user made it, `signal` where there is none."""
    try:
        told = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return "signal"
    return told if told in ("signal", "search") else "stop file"


def requester_text(who: str, file: Path) -> str:
    """Who asked, in words, by the word of `stop_requester`; `file` is the stop file."""
    return "a signal" if who == "signal" else f"the file {file}"


class StopRequest:
    """Whether this process was asked to stop: SIGINT, SIGTERM, SIGUSR1, or a file in the run's folder.

    Args:
        run: the run's folder.
        watches_file: whether this rank looks for the file (one is enough: the ranks agree).
    """

    def __init__(self, run: Path, *, watches_file: bool) -> None:
        self._file = run / STOP_FILE if watches_file else None
        self._signalled = False
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
        self._before = {number: signal.signal(number, self._note) for number in numbers}

    def close(self) -> None:
        """The run is over: signals mean what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._signalled or (self._file is not None and self._file.exists())

    @property
    def by(self) -> str:
        """What asked, as far as this rank knows: `signal`, `search` or `stop file`."""
        return "signal" if self._signalled or self._file is None else stop_requester(self._file)

    def _note(self, number: int, frame: object) -> None:
        self._signalled = True
        before = self._before[signal.Signals(number)]
        if callable(before) and before is not signal.default_int_handler:  # who keeps these ranks wants to know, too
            before(number, frame)
