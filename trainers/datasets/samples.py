"""Samples in memory and in image files, and what all data sets share."""

from __future__ import annotations

import hashlib
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

from trainers.runs.errors import RankFailed

# Modes of 8 bits a channel; Pillow reduces 16-bit colour to these. It would clip the other modes (I;16, I, F) to white.
_MODES = frozenset({"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"})

_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}

# Formats that are opened, whatever the file's suffix. Of Pillow's others, EPS would run Ghostscript on the file.
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")

# Warnings of Pillow that would appear in the middle of a run without the file's name: of damaged EXIF data, which is
# not used; of transparency, which is dropped; of large images. Pillow still refuses images of twice its limit.
warnings.filterwarnings("ignore", module=r"PIL\.TiffImagePlugin")
warnings.filterwarnings("ignore", message="Palette images with Transparency", module=r"PIL\.Image")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)


# A sample: the image, height x width x channels, uint8 or float32 in 0..255, and its label.
Sample = tuple[np.ndarray, int]


def require_split(split: str) -> None:
    """Refuse what is neither `train` nor `eval`.

    Raises:
        ValueError: another word.
    """
    if split not in ("train", "eval"):
        raise ValueError(f"split must be 'train' or 'eval', got {split!r}")


@dataclass(frozen=True, kw_only=True, eq=False)
class SamplesInMemory:
    """Images and labels as two arrays, read-only.

    Args:
        images_NHWC: uint8, or float32 in 0..255.
        labels: one integer a sample.
    """

    images_NHWC: np.ndarray
    labels: np.ndarray

    def __post_init__(self) -> None:
        assert len(self.images_NHWC) == len(self.labels)
        self.images_NHWC.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.images_NHWC[index], int(self.labels[index])


def sha256_of(parts: Iterable[str | bytes]) -> str:
    """SHA-256, in hexadecimal, of the parts, each preceded by its length, so that no two lists give the same bytes."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


class UnreadableImage(RankFailed, ValueError):
    """A file is missing, truncated, not an image, or grey with more than 8 bits."""


class FilePaths(Sequence[str]):
    """Paths in one bytearray: ImageNet's 1.28 million take 50 MB, in place of 127 as a list of str.

    >>> paths = FilePaths()
    >>> paths.extend([b"cat/1.jpg", b"dog/22.jpg"])
    >>> paths[1], len(paths), list(paths)
    ('dog/22.jpg', 2, ['cat/1.jpg', 'dog/22.jpg'])
    """

    def __init__(self) -> None:
        self._text, self._bounds = bytearray(), array("q", [0])

    def extend(self, paths: Iterable[bytes]) -> None:
        """Add paths, encoded as by the file system."""
        for path in paths:
            self._text += path
            self._bounds.append(len(self._text))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> str:
        number = range(len(self))[index]
        return os.fsdecode(bytes(self._text[self._bounds[number] : self._bounds[number + 1]]))


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles:
    """Images that are read and decoded on access. No file stays open, so threads may share it.

    Transparency is dropped; an orientation in the EXIF data is not applied.

    Args:
        folder: that the paths are relative to.
        paths: of each sample; `FilePaths` if there are many.
        labels: one integer a sample.
        channels: 3 for colour, 1 for grey.
    Attributes:
        threads_pay: True: reading takes long and releases the GIL.
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
            UnreadableImage: the file is missing, truncated, not an image, or grey with more than 8 bits; it is named.
        """
        path = self.path_of(index)
        with _naming(path), Image.open(path, formats=_FORMATS) as image:
            _require_mode(image)
            image_HWC = np.array(image.convert("RGB" if self.channels == 3 else "L"), dtype=np.uint8)
        return image_HWC.reshape(*image_HWC.shape[:2], self.channels), int(self.labels[index])

    def path_of(self, index: int) -> Path:
        """The file of a sample."""
        return self.folder / self.paths[index]

    def size_of(self, index: int) -> tuple[int, int]:
        """Height and width of an image in pixels, from its file's header."""
        path = self.path_of(index)
        with _naming(path), Image.open(path, formats=_FORMATS) as image:
            return image.height, image.width

    def require_readable(self, index: int) -> None:
        """Check a file's header and last bytes; decode it only if it does not end as its format does.

        Raises:
            UnreadableImage: see `__getitem__`.
        """
        path = self.path_of(index)
        with _naming(path), open(path, "rb") as file, Image.open(file, formats=_FORMATS) as image:
            _require_mode(image)
            end = _ENDS.get(image.format or "", b"")
            file.seek(-len(end), os.SEEK_END)
            whole = bool(end) and file.read() == end
        if not whole:
            self[index]


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # Pillow raises OSError, SyntaxError, struct.error and more for broken files
        raise UnreadableImage(f"{path}: not a readable image ({type(error).__name__}: {error})") from error


def _require_mode(image: Image.Image) -> None:
    if image.mode not in _MODES:
        raise ValueError(f"mode {image.mode}: only 8 bits a channel are read, convert it first")
