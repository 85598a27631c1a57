"""One update of the plan: micro-batches, one exchange of gradients, one step of the optimizer."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import chainer
import numpy as np
from chainer.training.updaters import StandardUpdater

from recipes.noise_scale import Norms
from recipes.planning.division import Division
from recipes.planning.planner import Plan
from recipes.rates import full_rate_at, learning_rate_at, momentum_at
from trainers.faults import NotFinite
from trainers.gradients import average_over_workers, clip, first_not_finite
from trainers.keyed_draws import KeyedDropout
from trainers.norm_groups import NormGroups
from trainers.share_norms import ShareNorms
from trainers.steering import Moment, steer
from trainers.stream_iterator import LoadedMicroBatch, SeenSample, StreamIterator, UpdateShare
from trainers.weight_average import AveragedWeights


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it.

    `gradient_norm` is None where the recipe clips nothing, `gain` where the optimizer has none, `norms` where nobody
    asked for them or the update is one share.
    """

    update: int
    epoch: float
    samples: int
    global_batch_size: int
    learning_rate: float
    momentum: float | None
    loss: float
    seen: tuple[SeenSample, ...]
    gradient_norm: float | None = None
    gain: float | None = None
    norms: Norms | None = None
    image_size: int | None = None


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
        loss: (logits, targets) -> mean over the samples given.
        plan: what is done when.
        communicator: a ChainerMN communicator of all workers.
        norm_groups: installed in the model.
        averaged: the moving average of the weights, where the recipe has one.
        measure_noise: take the norms that the noise scale is computed from.
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
        averaged: AveragedWeights | None = None,
        measure_noise: bool = False,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(iterator, optimizer, loss_func=loss, auto_new_epoch=False)
        self.plan = plan
        self.record: UpdateRecord | None = None
        self.stopping = False
        self._mpi = communicator.mpi_comm
        self._norm_groups = norm_groups
        self.averaged = averaged
        with_gain = getattr(plan.recipe.optimizer, "gain", None)  # see AdaScale
        self._gain = with_gain and with_gain(per=plan.recipe.learning_rate.per)
        self._measures = measure_noise or self._gain is not None
        self._stop_asked = stop_asked
        self._teams: dict[int, Any] = {1: None}

    def update_core(self) -> None:
        """Forward and backward of this worker's micro-batches, the exchange, the optimizer's step."""
        share = self.get_iterator("main").next()
        model = self.get_optimizer("main").target
        epoch = self.plan.timeline.epoch_at(share.update)
        batch = share.segment.global_batch_size
        rate = learning_rate_at(self.plan.recipe, self._schedule_epoch(epoch))

        loss, norms = self._mean_gradient(share, learning_rate=rate)
        gradient_norm = self._clipped_norm(model)
        gain = None if self._gain is None else self._observed_gain(norms, batch)
        rate *= 1.0 if gain is None else gain
        self._step(share.update, epoch=epoch, batch=batch, learning_rate=rate)

        self.record = UpdateRecord(
            update=share.update,
            epoch=epoch,
            samples=share.samples,
            global_batch_size=batch,
            learning_rate=rate,
            momentum=momentum_at(self.plan.recipe, epoch),
            loss=loss,
            seen=tuple(share.seen),
            gradient_norm=gradient_norm,
            gain=gain,
            norms=norms,
            image_size=share.segment.image_size,
        )
        chainer.reporter.report({"loss": loss}, model)

    def _mean_gradient(self, share: UpdateShare, *, learning_rate: float) -> tuple[float, Norms | None]:
        """Leave the mean gradient of the update in the model; returns the mean loss, and the norms if measured."""
        model = self.get_optimizer("main").target
        batch = share.segment.global_batch_size
        model.cleargrads()
        division = self.plan.division_of(share.update)
        self._norm_groups.begin_update(division, self._team(division))
        shares = ShareNorms(model) if self._measures and division.num_shares > 1 else None
        own_loss = sum(self._backward(model, part, batch, shares) for part in share.micro_batches)
        loss = self._agree(own_loss, model, share.update, learning_rate)
        average_over_workers(model, self._mpi, batch)
        return loss, shares and shares.gathered(self._mpi)

    def _backward(
        self, model: chainer.Chain, micro_batch: LoadedMicroBatch, global_batch_size: int, shares: ShareNorms | None
    ) -> float:
        """Add this micro-batch's part to the gradients; returns its part of the mean loss."""
        part = micro_batch.part
        self._norm_groups.begin_micro_batch(part)
        keyed = KeyedDropout(model, seed=self.plan.recipe.seed, epochs=micro_batch.epochs, indices=micro_batch.indices)
        with chainer.using_config("train", True), keyed:
            loss = self.loss_func(model(micro_batch.images_NCHW), micro_batch.targets)
        with shares.of(offset=part.offset, size=part.size) if shares else contextlib.nullcontext():
            (loss * float(part.size)).backward()
        return float(loss.array) * (part.size / global_batch_size)

    def _clipped_norm(self, model: chainer.Link) -> float | None:
        clip_norm = self.plan.recipe.gradient.clip_norm
        return None if clip_norm is None else clip(model, clip_norm)

    def _schedule_epoch(self, epoch: float) -> float:
        """Where the schedule is read: AdaScale may have a clock of its own."""
        return epoch if self._gain is None else self._gain.epoch(epoch, num_train=self.plan.dataset.num_train)

    def _observed_gain(self, norms: Norms | None, global_batch_size: int) -> float:
        if norms is None:  # one group, which is the reference batch: the plan refuses any other
            return 1.0
        return self._gain.observe(noise=norms.noise, signal=norms.signal, global_batch_size=global_batch_size)

    def _step(self, update: int, *, epoch: float, batch: int, learning_rate: float) -> None:
        """Weights, running statistics and their average go one update further."""
        optimizer, recipe = self.get_optimizer("main"), self.plan.recipe
        self._norm_groups.update_running_statistics(self._mpi, batch)
        moment = Moment(
            update=update,
            epoch=epoch,
            global_batch_size=batch,
            learning_rate=learning_rate,
            full_rate=full_rate_at(recipe, epoch),
        )
        steer(recipe.optimizer, optimizer, moment)
        optimizer.update()
        self._require_finite_weights(optimizer.target, update, learning_rate)
        if self.averaged is not None:
            self.averaged.move(epoch=epoch, global_batch_size=batch)

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

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights and optimizer: plain data, the same on all workers."""
        return {"gain": self._gain.state} if self._gain is not None else {}

    @state.setter
    def state(self, kept: dict[str, Any]) -> None:
        if self._gain is not None:
            self._gain.state = kept["gain"]

    def serialize(self, serializer: chainer.Serializer) -> None:
        """The iterator's place; weights and optimizer state are the checkpoint's own business."""
        self.get_iterator("main").serialize(serializer["iterator"])
        self.iteration = self.get_iterator("main").update
