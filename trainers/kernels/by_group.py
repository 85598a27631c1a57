"""Forwards of several norm groups whose bits do not depend on how many there are: exact mode's, on a CPU.

A product or a sum over all samples of a forward rounds differently with each number of samples. Within `apart`, kernels
compute those of each group by itself, as they would for that group alone, and add what the groups give to a parameter
in the tree of `trainers.communicators.tree_sum`, of which a forward is then one node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_WORTH_THREADS = 1 << 22  # multiplications of a product
count = 0  # norm groups of the current forward that are computed apart, a power of two; 0: all samples as one


@contextlib.contextmanager
def apart(groups: int) -> Iterator[None]:
    """Around forward and backward of so many norm groups."""
    global count
    before, count = count, groups
    try:
        yield
    finally:
        count = before


def options() -> dict[str, int]:
    """The argument `groups` of operators that can compute groups apart; nothing where there is one group."""
    return {"groups": count} if count > 1 else {}


def tree_sum(parts: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
    """parts[0] + parts[1] + ..., neighbours first, then neighbouring sums.

    Args:
        parts: a power of two of them, arrays or on the first axis of one.

    >>> import numpy as np
    >>> tree_sum(np.arange(8.0).reshape(4, 2)).tolist()
    [12.0, 16.0]
    """
    while len(parts) > 1:
        pairs = parts[0::2], parts[1::2]
        parts = pairs[0] + pairs[1] if hasattr(parts, "dtype") else [a + b for a, b in zip(*pairs, strict=True)]
    return parts[0]


def sum_of_groups(parts: np.ndarray) -> np.ndarray:
    """The sum of what each group of a forward gives to a parameter, (groups, ...)."""
    if len(parts) == 1:
        return parts[0]
    return tree_sum(parts) if count else parts.sum(axis=0)


def sum_over_samples(values: Any, axis: tuple[int, ...]) -> Any:
    """values.sum(axis), where axis 0 is the samples; of each group apart where `count` is above 1."""
    if not count:
        return values.sum(axis=axis)
    import numpy as np

    return tree_sum(np.stack([part.sum(axis=axis) for part in np.split(values, count)]))


def product(x: np.ndarray, y: np.ndarray, *, of_weights: bool, b: Sequence[np.ndarray] = ()) -> np.ndarray:
    """x @ y + b of each group apart.

    Args:
        of_weights: the product sums over samples: x is (values, samples). Else x is (samples, values).
    """
    import numpy as np

    from trainers.kernels.threads import shared

    def split(rows: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(rows).reshape(count, len(rows) // count, -1)

    x_parts = split(x.T).swapaxes(1, 2) if of_weights else split(x)
    y_parts = split(y) if of_weights else np.broadcast_to(y, (count, *y.shape))
    products = np.empty((count, x_parts.shape[1], y.shape[1]), np.result_type(x, y))

    def task(start: int, stop: int) -> None:
        np.matmul(x_parts[start:stop], y_parts[start:stop], out=products[start:stop])

    shared(task, count, worth=products.size * x_parts.shape[2] >= _WORTH_THREADS)
    return tree_sum(products) if of_weights else sum(b, products.reshape(len(x), -1))
