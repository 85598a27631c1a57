"""Samples that lie in image files."""

from __future__ import annotations

import os
import warnings
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image

from trainers.datasets.splits import Sample
from trainers.faults import FailedAlone

# Modes of 8 bits a channel. The others (I;16, I, F) would be clipped to white without a word.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

# Some JPEGs have damaged EXIF data. Nothing of it is used, and Pillow would tell of it in the middle of a run.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")


class UnreadableImage(FailedAlone, ValueError):
    """A file is missing, cut off, no image, or has more than 8 bits a channel."""


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
            UnreadableImage: the file is missing, cut off, no image, or has more than 8 bits a channel; it is named.
        """
        path = self.folder / self.paths[index]
        try:
            with Image.open(path) as image:
                if image.mode not in _MODES:
                    raise ValueError(f"mode {image.mode}: only 8 bits a channel are read, convert it first")
                image_HWC = np.array(image.convert("RGB" if self.channels == 3 else "L"), dtype=np.uint8)
        except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and more for broken files
            raise UnreadableImage(f"{path}: not a readable image ({type(error).__name__}: {error})") from error
        return image_HWC.reshape(*image_HWC.shape[:2], self.channels), int(self.labels[index])
