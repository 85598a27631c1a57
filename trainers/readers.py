"""What a command tells its user, who may leave before it has ended: that must not end its work."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from recipes.errors import InputRefused, RecipeError
from trainers.faults import EXIT_FAILED, EXIT_INPUT
from trainers.launch import launched_ranks

__all__ = ["fall_silent", "say", "tell"]

_EXIT_UNREAD = 1  # Click's, of a command whose reader has left


def tell(error: Exception) -> None:
    """End a command that failed in a way which needs no traceback, and say why on stderr; return where it needs one.

    What is wrong with the input is one line each and exit code 2; that stdout does not take what is printed, a full
    disk, one line and 3. A reader who has left knows it. What a rank cannot print is its own to report: it ends all.

    Args:
        error: of the command.
    """
    if isinstance(error, InputRefused):
        say(str(error) if isinstance(error, RecipeError) else f"kilobatch: {error}")
        sys.exit(EXIT_INPUT)
    if not isinstance(error, OSError) or error.filename is not None or launched_ranks() is not None:
        return
    try:
        print(flush=True)  # was it stdout? Unbuffered, it has forgotten
    except BrokenPipeError:
        fall_silent(sys.stdout)
        sys.exit(_EXIT_UNREAD)
    except OSError as again:
        fall_silent(sys.stdout)
        say(f"kilobatch: what this command prints cannot be written: {again.strerror}; make room, or print elsewhere")
        sys.exit(EXIT_FAILED)


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
