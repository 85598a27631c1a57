"""Norms of the gradients of the shares of an update: what noise scale and AdaScale are computed from."""

from __future__ import annotations

import math
from typing import Any

from recipes.noise_scale import Norms
from trainers.gradients import squared_norm


class ShareNorms:
    """The squared norms of the mean gradients of this worker's micro-batches in one update.

    A share is a micro-batch: whole norm groups, so that it is the same function of its samples as it would be alone.

    Args:
        factor: what the losses were multiplied by, and is not divided out of the gradients that are added.
    """

    def __init__(self, *, factor: float) -> None:
        self._factor = factor
        self._own: list[tuple[int, float]] = []  # samples, squared norm

    def add(self, *, size: int, squared: float) -> None:
        """Take in a micro-batch of `size` samples.

        Args:
            squared: squared norm of the gradient of the sum of its samples' losses, times the factor's square.
        """
        self._own.append((size, squared / (size * self._factor) ** 2))

    def gathered(self, values: Any, mpi: Any) -> Norms | None:
        """The estimates of the whole update, the same on all workers.

        Bytes on the wire: about 13 a micro-batch and 25 a worker, from each worker to each.

        Args:
            values: the mean gradient of the update, of all parameters in one array.
            mpi: communicator of all workers; all call this together.
        Returns:
            None where the update is one share.
        """
        shares = [share for own in mpi.allgather(self._own) for share in own]
        sizes, norms = zip(*shares, strict=True)
        if not all(map(math.isfinite, norms)):
            return None  # the failure is told where the loss or the weights are looked at
        return Norms.of_shares(sizes, norms, squared_norm(values))
