"""Images made of a class pattern and noise, for trying things without data."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np

from recipes.arguments import require_count, require_share
from recipes.planning.random_bits import draws
from trainers.datasets.fingerprints import sha256_of_parts
from trainers.datasets.samples import Sample, require_split

_KEPT_BYTES = 1 << 28  # images of a split, at most, are kept once they are computed


@dataclass(frozen=True, kw_only=True)
class Synthetic:
    """A random pattern for each class under three times as much noise; any number of samples, nothing stored.

        image = (pattern of the class + 3 * noise) // 4          bytes 0..255, uniform and independent

    Sample i has the class i modulo `num_classes`. Its noise is drawn by (seed, split, i), the pattern by (seed, class)
    and is the same in both splits, so a model that learns it scores on "eval" too.

    A share `label_noise` of the training labels is wrong: drawn by (seed, i), uniform over the other classes, the same
    in every epoch. The image keeps the pattern of its true class, and the labels of "eval" are true.

    Args:
        num_train: training samples, at least 1.
        num_eval: evaluation samples, at least 1.
        num_classes: at least 1.
        channels: 1 for grey, 3 for colour, or another number.
        size: side of the images in pixels.
        seed: seed of the patterns, the noise and the wrong labels; not the recipe's.
        label_noise: probability that a training sample's label is wrong, in [0, 1).
    Raises:
        ValueError: one of them is no number in range; `label_noise` with a single class.

    Source: none.
    """

    reads_folder: ClassVar[bool] = False

    num_train: int = 1024
    num_eval: int = 256
    num_classes: int = 10
    channels: int = 3
    size: int = 32
    seed: int = 0
    label_noise: float = 0.0

    def __post_init__(self) -> None:
        for name in ("num_train", "num_eval", "num_classes", "channels", "size"):
            require_count(f"Synthetic.{name}", getattr(self, name))
        require_count("Synthetic.seed", self.seed, at_least=0)
        require_share("Synthetic.label_noise", self.label_noise)
        if self.label_noise and self.num_classes == 1:
            raise ValueError("Synthetic.label_noise needs another class to take the label from: num_classes is 1")

    def open(self, root: Path | None, split: str) -> SyntheticSamples:
        """The samples of "train" or "eval"; `root` is ignored."""
        require_split(split)
        return SyntheticSamples(dataset=self, split=split)

    def facts(self, root: Path | None) -> dict[str, int]:
        """num_train, num_eval and num_classes."""
        return {"num_train": self.num_train, "num_eval": self.num_eval, "num_classes": self.num_classes}

    def fingerprint(self, root: Path | None) -> str:
        """SHA-256 over the fields."""
        return sha256_of_parts([repr(self)])


@dataclass(frozen=True, kw_only=True)
class SyntheticSamples:
    """One split of `Synthetic`; a sample is computed at its first access, and at each one of a split above 256 MiB.

    Args:
        dataset: its fields.
        split: "train" or "eval".
    """

    dataset: Synthetic
    split: str

    def __len__(self) -> int:
        return self.dataset.num_train if self.split == "train" else self.dataset.num_eval

    def __getitem__(self, index: int) -> Sample:
        if not 0 <= index < len(self):
            raise IndexError(f"sample {index} of {len(self)}")
        if self._kept is None:
            return self._computed(index)
        images, labels = self._kept
        if labels[index] < 0:
            images[index], labels[index] = self._computed(index)
        image = images[index]
        image.flags.writeable = False
        return image, int(labels[index])

    def where(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """See `SamplesInMemory.where`; None of a split above 256 MiB."""
        if self._kept is None:
            return None
        images, labels = self._kept
        for index in indices[labels[indices] < 0].tolist():
            images[index], labels[index] = self._computed(index)
        return images, indices, labels[indices]

    @functools.cached_property
    def _kept(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Images, and labels, -1 of those that are not computed yet."""
        shape = (len(self), self.dataset.size, self.dataset.size, self.dataset.channels)
        if math.prod(shape) > _KEPT_BYTES:
            return None
        return np.empty(shape, np.uint8), np.full(len(self), -1)

    def _computed(self, index: int) -> Sample:
        label = index % self.dataset.num_classes
        pattern = self._bytes("synthetic pattern", label)
        noise = self._bytes(f"synthetic {self.split}", index)
        return ((pattern + 3 * noise) // 4).astype(np.uint8), self._label(index, label)

    def _label(self, index: int, label: int) -> int:
        """The label that goes with a sample of the class `label`."""
        if self.split != "train" or not self.dataset.label_noise:
            return label
        drawn = draws(self.dataset.seed, "synthetic label", index)
        if drawn.uniform() >= self.dataset.label_noise:
            return label
        return (label + 1 + drawn.integers(self.dataset.num_classes - 1)) % self.dataset.num_classes

    def _bytes(self, purpose: str, key: int) -> np.ndarray:
        shape = (self.dataset.size, self.dataset.size, self.dataset.channels)
        count = int(np.prod(shape))
        words = draws(self.dataset.seed, purpose, key).bits(-(-count // 8))
        return words.astype("<u8").view(np.uint8)[:count].astype(np.uint16).reshape(shape)
