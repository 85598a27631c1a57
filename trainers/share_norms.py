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

    def __init__(self, *, factor: float = 1.0) -> None:
        self._factor = factor
        self._own: list[tuple[int, int, float]] = []  # offset in the update, samples, squared norm

    def add(self, *, offset: int, size: int, squared: float) -> None:
        """Take in the micro-batch of `size` samples at `offset` of the update.

        Args:
            squared: squared norm of the gradient of the sum of its samples' losses, times the factor's square.
        """
        self._own.append((offset, size, squared / (size * self._factor) ** 2))

    def gathered(self, values: Any, mpi: Any) -> Norms | None:
        """The estimates of the whole update, the same on all workers.

        Bytes on the wire: about 16 a micro-batch and 25 a worker, from each worker to each.

        Args:
            values: the mean gradient of the update, of all parameters in one array.
            mpi: communicator of all workers; all call this together.
        Returns:
            None where the update is one share.
        """
        # In the order of the samples, so that the sum does not depend on who held which share.
        shares = sorted(share for own in mpi.allgather(self._own) for share in own)
        _, sizes, norms = zip(*shares, strict=True)
        if not all(map(math.isfinite, norms)):
            return None  # the failure is told where the loss or the weights are looked at
        return Norms.of_shares(sizes, norms, squared_norm(values))
