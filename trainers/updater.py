"""One update of the plan: micro-batches, one exchange of gradients, one step of the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer.training.updaters import StandardUpdater
from mpi4py import MPI

from recipes.planning.division import Division
from recipes.planning.planner import Plan
from recipes.rates import learning_rate_at, momentum_at
from trainers.faults import NotFinite
from trainers.keyed_draws import KeyedDropout
from trainers.norm_groups import NormGroups
from trainers.stream_iterator import LoadedMicroBatch, SeenSample, StreamIterator


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it."""

    update: int
    epoch: float
    samples: int
    global_batch_size: int
    learning_rate: float
    momentum: float | None
    loss: float
    seen: tuple[SeenSample, ...]


class RecipeUpdater(StandardUpdater):
    """Does one update of a plan on Chainer's conventions (`Trainer`, extensions, reporter).

        g = 1/B * sum over workers and micro-batches of n * gradient of the mean loss over its n samples

    Gradients are summed over samples and divided once by the global batch B, so that uneven shares are averaged
    exactly, and a sample's part is rounded alike whatever micro-batch it lies in. Gradients cross the wire once an
    update. Bytes on the wire: one all-reduce of the gradients, one of 24 bytes a normalised channel, and 17 bytes a
    worker for loss and flags.

    Args:
        iterator: this worker's share of every update.
        optimizer: set up with the model as its target.
        loss: (logits, labels) -> mean over the samples given.
        plan: what is done when.
        communicator: a ChainerMN communicator of all workers.
        norm_groups: installed in the model.
        rate_attribute: the optimizer's name for its learning rate.
        stop_asked: whether this worker was asked to stop; the workers agree once an update.
    """

    def __init__(
        self,
        iterator: StreamIterator,
        optimizer: chainer.Optimizer,
        *,
        loss: Callable[..., chainer.Variable],
        plan: Plan,
        communicator: Any,
        norm_groups: NormGroups,
        rate_attribute: str = "lr",
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(iterator, optimizer, loss_func=loss, auto_new_epoch=False)
        self.plan = plan
        self.record: UpdateRecord | None = None
        self.stopping = False
        self._mpi = communicator.mpi_comm
        self._norm_groups = norm_groups
        self._rate_attribute = rate_attribute
        self._stop_asked = stop_asked
        self._teams: dict[int, Any] = {1: None}

    def update_core(self) -> None:
        """Forward and backward of this worker's micro-batches, the exchange, the optimizer's step."""
        share = self.get_iterator("main").next()
        optimizer = self.get_optimizer("main")
        model = optimizer.target
        recipe, epoch = self.plan.recipe, self.plan.timeline.epoch_at(share.update)
        learning_rate = learning_rate_at(recipe, epoch)
        batch = share.segment.global_batch_size
        division = self.plan.division_of(share.update)

        model.cleargrads()
        self._norm_groups.team = self._team(division)
        own_loss = sum(self._backward(model, micro_batch, batch) for micro_batch in share.micro_batches)
        loss = self._agree(own_loss, model, share.update, learning_rate)
        self._exchange(model, batch)
        self._norm_groups.update_running_statistics(self._mpi, batch)
        setattr(optimizer, self._rate_attribute, learning_rate)
        optimizer.update()
        self._require_finite_weights(model, share.update, learning_rate)

        self.record = UpdateRecord(
            update=share.update,
            epoch=epoch,
            samples=share.samples,
            global_batch_size=batch,
            learning_rate=learning_rate,
            momentum=momentum_at(recipe, epoch),
            loss=loss,
            seen=tuple(share.seen),
        )
        chainer.reporter.report({"loss": loss}, model)

    def _backward(self, model: chainer.Chain, micro_batch: LoadedMicroBatch, global_batch_size: int) -> float:
        """Add this micro-batch's part to the gradients; returns its part of the mean loss."""
        self._norm_groups.num_groups = micro_batch.part.num_groups
        keyed = KeyedDropout(model, seed=self.plan.recipe.seed, epochs=micro_batch.epochs, indices=micro_batch.indices)
        with chainer.using_config("train", True), keyed:
            loss = self.loss_func(model(micro_batch.images_NCHW), micro_batch.labels)
        size = micro_batch.part.size
        (loss * float(size)).backward()
        return float(loss.array) * (size / global_batch_size)

    def _exchange(self, model: chainer.Link, global_batch_size: int) -> None:
        """Sum the gradients over all workers, those of a worker without samples being 0, and divide by the batch."""
        for _, parameter in sorted(model.namedparams()):
            if parameter.grad is None:
                parameter.grad = np.zeros_like(parameter.array)
            parameter.grad = np.ascontiguousarray(parameter.grad)
            self._mpi.Allreduce(MPI.IN_PLACE, parameter.grad)
            parameter.grad *= parameter.dtype.type(1.0 / global_batch_size)

    def _agree(self, own_loss: float, model: chainer.Link, update: int, learning_rate: float) -> float:
        """The mean loss over the global batch; all workers learn whether one of them is asked to stop or has failed."""
        own = np.array([own_loss, self._stop_asked()], dtype=np.float64)
        parts = np.empty((self._mpi.size, own.size))
        self._mpi.Allgather(own, parts)
        self.stopping = bool(parts[:, 1].any())
        losses = parts[:, 0]
        if not np.isfinite(losses).all():
            rank = int(np.flatnonzero(~np.isfinite(losses))[0])
            parameter = self._mpi.bcast(first_not_finite(model, "grad"), root=rank)
            raise NotFinite(what="loss", rank=rank, parameter=parameter, update=update, learning_rate=learning_rate)
        return math.fsum(losses)

    def _require_finite_weights(self, model: chainer.Link, update: int, learning_rate: float) -> None:
        parameter = first_not_finite(model, "array")
        flags = np.empty(self._mpi.size, dtype=np.int8)
        self._mpi.Allgather(np.array([parameter is not None], dtype=np.int8), flags)
        if flags.any():
            rank = int(np.flatnonzero(flags)[0])
            parameter = self._mpi.bcast(parameter, root=rank)
            raise NotFinite(what="weight", rank=rank, parameter=parameter, update=update, learning_rate=learning_rate)

    def _team(self, division: Division) -> Any:
        """The communicator of this worker's team; split once for each team size, by all workers together."""
        if division.team_size not in self._teams:
            team = division.team_of(self._mpi.rank)
            colour = division.num_teams if team is None else team
            self._teams[division.team_size] = self._mpi.Split(colour, self._mpi.rank)
        return self._teams[division.team_size]

    def serialize(self, serializer: chainer.Serializer) -> None:
        """The iterator's place; weights and optimizer state are the checkpoint's own business."""
        self.get_iterator("main").serialize(serializer["iterator"])
        self.iteration = self.get_iterator("main").update


def first_not_finite(model: chainer.Link, attribute: str) -> str | None:
    """Path of the first parameter, by path, whose `array` or `grad` holds an infinity or a NaN; None if none does."""
    for path, parameter in sorted(model.namedparams()):
        values = getattr(parameter, attribute)
        if values is not None and not np.isfinite(values).all():
            return path
    return None
