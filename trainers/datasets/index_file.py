"""An index of a data set's files: one file, made once, that every rank reads in place of listing folders."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from recipes.sharing.cache import cache_folder, part_of
from trainers.datasets.fingerprints import sha256_of_parts

_SETTLED_NS = 2_000_000_000  # the clock of some file systems ticks once in two seconds

# File or folder -> its size in bytes, 0 for a folder, and its time of change in nanoseconds.
State = Mapping[str, tuple[int, int]]


Arrays = dict[str, np.ndarray]


def indexed(
    root: Path,
    name: str,
    *,
    state: State,
    make: Callable[[], Arrays],
    is_current: Callable[[Arrays], bool] = lambda arrays: True,
) -> Arrays:
    """The arrays of an index: read from its file if the data have not changed since, else made and written to it.

    The file is `.kilobatch-index-NAME` in the root or, where that cannot be written, in the user's cache folder. It is
    written only if all data are at least two seconds older, so that a later change shows in their time of change. If
    several processes make it at once, they write the same file.

    Args:
        root: folder of the data.
        name: of the index, one for each split.
        state: of the data; the index is made again if it differs.
        make: gives the arrays.
        is_current: whether this version would make the same arrays as those of a file.
    """
    stamp = sha256_of_parts(["kilobatch index 3", *(str(word) for path, now in state.items() for word in (path, *now))])
    file = f".kilobatch-index-{name.replace('/', '-')}"
    places = [root / file, cache_folder() / "indexes" / f"{sha256_of_parts([os.path.realpath(root)])[:16]}{file}"]
    for place in places:
        # What is damaged is made anew: zipfile checks the CRC of each array.
        with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile), place.open("rb") as opened:
            arrays = np.load(opened)
            if str(arrays["stamp"]) == stamp:
                found = {key: arrays[key] for key in arrays.files if key != "stamp"}
                if is_current(found):
                    return found
    made = make()
    newest = max(changed for _, changed in state.values())
    for place in places:
        with suppress(OSError):
            _keep(place, {"stamp": np.array(stamp), **made}, newest)
            break
    return made


def state_of(path: str | Path) -> tuple[int, int]:
    """Size in bytes, 0 of a folder, and time of change in nanoseconds: the later of that of its content and its entry.

    `cp -a`, rsync and tar set the first one back, so that a copy of other data could look unchanged.
    """
    found = os.stat(path)
    size = 0 if os.path.isdir(path) else found.st_size
    return size, max(found.st_mtime_ns, found.st_ctime_ns)


def _keep(place: Path, arrays: dict[str, np.ndarray], newest: int) -> None:
    with part_of(place) as part:
        with part.open("wb") as file:
            np.savez(file, **arrays)
        if part.stat().st_mtime_ns - newest > _SETTLED_NS:  # by the clock of that file system
            part.replace(place)
