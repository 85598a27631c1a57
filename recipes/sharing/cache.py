"""The folder of this machine for what can be got again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """Where kilobatch keeps what it can get again: `kilobatch` in XDG_CACHE_HOME, else in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kilobatch"


@contextmanager
def part_of(place: Path) -> Iterator[Path]:
    """A file beside one that may be kept, of this process alone: write it and move it there; else it is removed.

    Raises:
        OSError: the folder cannot be made.
    """
    place.parent.mkdir(parents=True, exist_ok=True)
    part = place.with_name(f"{place.name}.{os.uname().nodename}.{os.getpid()}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)
