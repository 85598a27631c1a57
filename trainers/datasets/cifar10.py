"""CIFAR-10 from the files of its binary version."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.arguments import require_count
from trainers.datasets.samples import SamplesInMemory, require_split, sha256_of

_SIDE = 32
_RECORD_BYTES = 1 + 3 * _SIDE * _SIDE  # label, then the red, green and blue pixels, row by row
_NUM_CLASSES = 10
_FILES = {"train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)), "eval": ("test_batch.bin",)}


@dataclass(frozen=True, kw_only=True)
class Cifar10:
    """CIFAR-10: 60,000 colour images of 32x32 pixels in 10 classes, as the binary version stores them.

        ROOT/data_batch_1.bin ... data_batch_5.bin, ROOT/test_batch.bin
        record = label (1 byte, 0..9), 1,024 red bytes, 1,024 green bytes, 1,024 blue bytes

    The samples keep the order of the files and of their records. A split is read whole when it is opened: 154 MB for
    training. Nothing is downloaded: unpack `cifar-10-binary.tar.gz` and name its folder.

    Args:
        num_per_file: records of each file, at least 1: 10,000 as published, fewer in files that you have cut.
    Raises:
        ValueError: `num_per_file` is no whole number above 0. When opened: a file is missing, of another size, or has a
            label above 9.

    Source: the format's description beside the data, https://www.cs.toronto.edu/~kriz/cifar.html.
    """

    num_per_file: int = 10_000

    def __post_init__(self) -> None:
        require_count("Cifar10.num_per_file", self.num_per_file)

    def open(self, root: Path | None, split: str) -> SamplesInMemory:
        """The samples of "train" or "eval".

        Raises:
            ValueError: there is no root; a file is missing or of another size; a record's label is above 9.
        """
        require_split(split)
        records = np.concatenate([_records(path) for path in self._paths(root, split)])
        images_NCHW = records[:, 1:].reshape(-1, 3, _SIDE, _SIDE)
        images_NHWC = np.ascontiguousarray(images_NCHW.transpose(0, 2, 3, 1))
        return SamplesInMemory(images_NHWC=images_NHWC, labels=records[:, 0].astype(np.int64))

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes; the sizes of the files are checked, their bytes are not read."""
        counts = {f"num_{split}": self.num_per_file * len(self._paths(root, split)) for split in _FILES}
        return {**counts, "num_classes": _NUM_CLASSES}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over the bytes of all files, and the fields."""
        paths = [path for split in _FILES for path in self._paths(root, split)]
        return sha256_of([repr(self), *(sha256_of([path.read_bytes()]) for path in paths)])

    def _paths(self, root: Path | None, split: str) -> list[Path]:
        """The files of a split, each there and of the right size."""
        if root is None:
            raise ValueError("Cifar10 needs a folder of .bin files: give its root in the data set's file or --data")
        return [self._checked(root / name) for name in _FILES[split]]

    def _checked(self, path: Path) -> Path:
        if not path.is_file():
            raise ValueError(
                f"{path}: no such file; the binary version of CIFAR-10 has data_batch_1.bin to data_batch_5.bin and "
                "test_batch.bin in one folder (the Python version, without .bin, is not read)"
            )
        expected, num_bytes = self.num_per_file * _RECORD_BYTES, path.stat().st_size
        if num_bytes != expected:
            raise ValueError(
                f"{path}: {num_bytes} bytes, expected {expected} ({self.num_per_file} records of {_RECORD_BYTES} "
                "bytes); copy the file again, or correct Cifar10.num_per_file"
            )
        return path


def _records(path: Path) -> np.ndarray:
    """The records of a file, uint8 of shape (records, 3073)."""
    records = np.fromfile(path, dtype=np.uint8).reshape(-1, _RECORD_BYTES)
    wrong = np.flatnonzero(records[:, 0] >= _NUM_CLASSES)
    if wrong.size:
        label = records[wrong[0], 0]
        raise ValueError(f"{path}: record {wrong[0]} has label {label}, above {_NUM_CLASSES - 1}; the file is damaged")
    return records
