"""The console on which a command shows its work."""

from __future__ import annotations

import sys

from rich.console import Console

from trainers.readers import fall_silent

__all__ = ["Screen"]


class Screen(Console):
    """A console on stdout that goes on in silence when its reader has left, as after `| head`.

    Rich's own ends the process there, and with it the ranks.
    """

    def on_broken_pipe(self) -> None:
        fall_silent(sys.stdout)
