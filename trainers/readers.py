"""Who reads what a command prints may leave before it has ended: that must not end its work."""

from __future__ import annotations

import os
import sys
from typing import TextIO

__all__ = ["fall_silent", "say"]


def say(text: str, *, end: str = "\n") -> None:
    """Prints on stderr, and goes on in silence when nobody reads it: Ctrl-C ends a `2>&1 | tee log` before the run."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # a pipe without a reader, a terminal that is gone, a full disk
        fall_silent(sys.stderr)


def fall_silent(stream: TextIO) -> None:
    """What is printed there from now on, and what was not read yet, goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
