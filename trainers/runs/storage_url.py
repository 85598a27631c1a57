"""A storage's URL as it may be shown: in messages, in logs, and in the command that a run's folder keeps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import unquote, urlsplit

_SECRET = re.compile("pass|pwd|secret|token", re.IGNORECASE)  # in an item of a URL's query, such as `password=x`


def hidden(text: str) -> str:
    """A URL without its password, and without items of its query that suggest a secret.

    Of text that is no URL as well: a password may hold `@`, `/`, `?` or `#` as they are.

    >>> hidden("postgresql://me:secret@host/studies?sslmode=require&password=x")
    'postgresql://me@host/studies?sslmode=require'
    >>> hidden("postgresql://me:S3?cret@host/studies")
    'postgresql://me@host/studies'
    """
    scheme, mark, rest = text.partition("://")
    if not mark:
        scheme, rest = "", text
    user, at, place = rest.rpartition("@")
    user = re.split("[:/?#@]", user)[0] if mark else ""
    # After an @ in a query the rest of its items follow.
    location, *items = re.split("[?&]", place.partition("#")[0])
    if not at and not is_well_formed(text):  # without a host, what follows a colon may be a password
        location = re.sub(r":(?![0-9]+(/|$))[^/]*", "", location)
    kept = [item for item in items if item and not _SECRET.search(unquote(item))]
    return f"{scheme}{mark}{user}{at}{location}" + (f"?{'&'.join(kept)}" if kept else "")


def is_well_formed(text: str) -> bool:
    """Whether a URL can be taken apart in one way only: a port that is a number, and no @ after the host."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:  # whose text may hold the password
        return False
    return "@" not in parts.path + parts.query and not parts.fragment


def without_passwords(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command with the URL of `--storage` as `hidden` shows it.

    >>> without_passwords(["digits", "--storage", "mysql://me:secret@host/db"])
    ['digits', '--storage', 'mysql://me@host/db']
    """
    shown = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        option, equals, url = argument.partition("=")
        if before == "--storage" and "://" in argument:
            argument = hidden(argument)
        elif option == "--storage" and "://" in url:
            argument = f"{option}{equals}{hidden(url)}"
        shown.append(argument)
    return shown
