"""Where the files of a data set lie, a folder or a URL: found, opened and read in the same way."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from trainers.datasets.index_file import State, state_of
from trainers.datasets.manifest import MANIFEST
from trainers.datasets.remote import FETCHERS, Mirror, mirror_of


@dataclass(frozen=True)
class Place:
    """The root of a data set.

    Args:
        folder: with the files; of a URL, the folder in the cache, where they are only once they were fetched.
        mirror: of a URL; None for a folder.
    """

    folder: Path
    mirror: Mirror | None = None

    def files(self, pattern: str) -> list[Path]:
        """Paths below the folder, in the order of their bytes; `*` stands for any characters but a slash."""
        if self.mirror is None:
            return sorted(self.folder.glob(pattern), key=os.fsencode)
        parts = PurePosixPath(pattern).parts
        found = [
            self.folder / name
            for name in self.mirror.sizes
            if len(words := PurePosixPath(name).parts) == len(parts) and all(map(fnmatchcase, words, parts))
        ]
        return sorted(found, key=os.fsencode)

    def state(self, files: Sequence[Path]) -> State:
        """Size and time of change of each file: if they differ, an index of the files is out of date."""
        if self.mirror is not None:
            return {self.mirror.version: (0, 0)}
        return {str(path.relative_to(self.folder)): state_of(path) for path in files}

    def size(self, path: Path) -> int:
        """Bytes of a file."""
        return path.stat().st_size if self.mirror is None else self.mirror.sizes[self.name(path)]

    def opened(self, path: Path, *, keep: bool = False, at_least: int = 0) -> BinaryIO:
        """A file to be read at places of it.

        Args:
            keep: what is read of a URL goes into the cache, and was perhaps fetched ahead.
            at_least: bytes of a request to a URL, where little is read at a time; 0: as many as are asked for.
        """
        if self.mirror is None:
            return path.open("rb")
        file = FileAtUrl(self.mirror, self.name(path), keep=keep)
        return io.BufferedReader(file, at_least) if at_least else file

    def fetched(self, path: Path) -> Path:
        """A file that is read whole: of a URL, in the cache."""
        return path if self.mirror is None else self.mirror.fetch(self.name(path))

    def map(self, task: Callable[[Path], Any], files: Sequence[Path]) -> Any:
        """The result for each file in order, an iterator; those of a URL are worked on at once, since they wait."""
        if self.mirror is None:
            yield from map(task, files)
            return
        with ThreadPoolExecutor(FETCHERS) as threads:
            yield from threads.map(task, files)

    def name(self, path: Path) -> str:
        """A file's path below the root."""
        return path.relative_to(self.folder).as_posix()

    def shown(self, path: Path) -> str:
        """A file's path or URL, for messages."""
        if self.mirror is None:
            return str(path)
        return self.mirror.url if path == self.folder else f"{self.mirror.url}/{self.name(path)}"


def place_of(root: Path) -> Place:
    """The place of a root; of a URL the manifest is there."""
    if (mirror := mirror_of(root)) is None:
        return Place(root)
    if MANIFEST in mirror.sizes:
        mirror.fetch(MANIFEST)
    return Place(mirror.folder, mirror)


class FileAtUrl(io.RawIOBase):
    """A file at a URL, each read of which is one request.

    The last range is kept, so that reading it again costs nothing.
    """

    def __init__(self, mirror: Mirror, name: str, *, keep: bool) -> None:
        self._name, self._end = name, mirror.sizes[name]
        self._get = mirror.read if keep else mirror.range
        self._at = 0
        self._last: tuple[tuple[int, int], bytes] = ((0, 0), b"")

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The place of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, unless the file ends before."""
        asked = self._at, min(len(buffer), max(0, self._end - self._at))
        if asked[1] and self._last[0] != asked:
            self._last = asked, self._get(self._name, *asked)
        if asked[1]:
            buffer[: asked[1]] = self._last[1]
        self._at += asked[1]
        return asked[1]
