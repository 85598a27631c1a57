"""What is wrong with a recipe, where, and a way out."""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

_UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG)
# Commands to a terminal, and characters that turn the direction of a line; line breaks and tabs stay.
_COMMANDS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_HEAD, _TAIL = 1400, 500  # characters of a long line: its place and what is wrong, and the way out


def printable(text: str) -> str:
    """A message without control characters and with its long lines cut in the middle: names and values of a stranger.

    >>> printable("a file called \\x1b[31mred.jpg")
    'a file called \\\\x1b[31mred.jpg'
    >>> len(printable("a" * 100_000))
    1929
    """
    lines = [_COMMANDS.sub(lambda match: ascii(match[0])[1:-1], line) for line in text.split("\n")]
    cut = (
        line
        if len(line) <= _HEAD + _TAIL
        else f"{line[:_HEAD]} [... {len(line) - _HEAD - _TAIL:,} characters ...] {line[-_TAIL:]}"
        for line in lines
    )
    return "\n".join(cut)


def printable_line(text: str) -> str:
    """A message as `printable` gives it, in one line.

    >>> printable_line("new\\nline.jpg")
    'new\\\\nline.jpg'
    """
    return printable(text).replace("\n", "\\n")


def listed(names: Iterable[str], *, most: int = 5) -> str:
    """Names with commas, and after so many how many more there are.

    >>> listed(["a", "b"]), listed("abcdefg")
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    known = [*names]
    return ", ".join(known[:most]) + (f" and {len(known) - most} more" if len(known) > most else "")


class InputRefused(ValueError):
    """Something a user gave was refused before anything started; the message says what, where and a way out.

    The command line prints it, `printable`, and ends with exit code 2.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong with a recipe, a data set or a cluster file.

    Args:
        file: where it was written, as a user would open it; `command line` for `--set`.
        line, column: counted from 1; of `--set`, the line is the number of the option.
        path: of the value, with dots; empty where the file as a whole is meant.
        what, way_out: what is wrong, and what to do about it.

    >>> print(Problem(file="a.yaml", line=3, column=9, path="batch.global", what="is 0", way_out="write 1 or more"))
    a.yaml:3:9: batch.global: is 0; write 1 or more
    """

    file: str
    line: int = 1
    column: int = 1
    path: str = ""
    what: str
    way_out: str

    def __str__(self) -> str:
        text = ": ".join([f"{self.file}:{self.line}:{self.column}", *filter(None, [self.path]), self.what])
        return " ".join(f"{text}; {self.way_out}".split())


class RecipeError(InputRefused):
    """A recipe, a data set or an override was refused before anything started.

    Args:
        problems: all that was found, in the order of the file; at least one.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        # Two recipes of one `validate` may share a file that is wrong: each problem is reported once.
        once = dict.fromkeys(problems)
        self.problems = sorted(once, key=lambda problem: (problem.file, problem.line, problem.column))
        super().__init__("\n".join(map(str, self.problems)))

    def __reduce__(self) -> tuple:
        return type(self), (self.problems,)


def refused(flag: str, what: str, way_out: str) -> RecipeError:
    """A wrong option of the command line, as the error that a wrong recipe gives."""
    return RecipeError([Problem(file="command line", path=flag, what=what, way_out=way_out)])


@contextmanager
def refuse_unreachable() -> Iterator[None]:
    """Refuse a path that the system does not let us check: before Python 3.14 `Path.is_file` and the like raise.

    Raises:
        RecipeError: the path is in a folder that may not be entered, or is too long.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _UNREACHABLE or error.filename is None:
            raise
        file, what = str(error.filename), f"cannot be read: {error.strerror}"
        way_out = "check the path, and whether you may open it and its folders"
        raise RecipeError([Problem(file=file, what=what, way_out=way_out)]) from None


def nearest(word: str, known: Sequence[str], *, called: str = "known") -> str:
    """A way out of an unknown word: the words that look like it, else all of them.

    >>> nearest("epoch", ["batch", "epochs", "model"])
    'did you mean epochs?'
    >>> nearest("x", ["batch", "model"], called="keys here")
    'keys here: batch, model'
    """
    similar = difflib.get_close_matches(word, known, n=2, cutoff=0.6)
    lower = {name.lower(): name for name in known}
    if not similar and word.lower() in lower:
        similar = [lower[word.lower()]]
    if similar:
        return f"did you mean {' or '.join(similar)}?"
    return f"{called}: {', '.join(known)}" if known else f"{called}: none"
