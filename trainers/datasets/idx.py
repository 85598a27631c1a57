"""MNIST, Fashion-MNIST and others in the files of MNIST's format."""

from __future__ import annotations

import functools
import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.reports.wording import counted
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.samples import SamplesInMemory, require_root, require_split

_PREFIXES = {"train": "train", "eval": "t10k"}
_PARTS = {"images": 3, "labels": 1}  # and their dimensions
_UINT8 = 8  # the code of the type in the header


@dataclass(frozen=True, kw_only=True)
class Idx:
    """Grey images in IDX files, as MNIST, Fashion-MNIST and KMNIST are published, compressed by gzip or not.

        ROOT/train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte[.gz], t10k-images-..., t10k-labels-...
        file = 0, 0, 8 (uint8), number of dimensions; each dimension, 4 bytes, big endian; the values

    The samples keep the order of the files. A split is read whole when it is opened: 47 MB for MNIST's training.

    Raises:
        ValueError: when opened: a file is missing, damaged or of another format, or there are not as many labels as
            images.

    Source: the format's description beside the data, http://yann.lecun.com/exdb/mnist/ (not checked: as many published
        programs read it, and as the files of Fashion-MNIST are).
    """

    def open(self, root: Path | None, split: str) -> SamplesInMemory:
        """The samples of "train" or "eval".

        Raises:
            ValueError: see the class.
        """
        require_split(split)
        images, labels = (_values(path, _PARTS[part]) for part, path in self._paths(root, split).items())
        if len(images) != len(labels):
            path = self._paths(root, split)["labels"]
            raise ValueError(f"{path}: {len(labels)} labels beside {len(images)} images; copy both files again")
        return SamplesInMemory(images_NHWC=images[..., np.newaxis], labels=labels.astype(np.int64))

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes: the largest label and one."""
        labels = {split: _values(self._paths(root, split)["labels"], 1) for split in _PREFIXES}
        counts = {f"num_{split}": len(values) for split, values in labels.items()}
        return {**counts, "num_classes": 1 + max(int(values.max()) for values in labels.values())}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over the values of all files, whether they are compressed or not."""
        paths = [path for split in _PREFIXES for path in self._paths(root, split).values()]
        return sha256_of_parts([repr(self), *(_bytes(path) for path in paths)])

    def _paths(self, root: Path | None, split: str) -> dict[str, Path]:
        """The files of images and of labels."""
        root = require_root("Idx", root, "train-images-idx3-ubyte[.gz], train-labels-idx1-ubyte and both of t10k")
        return {part: _found(root / f"{_PREFIXES[split]}-{part}-idx{n}-ubyte") for part, n in _PARTS.items()}


def _found(path: Path) -> Path:
    for candidate in (path, path.with_name(f"{path.name}.gz")):
        if candidate.is_file():
            return candidate
    raise ValueError(f"{path}: no such file, nor {path.name}.gz; copy the four files of the data set there")


def _bytes(path: Path) -> bytes:
    """A file's content, uncompressed; read once, since both splits and the fingerprint need the same files."""
    found = path.stat()
    return _content(path, (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_dev))


@functools.lru_cache(maxsize=len(_PREFIXES) * len(_PARTS))
def _content(path: Path, state: tuple[int, ...]) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: {error}; the file is damaged or cut off, copy it again") from error


def _values(path: Path, num_dimensions: int) -> np.ndarray:
    """The values of a file, uint8."""
    data = _bytes(path)
    header = 4 + 4 * num_dimensions
    if data[:4] != bytes([0, 0, _UINT8, num_dimensions]) or len(data) < header:
        what = f"an IDX file of {counted(num_dimensions, 'dimension')}"
        raise ValueError(f"{path}: begins with {data[:4].hex(' ')}, not as {what}; copy it again")
    shape = tuple(np.frombuffer(data[4:header], ">u4").tolist())
    if len(data) - header != math.prod(shape) or not shape[0]:
        raise ValueError(f"{path}: {len(data) - header} bytes of values, where its header says {shape}; copy it again")
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
