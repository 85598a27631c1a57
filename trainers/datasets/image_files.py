"""Samples that lie in image files."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from trainers.datasets.splits import Sample
from trainers.faults import FailedAlone

# Modes of 8 bits a channel, to which Pillow cuts 16 bits of colour. The others (I;16, I, F) it would clip to white.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}

# What may lie in a file, whatever its name says. Of all that Pillow knows, EPS would start Ghostscript on it.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

# Some JPEGs have damaged EXIF data. Nothing of it is used, and Pillow would tell of it in the middle of a run; so it
# would of transparency, which is dropped, and of large images, without a name. Twice as large ones it refuses.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
warnings.filterwarnings("ignore", message="Palette images with Transparency", module=r"PIL\.Image")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


class UnreadableImage(FailedAlone, ValueError):
    """A file is missing, cut off, no image, or grey with more than 8 bits."""


class FilePaths(Sequence[str]):
    """Paths whose bytes lie in one piece: of ImageNet's 1.28 million, 50 MB in place of 127 as so many str.

    >>> paths = FilePaths()
    >>> paths.extend([b"cat/1.jpg", b"dog/22.jpg"])
    >>> paths[1], len(paths), list(paths)
    ('dog/22.jpg', 2, ['cat/1.jpg', 'dog/22.jpg'])
    """

    def __init__(self) -> None:
        self._text, self._bounds = bytearray(), array("q", [0])

    def extend(self, paths: Iterable[bytes]) -> None:
        """Add paths, as the file system has them."""
        for path in paths:
            self._text += path
            self._bounds.append(len(self._text))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> str:
        place = range(len(self))[index]
        return os.fsdecode(bytes(self._text[self._bounds[place] : self._bounds[place + 1]]))


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images that are read and decoded when they are asked for. It keeps no file open, so threads may share it.

    Transparency is dropped, an orientation in the EXIF data is not applied.

    Args:
        folder: where the paths begin.
        paths: relative, of each sample; `FilePaths` where there are many.
        labels: one integer a sample.
        channels: 3 for colour, 1 for grey.
    Attributes:
        threads_pay: reading takes long and lets go of Python's lock.
    """

    threads_pay: ClassVar[bool] = True

    folder: Path
    paths: Sequence[str]
    labels: np.ndarray
    channels: int

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Sample:
        """The image, uint8 height x width x channels, and its label.

        Raises:
            UnreadableImage: the file is missing, cut off, no image, or grey with more than 8 bits; it is named.
        """
        path = self.path_of(index)
        with _named(path), Image.open(path, formats=_FORMATS) as image:
            _require_mode(image)
            image_HWC = np.array(image.convert("RGB" if self.channels == 3 else "L"), dtype=np.uint8)
        return image_HWC.reshape(*image_HWC.shape[:2], self.channels), int(self.labels[index])

    def path_of(self, index: int) -> Path:
        """The file of a sample."""
        return self.folder / self.paths[index]

    def require_readable(self, index: int) -> None:
        """Look at the first and last bytes of a file. One that does not end as its format does is decoded.

        Raises:
            UnreadableImage: as of reading it.
        """
        path = self.path_of(index)
        with _named(path), open(path, "rb") as file, Image.open(file, formats=_FORMATS) as image:
            _require_mode(image)
            end = _ENDS.get(image.format or "", b"")
            file.seek(-len(end), os.SEEK_END)
            whole = bool(end) and file.read() == end
        if not whole:
            self[index]


@contextmanager
def _named(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and more for broken files
        raise UnreadableImage(f"{path}: not a readable image ({type(error).__name__}: {error})") from error


def _require_mode(image: Image.Image) -> None:
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode}: only 8 bits a channel are read, convert it first")
