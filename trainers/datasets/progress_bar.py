"""A bar on a terminal, lines in a log, for work on many files."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a rank has no use for it
    from rich.progress import Progress

_LINE_SECONDS = 60.0  # between two lines in a log


@contextmanager
def showing_progress(
    words: str, total: int, *, unit: str, after_seconds: float = 0.0
) -> Iterator[Callable[[int], None]]:
    """Yield a function that counts what is done: on stderr a bar if it is a terminal, else a line a minute.

    The bar shows how much is done a second, and the time left.

    Args:
        words: the work.
        total: how much there is of it, in `unit`.
        unit: what is counted, such as `images`.
        after_seconds: nothing is shown of work that takes less.
    """
    shown_from = time.monotonic() + after_seconds
    done, line_at, bar = 0, shown_from, None

    def add(number: int) -> None:
        nonlocal done, line_at, bar
        done, now = done + number, time.monotonic()
        if sys.stderr.isatty():
            if now >= shown_from:
                bar = bar or _bar(words, total, unit)
                bar.update(bar.task_ids[0], completed=done)
        elif now >= line_at:
            line_at = now + _LINE_SECONDS
            print(f"{words}: {done:,} of {total:,} {unit}", file=sys.stderr, flush=True)

    add(0)
    try:
        yield add
    finally:
        if bar is not None:
            bar.stop()


def _bar(words: str, total: int, unit: str) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(TextColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f} {unit}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(""), TimeRemainingColumn())
    bar = Progress(*columns, console=Console(stderr=True, markup=False))
    bar.add_task(words, total=total)
    bar.start()
    return bar
