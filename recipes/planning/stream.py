"""The endless stream of samples that updates are cut from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from recipes.planning.draws import draws


@lru_cache(maxsize=3)
def permutation(seed: int, epoch: int, num_samples: int) -> np.ndarray:
    """The order of one epoch: a stable argsort of 64-bit draws keyed by (seed, epoch).

    Returns:
        int64 of shape (num_samples,), read-only: position in the epoch -> index of the sample.
    """
    order = np.argsort(draws(seed, "permutation", epoch).bits(num_samples), kind="stable")
    order.flags.writeable = False
    return order


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One permutation of the training set an epoch, joined without end.

    A position `p` of the stream lies in epoch `p // num_samples`. Updates are consecutive ranges of positions, so no
    sample is dropped or repeated within an epoch, whatever the batch and whoever computes which part of it.

    Args:
        seed: the recipe's seed.
        num_samples: samples of the training set, at least 1.
    Raises:
        ValueError: `num_samples` is below 1.
    """

    seed: int
    num_samples: int

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(f"Stream.num_samples must be at least 1, got {self.num_samples}")

    def samples(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and indices of the samples at positions start ... start + count - 1: two int64 arrays (count,)."""
        return self.at(range(start, start + count))

    def at(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and indices of the samples at any positions, in the order given: two int64 arrays."""
        epochs, places = np.divmod(np.asarray(positions, dtype=np.int64), self.num_samples)
        indices = np.empty_like(places)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            indices[here] = permutation(self.seed, int(epoch), self.num_samples)[places[here]]
        return epochs, indices
