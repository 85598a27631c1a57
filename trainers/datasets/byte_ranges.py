"""Encoded images that lie in ranges of bytes of larger files."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.place import Place
from trainers.datasets.remote import Mirror, Piece
from trainers.datasets.samples import EncodedSamples, FilePaths, UnreadableImage, evenly

_MOST_OPEN = 512  # files that stay open; many systems allow 1,024 to a process
_NUM_READ = 16  # images of a file whose bytes are in the fingerprint


@dataclass(frozen=True, kw_only=True, eq=False)
class ByteRanges(EncodedSamples):
    """Samples whose image files are stored whole in larger files. Reading one is one `pread`; threads may share this.

    At a URL each is one request for its range of bytes.

    Args:
        files: the larger files; the first 512 stay open once they are read from.
        file_of: place in `files` of each sample.
        offsets, sizes: in bytes, of each sample in its file.
        names: what to call each sample within its file; empty where it has no name.
        place: of the files.
    """

    files: Sequence[Path]
    file_of: np.ndarray
    offsets: np.ndarray
    sizes: np.ndarray
    names: FilePaths
    place: Place
    _open_files: dict[int, int] = field(default_factory=dict, init=False, repr=False)
    _opening: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file.

        Raises:
            OSError: the larger file is gone, or cut off.
        """
        if self.mirror is not None:
            return self.mirror.read(*self._piece(index))
        number, offset, size = int(self.file_of[index]), int(self.offsets[index]), int(self.sizes[index])
        handle = self._open_files.get(number) or self._opened(number)
        try:
            data = os.pread(handle, size, offset)
        finally:
            if number not in self._open_files:
                os.close(handle)
        if len(data) < size:
            raise UnreadableImage(f"{self.name_of(index)}: {len(data)} of {size} bytes are there; the file is cut off")
        return data

    @property
    def mirror(self) -> Mirror | None:
        """Of a URL."""
        return self.place.mirror

    def will_need(self, indices: Iterable[int]) -> None:
        """Fetch these samples ahead, where they come from a URL."""
        if self.mirror is not None:
            self.mirror.will_need(map(self._piece, indices))

    def _piece(self, index: int) -> Piece:
        path = self.files[int(self.file_of[index])]
        return self.place.name(path), int(self.offsets[index]), int(self.sizes[index])

    def name_of(self, index: int) -> str:
        """The file of a sample, its place in it in bytes, and its name there."""
        name = f" ({self.names[index]})" if len(self.names) else ""
        return f"{self.place.shown(self.files[int(self.file_of[index])])}, byte {int(self.offsets[index])}{name}"

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each file: names, sizes and labels of its samples, and the bytes of 16 evenly spaced ones."""
        bounds = np.searchsorted(self.file_of, np.arange(len(self.files) + 1)).tolist()
        ranges = list(map(range, bounds[:-1], bounds[1:]))
        for samples in ranges:
            self.will_need(samples[number] for number in evenly(len(samples), _NUM_READ))
        return {
            self.place.name(path): sha256_of_parts(self._identity(samples))
            for path, samples in zip(self.files, ranges, strict=True)
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_open_files", "_opening")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _open_files={}, _opening=threading.Lock())

    def __del__(self) -> None:
        for handle in getattr(self, "_open_files", {}).values():
            os.close(handle)

    def _opened(self, number: int) -> int:
        with self._opening:
            if number in self._open_files:
                return self._open_files[number]
            handle = os.open(self.files[number], os.O_RDONLY | os.O_CLOEXEC)
            if len(self._open_files) < _MOST_OPEN:
                self._open_files[number] = handle
            return handle

    def _identity(self, samples: range) -> Iterator[str | bytes]:
        read = {samples[number] for number in evenly(len(samples), _NUM_READ)}
        for index in samples:
            yield f"{self.names[index] if len(self.names) else ''} {self.sizes[index]} {self.labels[index]}"
            if index in read:
                yield self.encoded(index)
