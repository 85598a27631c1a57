"""What all data sets share: the two splits, and samples in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

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
