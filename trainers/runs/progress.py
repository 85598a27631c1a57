"""The display of a run while its ranks work: a bar on a terminal, lines in a log."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import deque
from contextlib import closing, suppress
from pathlib import Path
from typing import IO, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from recipes.reports.wording import duration, memory_words, number, percent
from trainers.runs.errors import redirect_to_devnull

_POLL_SECONDS = 0.2
_RECENT = 16  # updates over which the displayed loss and samples per second are averaged


def follow(
    run_folder: str | Path,
    process: subprocess.Popen[Any],
    total_updates: int,
    console: Console,
    *,
    total_samples: int | None = None,
    since_ms: int = 0,
) -> int:
    """Shows the progress of a run from its `metrics.jsonl` until its process ends.

    On a terminal a progress bar, updated after every update; elsewhere a line an evaluation, and one for an epoch
    without evaluation.

    Args:
        run_folder: where the ranks write; the file need not exist yet.
        process: the ranks' mpiexec; the caller reads its pipes.
        total_samples: of the whole run, as `total_updates`; with it the time left is right while the batch grows.
        since_ms: lines older than this are of sessions before a `--resume`, and not shown.
    Returns:
        The exit status of the process.
    """
    state = _State(total_updates=total_updates, total_samples=total_samples)
    display = _Bar(console, state) if console.is_terminal else _Lines(console, state)
    with closing(Tail(Path(run_folder) / "metrics.jsonl", since_ms)) as tail, display:
        while process.poll() is None:
            display.take(_with_notes_printed(console, tail.lines()))
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_POLL_SECONDS)
        display.take(_with_notes_printed(console, tail.lines(ended=True)))
    if state.ending:
        _print_line(console, state.ending)
    return process.returncode


def _with_notes_printed(console: Console, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the notes in the lines, above the bar if there is one; returns the lines unchanged."""
    for line in lines:
        for note in line.get("notes", ()) if line["key"] == "run_start" else [line["note"]] if "note" in line else ():
            _print_line(console, note)
    return lines


class Tail:
    """Follows a metrics file as it grows.

    A resumed run first replaces the file by a shortened one. So the file is reopened until it has a line of this
    session, and followed only from then on.

    Args:
        path: of the file, which need not exist yet.
        since_ms: lines older than this are of earlier sessions, and left out.
    """

    def __init__(self, path: Path, since_ms: int) -> None:
        self._path = path
        self._since_ms = since_ms
        self._file: IO[bytes] | None = None
        self._rest = b""
        self._followed = False
        self._ignored: tuple[int, int] | None = None  # inode and size of a file without a line of this session

    def lines(self, *, ended: bool = False) -> list[dict[str, Any]]:
        """The lines since the last call; with `ended` also a last line without newline, if it is complete."""
        if self._file is None and not self._open():
            return []
        assert self._file is not None
        *texts, self._rest = (self._rest + self._file.read()).split(b"\n")
        if ended:
            texts.append(self._rest)
        lines = [line for text in texts if (line := _line(text)) is not None and line["time_ms"] >= self._since_ms]
        self._followed = self._followed or bool(lines)
        if not self._followed:
            self.close()
        return lines

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> bool:
        try:
            state = os.stat(self._path)
            if (state.st_ino, state.st_size) == self._ignored:
                return False
            self._file = self._path.open("rb")
        except FileNotFoundError:
            return False
        self._ignored, self._rest = (state.st_ino, state.st_size), b""
        return True


def _line(text: bytes) -> dict[str, Any] | None:
    """A parsed line of the metrics; None if it is damaged; the report warns of it."""
    try:
        line = json.loads(text)
    except ValueError:
        return None
    known = (
        isinstance(line, dict) and isinstance(line.get("key"), str) and isinstance(line.get("time_ms"), (int, float))
    )
    return line if known else None


