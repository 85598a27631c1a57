"""The endless stream of samples that updates are cut from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from recipes.planning.random_bits import draws

if TYPE_CHECKING:
    from recipes.schema import Dataset, Recipe

# Further copies of a sample are augmented as if they came so many epochs later; no run has so many epochs.
_EPOCHS_A_COPY = 2**32


@lru_cache(maxsize=3)
def permutation(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """The order of one epoch: a stable argsort of 64-bit draws keyed by (seed, epoch).

    Returns:
        int64 of shape (num_samples,), read-only: position in the epoch -> index of the sample.
    """
    order = _stable_argsort(draws(seed, "permutation", epoch).bits(num_samples))
    order.flags.writeable = False
    return order


def held_out(num_samples: int, count: int, labels: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Which of `num_samples` training samples are trained on, and which `count` of them are scored instead.

    The latter come first in a stable argsort of 64-bit draws, which are keyed by nothing but their purpose. With
    `labels` the i-th of the n samples of a class, in that order, has the place (i + 1/2) / n, and those with the lowest
    places are scored: about the same share of every class (Webster's method of apportionment).

    Args:
        labels: one integer a sample; None: classes do not count.

    Returns:
        two int64 arrays of indices, ascending, read-only.

    >>> trained, scored = held_out(10, 3)
    >>> sorted([*trained.tolist(), *scored.tolist()]) == list(range(10)), len(scored)
    (True, 3)
    >>> labels = np.array([0, 0, 0, 0, 1, 1, 0, 0, 0, 0])
    >>> labels[held_out(10, 5, labels)[1]].tolist()
    [0, 0, 1, 0, 0]
    """
    is_scored = np.zeros(num_samples, dtype=bool)
    order = _order_of_holding_out(num_samples)
    if labels is not None:
        sizes, places = np.bincount(labels), np.empty(num_samples)
        by_class = order[np.argsort(labels[order], kind="stable")]
        starts = np.cumsum(sizes) - sizes
        places[by_class] = (2 * (np.arange(num_samples) - np.repeat(starts, sizes)) + 1) / np.repeat(2 * sizes, sizes)
        order = order[np.argsort(places[order], kind="stable")]
    is_scored[order[:count]] = True
    parts = np.flatnonzero(~is_scored), np.flatnonzero(is_scored)
    for part in parts:
        part.flags.writeable = False
    return parts


@lru_cache(maxsize=2)
def _order_of_holding_out(num_samples: int) -> np.ndarray:
    order = _stable_argsort(draws(0, "held-out samples").bits(num_samples))
    order.flags.writeable = False
    return order


def _stable_argsort(words: np.ndarray) -> np.ndarray:
    """np.argsort(words, kind="stable") of random 64-bit words, in a third of the time.

    NumPy sorts 16 bits by radix, in linear time. Merge sort then finds the words nearly in order.
    """
    first = np.argsort((words >> np.uint64(48)).astype(np.uint16), kind="stable")
    return first[np.argsort(words[first], kind="stable")]


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One permutation of the training set an epoch, joined without end.

    A position `p` of the stream lies in epoch `p // num_samples`. Updates are consecutive ranges of positions, so no
    sample is dropped or repeated within an epoch, whatever the batch and whoever computes which part of it.

    With `repeats` r > 1 (repeated augmentation) each sample of the permutation comes r times in a row, while an epoch
    keeps its length: its position q holds permutation[q // r], so that it has ceil(num_samples / r) different samples.
    Copy q % r has draws of its own, keyed by epoch + 2**32 (q % r) instead of epoch.

    Args:
        seed: the recipe's seed.
        num_samples: samples of the training set, at least 1.
        repeats: how often a sample comes in a row, at least 1.
    Raises:
        ValueError: `num_samples` or `repeats` is below 1.
    """

    seed: int
    num_samples: int
    repeats: int = 1

    def __post_init__(self) -> None:
        for name in ("num_samples", "repeats"):
            if getattr(self, name) < 1:
                raise ValueError(f"Stream.{name} must be at least 1, got {getattr(self, name)}")

    def samples(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """As `at`, of positions start ... start + count - 1."""
        return self.at(range(start, start + count))

    def at(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The samples at some positions.

        Returns:
            two int64 arrays (positions,): the epoch by which a sample's draws are keyed, and its index.
        """
        epochs, offsets = np.divmod(np.asarray(positions, dtype=np.int64), self.num_samples)
        keys = epochs
        if self.repeats > 1:
            offsets, copies = np.divmod(offsets, self.repeats)
            keys = epochs + _EPOCHS_A_COPY * copies
        changes = np.flatnonzero(np.diff(epochs)) + 1  # few: positions mostly come in a row
        indices = np.empty_like(offsets)
        for first, stop in zip([0, *changes], [*changes, len(epochs)], strict=True):
            if stop > first:
                order = permutation(self.seed, int(epochs[first]), self.num_samples)
                indices[first:stop] = order[offsets[first:stop]]
        return keys, indices


def stream_of(recipe: Recipe, dataset: Dataset) -> Stream:
    """The order in which a recipe draws the samples of its data set."""
    return Stream(seed=recipe.seed, num_samples=dataset.num_train, repeats=recipe.stream.repeats)
