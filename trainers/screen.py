"""The console on which a command shows its progress."""

from __future__ import annotations

import sys

from rich.console import Console

from trainers.readers import fall_silent

__all__ = ["Screen"]


class Screen(Console):
    """A console on stdout that falls silent when stdout cannot be written any more.

    That happens after `| head`, when the terminal of a disowned process is closed, or when the disk of a log is full.
    Rich's Console would end the process, and with it the ranks.
    """

    def on_broken_pipe(self) -> None:
        fall_silent(sys.stdout)

    def _check_buffer(self) -> None:  # Rich itself calls `on_broken_pipe` only for a broken pipe
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()
