"""Samples in memory and in image files, and what all data sets share."""

from __future__ import annotations

import os
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from recipes.schema.dataset import url_of
from trainers.augmentations.decoders import EncodedImage, UndecodableImage, decode, format_of, size_of
from trainers.datasets.remote import local_root
from trainers.runs.errors import RankFailed
from trainers.runs.identity import is_of_the_user

# How the files are called that are decoded, whatever is in them: see `FORMATS` of the decoders.
IMAGE_SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp")

_ENDS = {"JPEG": b"\xff\xd9", "PNG": b"IEND\xaeB`\x82"}

# A sample: the image, height x width x channels, uint8 or float32 in 0..255, and its label.
Sample = tuple[np.ndarray, int]


def require_split(split: str, reader: object = None) -> None:
    """Refuse what is neither `train` nor `eval`, and `eval` of a reader whose `eval` is None.

    Raises:
        ValueError: see above.
    """
    if split not in ("train", "eval"):
        raise ValueError(f"split must be 'train' or 'eval', got {split!r}")
    if split not in splits_of(reader):
        raise ValueError(f"{type(reader).__name__} has no evaluation split: its `eval` is null")


def splits_of(reader: object) -> tuple[str, ...]:
    """The splits of a reader: only `train` if its `eval` is None."""
    return ("train",) if getattr(reader, "eval", "") is None else ("train", "eval")


def require_root(kind: str, root: Path | None, layout: str, *, whole: bool = True) -> Path:
    """The folder of the data; for a URL, its whole copy in the cache, or the URL.

    Args:
        kind: of the reader.
        layout: what the folder holds, for the message.
        whole: whether a URL is copied.
    Raises:
        ValueError: there is none.
    """
    if root is None:
        raise ValueError(
            f"{kind} needs the folder of the data: type --data FOLDER, where FOLDER holds {layout}, or write its root "
            "in the data set's file"
        )
    if whole and url_of(root) is not None:
        return local_root(root)
    return root


def require_names(reader: object, *, whole: bool = False) -> None:
    """Refuse `train` and `eval` of a reader that are empty, absolute, lead upwards, or are equal; `eval` may be None.

    Args:
        whole: `.`, the root itself, may be one of them.
    Raises:
        ValueError: see above.
    """
    kind, paths = type(reader).__name__, {}
    for name in splits_of(reader):
        value = getattr(reader, name)
        paths[name] = path = PurePosixPath(value) if isinstance(value, str) else None
        if whole and value == ".":
            continue
        if path is None or path.is_absolute() or not path.parts or ".." in path.parts:
            raise ValueError(f"{kind}.{name} must be a path below the data set's root, got {value!r}")
    if paths["train"] == paths.get("eval"):
        raise ValueError(f"{kind}.eval must be another path than train, got {value!r}")


def require_channels(reader: object) -> None:
    """Refuse `channels` of a reader that is not 1 or 3.

    Raises:
        ValueError: see above.
    """
    if (value := reader.channels) not in (1, 3) or isinstance(value, bool):
        raise ValueError(f"{type(reader).__name__}.channels must be 1 or 3, got {value!r}")


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
        if isinstance(self.images_NHWC, np.ndarray):
            self.images_NHWC.flags.writeable = False

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        return self.images_NHWC[index], int(self.labels[index])

    def where(self, indices: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray]:
        """All images, and of some samples: the row of each, and its label."""
        return self.images_NHWC, indices, self.labels[indices]


def channels_first(shape: Sequence[int], channels: int) -> str:
    """What to do about an image whose channels stand first, for a message that blames their number; else empty."""
    if len(shape) != 3 or shape[0] != channels or shape[2] == channels:
        return ""
    return "; its channels stand first: transpose it to height x width x channels"


def written_otherwise(name: str, names: Iterable[str]) -> str | None:
    """The name that has the letters of another one in other bytes: of "é" there are two forms in Unicode."""
    form = unicodedata.normalize("NFC", name)
    return next((other for other in names if other != name and unicodedata.normalize("NFC", other) == form), None)


