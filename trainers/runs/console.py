"""Output of a command that goes on when the reader of its output (a pipe, a terminal) goes away."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from recipes.errors import InputRefused, RecipeError
from trainers.runs.errors import EXIT_FAILED, EXIT_INPUT
from trainers.runs.mpi_ranks import launched_ranks

__all__ = ["redirect_to_devnull", "print_error", "exit_on_error"]

_EXIT_UNREAD = 1  # Click's exit code for a broken pipe


def exit_on_error(error: Exception) -> None:
    """Exit with a message on stderr for an error that needs no traceback; return for one that does.

    Refused input: one line a problem, exit code 2. stdout cannot be written, such as on a full disk: one line, exit
    code 3. Broken pipe of stdout: no message, exit code 1. On a rank, `errors.abort_on_exception` handles an error in
    printing and ends all ranks.

    Args:
        error: of the command.
    """
    if isinstance(error, InputRefused):
        print_error(str(error) if isinstance(error, RecipeError) else f"kilobatch: {error}")
        sys.exit(EXIT_INPUT)
    if not isinstance(error, OSError) or error.filename is not None or launched_ranks() is not None:
        return
    try:
        print(flush=True)  # fails if stdout was the cause; an unbuffered stdout does not remember its failure
    except BrokenPipeError:
        redirect_to_devnull(sys.stdout)
        sys.exit(_EXIT_UNREAD)
    except OSError as again:
        redirect_to_devnull(sys.stdout)
        print_error(
            f"kilobatch: what this command prints cannot be written: {again.strerror}; make room, or print elsewhere"
        )
        sys.exit(EXIT_FAILED)


def print_error(text: str, *, end: str = "\n") -> None:
    """Print on stderr, or nothing once its reader is gone: Ctrl-C ends a `2>&1 | tee log` before the run."""
    try:
        print(text, end=end, file=sys.stderr, flush=True)
    except OSError:  # a pipe without a reader, a terminal that is gone, a full disk
        redirect_to_devnull(sys.stderr)


def redirect_to_devnull(stream: TextIO) -> None:
    """Redirect a stream to /dev/null, with what is still in its buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
