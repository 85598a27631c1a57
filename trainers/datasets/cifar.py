"""CIFAR-10 and CIFAR-100 from the files of their binary versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.arguments import require_count
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.samples import SamplesInMemory, require_root, require_split

_SIDE = 32
_PIXEL_BYTES = 3 * _SIDE * _SIDE  # red, green and blue pixels, row by row


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
            ValueError: there is no root; a file is missing or of another size; a record's label is no class.
        """
        return self._files().samples(root, split)

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes; the sizes of the files are checked, their bytes are not read."""
        return self._files().facts(root)

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over the bytes of all files, and the fields."""
        return sha256_of_parts([repr(self), *self._files().digests(root)])

    def _files(self) -> _Files:
        train = {f"data_batch_{number}.bin": self.num_per_file for number in range(1, 6)}
        return _Files(
            name="CIFAR-10",
            records={"train": train, "eval": {"test_batch.bin": self.num_per_file}},
            fields="Cifar10.num_per_file",
            label_bytes=1,
            num_classes=10,
        )


@dataclass(frozen=True, kw_only=True)
class Cifar100:
    """CIFAR-100: 60,000 colour images of 32x32 pixels in 100 classes, as the binary version stores them.

        ROOT/train.bin, ROOT/test.bin
        record = coarse label (1 byte, not used), fine label (1 byte, 0..99), 1,024 red, green and blue bytes each

    As `Cifar10`; unpack `cifar-100-binary.tar.gz`.

    Args:
        num_train: records of train.bin, at least 1: 50,000 as published, fewer in a file that you have cut.
        num_eval: records of test.bin, at least 1: 10,000 as published.
    Raises:
        ValueError: see `Cifar10`.

    Source: see `Cifar10`.
    """

    num_train: int = 50_000
    num_eval: int = 10_000

    def __post_init__(self) -> None:
        for name in ("num_train", "num_eval"):
            require_count(f"Cifar100.{name}", getattr(self, name))

    open = Cifar10.open
    facts = Cifar10.facts
    fingerprint = Cifar10.fingerprint

    def _files(self) -> _Files:
        return _Files(
            name="CIFAR-100",
            records={"train": {"train.bin": self.num_train}, "eval": {"test.bin": self.num_eval}},
            fields="Cifar100.num_train or num_eval",
            label_bytes=2,
            num_classes=100,
        )


@dataclass(frozen=True, kw_only=True)
class _Files:
    """The files of a data set.

    Args:
        name: of the data set.
        records: split -> file -> its number of records.
        fields: that give these numbers.
        label_bytes: of a record, before its pixels; the last one is the class.
        num_classes: of the data set.
    """

    name: str
    records: Mapping[str, Mapping[str, int]]
    fields: str
    label_bytes: int
    num_classes: int

    def samples(self, root: Path | None, split: str) -> SamplesInMemory:
        require_split(split)
        records = np.concatenate([self._read(path) for path in self._paths(root, split)])
        images_NCHW = records[:, self.label_bytes :].reshape(-1, 3, _SIDE, _SIDE)
        images_NHWC = np.ascontiguousarray(images_NCHW.transpose(0, 2, 3, 1))
        return SamplesInMemory(images_NHWC=images_NHWC, labels=records[:, self.label_bytes - 1].astype(np.int64))

    def facts(self, root: Path | None) -> dict[str, int]:
        for split in self.records:
            self._paths(root, split)
        counts = {f"num_{split}": sum(files.values()) for split, files in self.records.items()}
        return {**counts, "num_classes": self.num_classes}

    def digests(self, root: Path | None) -> list[str]:
        return [sha256_of_parts([path.read_bytes()]) for split in self.records for path in self._paths(root, split)]

    def _paths(self, root: Path | None, split: str) -> list[Path]:
        """The files of a split, each there and of the right size."""
        layout = ", ".join(name for files in self.records.values() for name in files)
        root = require_root(self.name, root, layout)
        record_bytes = self.label_bytes + _PIXEL_BYTES
        for name, count in self.records[split].items():
            if not (path := root / name).is_file():
                raise ValueError(
                    f"{path}: no such file; the binary version of {self.name} has {layout} in one folder (the Python "
                    "version, without .bin, is not read)"
                )
            if (num_bytes := path.stat().st_size) != count * record_bytes:
                raise ValueError(
                    f"{path}: {num_bytes} bytes, expected {count * record_bytes} ({count} records of {record_bytes} "
                    f"bytes); copy the file again, or correct {self.fields}"
                )
        return [root / name for name in self.records[split]]

    def _read(self, path: Path) -> np.ndarray:
        """The records of a file, uint8 of shape (records, bytes)."""
        records = np.fromfile(path, dtype=np.uint8).reshape(-1, self.label_bytes + _PIXEL_BYTES)
        labels = records[:, self.label_bytes - 1]
        wrong = np.flatnonzero(labels >= self.num_classes)
        if wrong.size:
            what = f"record {wrong[0]} has label {labels[wrong[0]]}, above {self.num_classes - 1}"
            raise ValueError(f"{path}: {what}; the file is damaged")
        return records
