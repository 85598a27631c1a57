"""Norms of the gradients of the shares of an update: what noise scale and AdaScale are computed from."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import chainer

from recipes.noise_scale import Norms
from trainers.gradients import squared_norm


class ShareNorms:
    """The squared norms of the mean gradients of this worker's micro-batches in one update.

    A share is a micro-batch: whole norm groups, so that it is the same function of its samples as it would be alone.
    Costs one pass over the gradients a micro-batch, and their memory once more from the second micro-batch on.

    Args:
        model: whose gradients are sums over the samples seen so far.
        factor: what the losses were multiplied by, and is not yet divided out of the gradients.
    """

    def __init__(self, model: chainer.Link, *, factor: float = 1.0) -> None:
        self._model = model
        self._factor = factor
        self._own: list[tuple[int, int, float]] = []  # offset in the update, samples, squared norm

    @contextlib.contextmanager
    def of(self, *, offset: int, size: int) -> Iterator[None]:
        """Around the backward of the micro-batch of `size` samples at `offset` of the update."""
        held = [(parameter, parameter.grad) for parameter in self._model.params()]
        self._model.cleargrads()
        yield
        self._own.append((offset, size, squared_norm(self._model) / (size * self._factor) ** 2))
        for parameter, before in held:
            if parameter.grad is None:
                parameter.grad = before
            elif before is not None:
                parameter.grad += before

    def gathered(self, mpi: Any) -> Norms | None:
        """The estimates of the whole update, the same on all workers; the model's gradient is now its mean.

        Args:
            mpi: communicator of all workers; all call this together.
        Returns:
            None where the update is one share.
        """
        # In the order of the samples, so that the sum does not depend on who held which share.
        shares = sorted(share for own in mpi.allgather(self._own) for share in own)
        _, sizes, norms = zip(*shares, strict=True)
        if not all(map(math.isfinite, norms)):
            return None  # the failure is told where the loss or the weights are looked at
        return Norms.of_shares(sizes, norms, squared_norm(self._model))
