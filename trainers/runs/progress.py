"""The display of a run while its ranks work: a bar on a terminal, lines in a log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Container
from contextlib import closing, suppress
from functools import partial
from importlib.util import find_spec
from itertools import dropwhile
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recipes.errors import printable
from recipes.reports.wording import duration, number
from trainers.runs.errors import redirect_to_devnull
from trainers.runs.metrics_file import SESSION_START
from trainers.runs.progress_lines import EVERY_SECONDS, ProgressLines, RunState
from trainers.runs.run_folder import METRICS

_POLL_SECONDS = 0.2


def follow(
    run_folder: str | Path,
    process: subprocess.Popen[Any],
    console: Console,
    state: RunState,
    *,
    earlier: frozenset[bytes] | None,
    printed: Container[str] = (),
    verbosity: int,
) -> int:
    """Shows the progress of a run from its `metrics.jsonl` until its process ends.

    On a terminal, and in a notebook that has ipywidgets, a progress bar, updated after every update; elsewhere, and
    with `--verbose`, lines.

    Args:
        run_folder: where the ranks write; the file need not exist yet.
        process: the ranks' mpiexec; the caller reads its pipes.
        state: of the run, before its first line.
        earlier: the `session_starts` before a `--resume`, whose lines are not shown; None: a new run.
        printed: notes that the user has seen.
        verbosity: -1 shows only notes and how the run ended, 1 a line an update.
    Returns:
        The exit status of the process.
    """
    lines = ProgressLines(partial(print_line, console), state, every_seconds=EVERY_SECONDS[verbosity])
    has_bar = console.is_terminal or (console.is_jupyter and find_spec("ipywidgets") is not None)
    display = _Bar(console, state) if has_bar and verbosity == 0 else lines
    with closing(Tail(Path(run_folder) / METRICS, earlier)) as tail, display:
        while process.poll() is None:
            display.take(_with_notes_printed(console, tail.lines(), printed, verbosity))
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_POLL_SECONDS)
        display.take(_with_notes_printed(console, tail.lines(ended=True), printed, verbosity))
    if state.ending:
        print_line(console, state.ending)
    return process.returncode


def _with_notes_printed(
    console: Console, lines: list[dict[str, Any]], printed: Container[str], verbosity: int
) -> list[dict[str, Any]]:
    """Print the notes in the lines, above the bar if there is one; returns the lines unchanged."""
    for line in lines:
        notes = [note for note in line.get("notes", ()) if note not in printed]
        texts = [*notes, line.get("note"), line.get("training") if verbosity >= 0 else None]
        for text in filter(None, texts):
            print_line(console, text)
    return lines


class Tail:
    """Follows a metrics file as it grows.

    A resumed run first replaces the file by a shortened one. So the file is reopened until it has a line of this
    session, and followed only from then on.

    Args:
        path: of the file, which need not exist yet.
        earlier: the `session_starts` of earlier sessions, whose lines are left out whatever the clock says; None: all
            lines are of this session.
    """

    def __init__(self, path: Path, earlier: frozenset[bytes] | None) -> None:
        self._path = path
        self._earlier = earlier
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._followed = False
        self._ignored: tuple[int, int, int] | None = None  # inode, size and time of a file without this session's lines

    def lines(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """The lines since the last call; with `ended` also a last line without newline, if it is complete."""
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        *texts, self._rest = (self._rest + self._file.read()).split(b"\n")
        if ended:
            texts.append(self._rest)
        if not self._followed:
            texts = list(dropwhile(self._is_earlier, texts))
        lines = [line for text in texts if (line := _line(text)) is not None]
        self._followed = self._followed or bool(lines)
        if not self._followed:
            self.close()
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _is_earlier(self, text: bytes) -> bool:
        """Whether a line that follows no line of this session is not its first one either."""
        return self._earlier is not None and (SESSION_START not in text or text in self._earlier)

    def _open(self) -> bool:
        try:
            state = os.stat(self._path)
            seen = (state.st_ino, state.st_size, state.st_mtime_ns)
            if seen == self._ignored:
                return False
            self._file = self._path.open("rb")
        except OSError:
            return False
        self._ignored, self._rest = seen, b""
        return True


def _line(text: bytes) -> dict[str, Any] | None:
    """A parsed line of the metrics; None if it is damaged; the report warns of it."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    known = (
        isinstance(line, dict) and isinstance(line.get("key"), str) and isinstance(line.get("time_ms"), (int, float))
    )
    return line if known else None


class _Bar:
    """A progress bar and the current figures, for a terminal."""

    def __init__(self, console: Console, state: RunState) -> None:
        self._state = state
        self._live = Live(self._picture(), console=console, auto_refresh=False)

    def __enter__(self) -> None:
        self._live.__enter__()

    def __exit__(self, *failure: Any) -> None:
        self._live.__exit__(*failure)

    def take(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            self._state.take(line)
        self._live.update(self._picture(), refresh=True)

    def _picture(self) -> Group:
        state = self._state
        if not state.updates:
            return Group(Text("starting the ranks"))
        left = state.seconds_left
        row = Table.grid(expand=True, padding=(0, 1))
        row.add_column(ratio=1)
        for _ in range(2):
            row.add_column(no_wrap=True)
        words = f"{number(state.updates)}/{number(state.total_updates)} updates  epoch {state.epoch:.2f}"
        bar = ProgressBar(total=state.total_updates, completed=state.updates)
        row.add_row(bar, words, "" if left is None else f"{duration(left)} left")
        return Group(row, Text(state.figures, style="dim"))


def print_line(console: Console, text: str) -> None:
    """Print a line as it is: Rich neither wraps nor colours it, nor reads markup in it."""
    console.print(printable(text), markup=False, highlight=False, soft_wrap=True)


class Screen(Console):
    """A console on stdout that falls silent when stdout cannot be written any more.

    That happens after `| head`, when the terminal of a disowned process is closed, or when the disk of a log is full.
    Rich's Console would end the process, and with it the ranks.
    """

    @property
    def is_terminal(self) -> bool:
        """Whether a display can be drawn again and again: Rich shows one on a dumb terminal only once it has ended."""
        return super().is_terminal and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")

    def on_broken_pipe(self) -> None:
        redirect_to_devnull(sys.stdout)

    def _check_buffer(self) -> None:  # Rich itself calls `on_broken_pipe` only for a broken pipe
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()