def evenly(count: int, most: int) -> list[int]:
    """Up to `most` evenly spaced indices of `count` samples."""
    chosen = min(count, most)
    return [count * number // chosen for number in range(chosen)]


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
        self._text: Any = bytearray()
        self._bounds: Any = array("q", [0])

    def extend(self, paths: Iterable[bytes]) -> None:
        """Add paths, encoded as by the file system."""
        for path in paths:
            self._text += path
            self._bounds.append(len(self._text))

    def arrays(self) -> dict[str, np.ndarray]:
        """Its content, for an index file."""
        return {"paths": np.frombuffer(self._text, np.uint8), "bounds": np.array(self._bounds)}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> FilePaths:
        """What `arrays` gave, which it shares; it takes no more paths."""
        paths = cls()
        paths._text, paths._bounds = arrays["paths"], arrays["bounds"]
        return paths

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, index: int) -> str:
        number = range(len(self))[index]
        return os.fsdecode(bytes(self._text[self._bounds[number] : self._bounds[number + 1]]))


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedSamples:
    """Samples that are stored as image files, one by one or in a larger file, and decoded on access.

    A subclass reads the bytes: `encoded(index)` and, for messages, `name_of(index)`. Threads may share it.

    Args:
        labels: one integer a sample.
        channels: 3 for colour, 1 for grey; images of the other kind are converted.
    Attributes:
        threads_pay: True: reading takes long and releases the GIL.
    """

    threads_pay: ClassVar[bool] = True

    labels: np.ndarray
    channels: int

    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file."""
        raise NotImplementedError

    def name_of(self, index: int) -> str:
        """The file of a sample; where it lies within a larger one, with its place in it."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Sample:
        """The image, uint8 height x width x channels, and its label.

        Raises:
            UnreadableImage: the file is missing, truncated, no image, or has more than 8 bits a channel; it is named.
        """
        with self.naming(index):
            return decode(self.encoded(index), self.channels), int(self.labels[index])

    def lazy(self, index: int) -> tuple[EncodedImage, int]:
        """The image, decoded when its pixels are needed, and its label.

        Raises:
            UnreadableImage: the file is missing, or its header is that of no image.
        """
        with self.naming(index):
            return EncodedImage(self.encoded(index), self.channels), int(self.labels[index])

    def size_of(self, index: int) -> tuple[int, int]:
        """Height and width of an image in pixels, from its file's header."""
        with self.naming(index):
            return size_of(self.encoded(index))

    def require_readable(self, index: int) -> None:
        """Check a file's header and last bytes; decode it only if it does not end as its format does.

        Raises:
            UnreadableImage: see `__getitem__`.
        """
        with self.naming(index):
            file = self.encoded(index)
            end = _ENDS.get(format_of(file), b"")
        if not (end and file.endswith(end)):
            self[index]

    @contextmanager
    def naming(self, index: int) -> Iterator[None]:
        """Name the sample's file in errors raised inside, as unreadable."""
        try:
            yield
        except UndecodableImage as error:
            raise UnreadableImage(f"{self.name_of(index)}: {error}") from error
        except OSError as error:
            what = f"not a readable image ({type(error).__name__}: {error})"
            raise UnreadableImage(f"{self.name_of(index)}: {what}") from error


def innermost(samples: Any) -> Any:
    """The samples of which these are a choice."""
    while not is_of_the_user(samples) and hasattr(samples, "samples"):
        samples = samples.samples
    return samples


@dataclass(frozen=True, kw_only=True, eq=False)
class ImageFiles(EncodedSamples):
    """Images in files of their own. No file stays open.

    Args:
        folder: that the paths are relative to.
        paths: of each sample; `FilePaths` if there are many.
        mirror: of a URL, where the files come from; `folder` lies in it.
    """

    folder: Path
    paths: Sequence[str]
    mirror: Any = None

    def encoded(self, index: int) -> bytes:
        """The bytes of the image's file."""
        if self.mirror is not None:
            return self.mirror.read(self._name(index))
        return (self.folder / self.paths[index]).read_bytes()

    def will_need(self, indices: Iterable[int]) -> None:
        """Fetch the files of these samples ahead, where they come from a URL."""
        if self.mirror is not None:
            self.mirror.will_need((self._name(index), 0, None) for index in indices)

    def _name(self, index: int) -> str:
        return (self.folder.relative_to(self.mirror.folder) / self.paths[index]).as_posix()

    def name_of(self, index: int) -> str:
        """The file of a sample."""
        return str(self.folder / self.paths[index]) if self.mirror is None else f"{self.mirror.url}/{self._name(index)}"
