"""Samples of one forward, loaded by all threads that a rank has, where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainers.kernels.pool import shared


def load_all(load: Callable[[int, int], Any], samples: Sequence[tuple[int, int]], *, threads: bool) -> list[Any]:
    """What `load` gives for each sample, in their order.

    Decoding and resizing let go of Python's lock, so that threads load beside each other. What is drawn for a sample
    does not depend on who loads it.

    Args:
        load: (epoch, index) -> sample.
        samples: epoch and index of each.
        threads: several should load, see `trainers.build.Parts`.
    Raises:
        Exception: what `load` raises for one of them.
    """
    loaded: list[Any] = [None] * len(samples)

    def some(start: int, stop: int) -> None:
        for place in range(start, stop):
            loaded[place] = load(*samples[place])

    shared(some, len(samples), worth=threads)
    return loaded
