"""Loading of one forward's samples, by all threads of a rank where that pays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trainers.kernels.pool import shared


def load_all(load: Callable[[int, int], Any], samples: Sequence[tuple[int, int]], *, threads: bool) -> list[Any]:
    """The result of `load` for each sample, in order.

    Decoding and resizing release the GIL, so that threads load in parallel. The draws for a sample do not depend on the
    thread that loads it.

    Args:
        load: (epoch, index) -> sample.
        samples: epoch and index of each.
        threads: whether to use several threads, see `trainers.build.Parts`.
    Raises:
        Exception: what `load` raises for one of them.
    """
    loaded: list[Any] = [None] * len(samples)

    def some(start: int, stop: int) -> None:
        for place in range(start, stop):
            loaded[place] = load(*samples[place])

    shared(some, len(samples), worth=threads)
    return loaded