class _State:
    """The state of the run according to the lines so far."""

    def __init__(self, *, total_updates: int, total_samples: int | None) -> None:
        self.total_updates = total_updates
        self.total_samples = total_samples
        self.updates = self.samples = 0
        self.epoch = 0.0
        self.learning_rate = self.global_batch_size = self.accuracy = self.evaluation_loss = None
        self.loss_scale: float | None = None  # of mixed precision
        self.overflows = 0  # attempts at an update that were repeated
        self._exposed: deque[float] = deque(maxlen=_RECENT)  # seconds of exchange that computation did not hide
        self.ending = ""
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=_RECENT)  # samples, seconds, loss
        self._first: tuple[float, int, int] | None = None  # time, updates, samples when the first update was done
        self._now = 0.0

    def take(self, line: dict[str, Any]) -> None:
        key, value = line["key"], line.get("value")
        if key == "train_loss":
            self._take_update(line)
        elif key == "eval_accuracy":
            self.accuracy, self.epoch = value, line["epoch"]
        elif key == "eval_loss":
            self.evaluation_loss, self.epoch = value, line["epoch"]
        elif key == "run_stop":
            words = {"success": "finished"}.get(value, value)
            done = f"{number(line.get('update', self.updates))} of {number(self.total_updates)} updates"
            at = f"{done}, epoch {line.get('epoch', self.epoch):.2f}"
            scored = f", accuracy {percent(self.accuracy)}" if self.accuracy is not None else ""
            reason = "" if line.get("reason") in (None, "end") else line["reason"]  # `end`: all its updates are done
            self.ending = f"{words}: {at}{scored}" + (f"; {reason}" if reason else "")
            self.ending += f"\n{memory}" if (memory := memory_words(line)) else ""

    def _take_update(self, line: dict[str, Any]) -> None:
        self._now, self.epoch = line["time_ms"] / 1000, line["epoch"]
        self.learning_rate, self.global_batch_size = line["learning_rate"], line["global_batch_size"]
        self.loss_scale, self.overflows = line.get("loss_scale"), self.overflows + line.get("overflows", 0)
        self.updates, self.samples = line["update"] + 1, line["samples"] + line["global_batch_size"]
        loss = math.nan if line["value"] is None else line["value"]
        self._recent.append((line["global_batch_size"], line["update_seconds"], loss))
        self._exposed.append(line.get("exposed_seconds", 0.0))
        if self._first is None:
            self._first = (self._now, self.updates, self.samples)

    @property
    def loss(self) -> float:
        """Mean over the samples of the last few updates."""
        samples = sum(size for size, _, _ in self._recent)
        return sum(size * loss for size, _, loss in self._recent) / samples if samples else math.nan

    @property
    def samples_per_second(self) -> float:
        seconds = sum(seconds for _, seconds, _ in self._recent)
        return sum(size for size, _, _ in self._recent) / seconds if seconds > 0 else math.nan

    @property
    def exposed(self) -> float:
        """Share of the time that went into gradient exchange not hidden by computation."""
        seconds = sum(seconds for _, seconds, _ in self._recent)
        return sum(self._exposed) / seconds if seconds > 0 else 0.0

    @property
    def seconds_left(self) -> float | None:
        """From the pace in samples (else updates) since the first update of this session, evaluations included."""
        if self._first is None:
            return None
        start, updates, samples = self._first
        done, left = self.updates - updates, self.total_updates - self.updates
        if self.total_samples is not None:
            done, left = self.samples - samples, self.total_samples - self.samples
        return (self._now - start) / done * left if done > 0 and left > 0 else None

    @property
    def figures(self) -> str:
        """The current figures in a line."""
        parts = [
            f"batch {number(self.global_batch_size)}",
            f"rate {number(self.learning_rate)}",
            f"loss {self.loss:.4f}",
        ]
        parts += [f"accuracy {percent(self.accuracy)}"] if self.accuracy is not None else []
        parts += [f"loss scale {number(self.loss_scale)}"] if self.loss_scale is not None else []
        parts += [f"overflows {number(self.overflows)}"] if self.overflows else []
        parts += [f"exposed {100 * self.exposed:.0f} %"] if self.exposed >= 0.005 else []
        return "  ".join([*parts, f"{number(self.samples_per_second, digits=3)} samples/s"])


class _Lines:
    """One line an evaluation or epoch, for a log."""

    def __init__(self, console: Console, state: _State) -> None:
        self._console = console
        self._state = state
        self._printed_epoch = 0
        self._evaluated: set[str] = set()  # keys of an evaluation that have arrived and are not printed yet

    def __enter__(self) -> None:
        pass

    def __exit__(self, *failure: object) -> None:
        self._print_evaluation()

    def take(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            if not line["key"].startswith("eval_") or line["key"] in self._evaluated:
                self._print_evaluation()
            self._state.take(line)
            if line["key"].startswith("eval_"):
                self._evaluated.add(line["key"])
            elif line["key"] == "train_loss" and int(self._state.epoch) > self._printed_epoch:
                self._print()

    def _print_evaluation(self) -> None:
        if self._evaluated:
            self._evaluated.clear()
            self._print()

    def _print(self) -> None:
        state = self._state
        self._printed_epoch = int(state.epoch)
        left = f"  left {duration(state.seconds_left)}" if state.seconds_left is not None else ""
        _print_line(
            self._console,
            f"epoch {state.epoch:.2f}  update {state.updates}/{state.total_updates}  {state.figures}{left}",
        )


class _Bar:
    """A progress bar and the current figures, for a terminal."""

    def __init__(self, console: Console, state: _State) -> None:
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
        words = f"{state.updates}/{state.total_updates} updates  epoch {state.epoch:.2f}"
        bar = ProgressBar(total=state.total_updates, completed=state.updates)
        row.add_row(bar, words, "" if left is None else f"{duration(left)} left")
        return Group(row, Text(state.figures, style="dim"))


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


class Screen(Console):
    """A console on stdout that falls silent when stdout cannot be written any more.

    That happens after `| head`, when the terminal of a disowned process is closed, or when the disk of a log is full.
    Rich's Console would end the process, and with it the ranks.
    """

    def on_broken_pipe(self) -> None:
        redirect_to_devnull(sys.stdout)

    def _check_buffer(self) -> None:  # Rich itself calls `on_broken_pipe` only for a broken pipe
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()
