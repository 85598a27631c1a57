"""Requests to stop a run or a search: by a signal, or by a file in its folder."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainers.runs.errors import print_error

STOP_FILE = "stop"  # in the run's folder: requests a stop at the next update, from any host
_early_signals: list[int] = []  # see `noting_early_signals`


def stop_signals() -> list[signal.Signals]:
    """Signals that ask a run to stop: Ctrl-C, `kill`, Slurm's warning of the time limit (`--signal=USR1@120`).

    A terminal that was closed, too, unless `nohup` ignores that.
    """
    closed = [] if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *closed]


@contextmanager
def handling_signals(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Within, the signals that ask for a stop call `handler`; no-op outside the main thread, which alone sets them."""
    numbers = stop_signals() if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def noting_early_signals() -> Iterator[None]:
    """Within, a signal that asks for a stop is noted for a `StopRequest` made later; else it would end the process."""
    with handling_signals(lambda number, frame: _early_signals.append(number)):
        try:
            yield
        finally:
            _early_signals.clear()


def request_stop(file: Path, who: str) -> None:
    """Make the stop file of a run or a search; `who` requests it: `signal` or `search`. A user's own file is empty."""
    file.write_text(who, encoding="ascii")


def stop_requester(file: Path) -> str:
    """Who requested a stop, by its stop file; `stop file` where a user made it, `signal` where there is none."""
    try:
        who = file.read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        return "signal"
    return who if who in ("signal", "search") else "stop file"


def remove_old_request(file: Path) -> None:
    """Remove the stop file of an earlier session, or one that a user made since; says so where a user made it."""
    if file.exists() and stop_requester(file) == "stop file":
        print_error(f"kilobatch: {file} was there before this start and is removed")
    file.unlink(missing_ok=True)


def requester_text(who: str, file: Path) -> str:
    """Who requested a stop, in words: what `stop_requester` returned, or `extension`; `file` is the stop file."""
    return {"signal": "a signal", "extension": "an extension of the recipe"}.get(who, f"the file {file}")


class StopRequest:
    """Whether a stop was requested: by a signal to this process (see `stop_signals`), or a file in the run's folder.

    Args:
        run: the run's folder.
        watches_file: whether this rank looks for the file (one is enough: the ranks agree).
    """

    def __init__(self, run: Path, *, watches_file: bool) -> None:
        self._file = run / STOP_FILE if watches_file else None
        self._signalled = False
        self._before = {number: signal.signal(number, self._note) for number in stop_signals()}
        self._signalled |= bool(_early_signals)  # last: none is lost between the two

    def close(self) -> None:
        """The run is over: signals mean what they did before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        return self._signalled or (self._file is not None and self._file.exists())

    @property
    def by(self) -> str:
        """Who requested the stop, as far as this rank can see: `signal`, `search` or `stop file`."""
        return "signal" if self._signalled or self._file is None else stop_requester(self._file)

    def _note(self, number: int, frame: object) -> None:
        self._signalled = True
        before = self._before[signal.Signals(number)]
        if callable(before) and before is not signal.default_int_handler:  # of a search's rank server
            before(number, frame)
