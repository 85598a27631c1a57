"""The console on which a command shows its work."""

from __future__ import annotations

import sys

from rich.console import Console

from trainers.readers import fall_silent

__all__ = ["Screen"]


class Screen(Console):
    """A console on stdout that goes on in silence when nobody reads it any more.

    That is after `| head`, when the terminal of a disowned process is closed, and when the disk of a log is full.
    Rich's own ends the process there, and with it the ranks.
    """

    def on_broken_pipe(self) -> None:
        fall_silent(sys.stdout)

    def _check_buffer(self) -> None:  # Rich calls `on_broken_pipe` for a pipe alone
        try:
            super()._check_buffer()
        except OSError:
            self.on_broken_pipe()
