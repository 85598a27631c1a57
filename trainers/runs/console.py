"""Output of a command whose reader (a pipe, a terminal) may go away: that must not end the command's work."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from recipes.errors import InputRefused, RecipeError
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.mpi_ranks import launched_ranks

__all__ = ["fall_silent", "say", "tell"]

_EXIT_UNREAD = 1  # Click's exit code for a broken pipe


def tell(error: Exception) -> None:
    """End a command that failed in a way that needs no traceback, with a message on stderr; return if it needs one.

    Refused input: one line a problem, exit code 2. stdout cannot be written, such as on a full disk: one line, exit
    code 3. Broken pipe of stdout: no message, exit code 1. On a rank, an error in printing is left to `faults`, which
    ends all ranks.

    Args:
        error: of the command.
    """
    if isinstance(error, InputRefused):
        say(str(error) if isinstance(error, RecipeError) else f"kilobatch: {error}")
        sys.exit(EXIT_INPUT)
    if not isinstance(error, OSError) or error.filename is not None or launched_ranks() is not None:
        return
    try:
        print(flush=True)  # fails if stdout was the cause; an unbuffered stdout does not remember its failure
    except BrokenPipeError:
        fall_silent(sys.stdout)
        sys.exit(_EXIT_UNREAD)
    except OSError as again:
        fall_silent(sys.stdout)
        say(f"kilobatch: what this command prints cannot be written: {again.strerror}; make room, or print elsewhere")
        sys.exit(EXIT_FAILED)


def say(text: str, *, end: str = "\n") -> None:
    """Print on stderr, or nothing once its reader is gone: Ctrl-C ends a `2>&1 | tee log` before the run."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # a pipe without a reader, a terminal that is gone, a full disk
        fall_silent(sys.stderr)


def fall_silent(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, with what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
