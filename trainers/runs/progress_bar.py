"""A bar on the terminal for work that counts things: how many are done, how many a second, and the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, Task, TextColumn, TimeRemainingColumn
from rich.text import Text


class _Rate(TextColumn):
    """Things a second."""

    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f} {task.fields['noun']}/s")


@contextmanager
def progress_bar(what: str, *, total: int, noun: str) -> Iterator[Callable[[int], None]]:
    """Shows a bar on stderr while it is open; nothing where that is no terminal.

    Args:
        what: is done, in front of the bar.
        total: of the things.
        noun: the things, such as images.
    Yields:
        a function that takes how many more are done.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(""), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=total, noun=noun)
        yield lambda done: progress.update(task, advance=done)
