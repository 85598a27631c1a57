"""One update of the plan: micro-batches, one exchange of gradients, one step of the optimizer."""

from __future__ import annotations

import contextlib
import logging
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
from trainers.faults import NotFinite, Overflow
from trainers.gradients import average_over_workers, clip, divide_out, first_not_finite
from trainers.keyed_draws import KeyedDropout
from trainers.mixed_precision import MOST_HALVINGS, MixedPrecision, overflow_expected
from trainers.norm_groups import NormGroups
from trainers.share_norms import ShareNorms
from trainers.steering import Moment, steer
from trainers.stream_iterator import LoadedMicroBatch, SeenSample, StreamIterator, UpdateShare
from trainers.weight_average import AveragedWeights

log = logging.getLogger("kilobatch")


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it.

    `gradient_norm` is None where the recipe clips nothing, `gain` where the optimizer has none, `norms` where nobody
    asked for them or the update is one share; `loss_scale`, and `overflows`, the number of times the update was done
    again at a smaller one, with float32 compute.
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
    loss_scale: float | None = None
    overflows: int | None = None
    image_size: int | None = None


class RecipeUpdater(StandardUpdater):
    """Does one update of a plan on Chainer's conventions (`Trainer`, extensions, reporter).

        g = 1/B * sum over workers and micro-batches of n * gradient of the mean loss over its n samples

    Gradients are summed over samples and divided once by the global batch B, so that uneven shares are averaged
    exactly, and a sample's part is rounded alike whatever micro-batch it lies in. Gradients cross the wire once an
    update. Bytes on the wire: one all-reduce of the gradients, one of 24 bytes a normalised channel, and 17 bytes a
    worker for loss and flags (18 with mixed16 compute, where an update whose gradient overflows on any worker is done
    again by all at half the loss scale; what overflowed has changed nothing).

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
        precision = plan.recipe.precision
        self._mixed = MixedPrecision(optimizer.target, precision) if precision.compute == "mixed16" else None
        self._measures = measure_noise or self._gain is not None
        self._stop_asked = stop_asked
        self._teams: dict[int, Any] = {1: None}

    def update_core(self) -> None:
        """Forward and backward of this worker's micro-batches, the exchange, the optimizer's step."""
        iterator = self.get_iterator("main")
        share = iterator.next()
        model = self.get_optimizer("main").target
        epoch = self.plan.timeline.epoch_at(share.update)
        batch = share.segment.global_batch_size
        rate = learning_rate_at(self.plan.recipe, self._schedule_epoch(epoch))

        while (found := self._mean_gradient(share, learning_rate=rate)) is None:
            share = iterator.again()
        loss, norms = found
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
            loss_scale=self._mixed and self._mixed.scale,
            overflows=self._mixed and self._mixed.halvings,
            image_size=share.segment.image_size,
        )
        if self._mixed is not None:
            self._mixed.updated()
        chainer.reporter.report({"loss": loss}, model)

    def _mean_gradient(self, share: UpdateShare, *, learning_rate: float) -> tuple[float, Norms | None] | None:
        """Leave the mean gradient of the update in the model; returns the mean loss, and the norms if measured.

        None where the gradient overflowed on any worker, the loss scale being halved on all.
        """
        model = self.get_optimizer("main").target
        batch = share.segment.global_batch_size
        model.cleargrads()
        division = self.plan.division_of(share.update)
        self._norm_groups.begin_update(division, self._team(division))
        factor = 1.0 if self._mixed is None else self._mixed.factor(division)
        shares = ShareNorms(model, factor=factor) if self._measures and division.num_shares > 1 else None
        own_loss = sum(self._backward(part, batch, shares, factor) for part in share.micro_batches)
        loss = self._agree(own_loss, model, share.update, learning_rate)
        if self._mixed is not None:
            if self._overflowed(model, share.update):
                return None
            divide_out(model, factor)
        average_over_workers(model, self._mpi, batch)
        return loss, shares and shares.gathered(self._mpi)

    def _backward(
        self, micro_batch: LoadedMicroBatch, global_batch_size: int, shares: ShareNorms | None, factor: float
    ) -> float:
        """Add this micro-batch's part, times `factor`, to the gradients; returns its part of the mean loss."""
        part, model = micro_batch.part, self.get_optimizer("main").target
        self._norm_groups.begin_micro_batch(part)
        keyed = KeyedDropout(model, seed=self.plan.recipe.seed, epochs=micro_batch.epochs, indices=micro_batch.indices)
        logits = model if self._mixed is None else self._mixed.logits
        with contextlib.nullcontext() if self._mixed is None else overflow_expected():
            with chainer.using_config("train", True), keyed:
                loss = self.loss_func(logits(micro_batch.images_NCHW), micro_batch.targets)
            with shares.of(offset=part.offset, size=part.size) if shares else contextlib.nullcontext():
                (loss * (float(part.size) * factor)).backward()
        return float(loss.array) * (part.size / global_batch_size)

    def _overflowed(self, model: chainer.Link, update: int) -> bool:
        """Whether the gradient is not finite on any worker; if so the loss scale is halved on all."""
        found = self._first_of(first_not_finite(model, "grad"))
        if found is None:
            return False
        rank, parameter = found
        scale, halvings = self._mixed.scale, self._mixed.halvings
        if halvings == MOST_HALVINGS:
            raise Overflow(rank=rank, parameter=parameter, update=update, loss_scale=scale, halvings=halvings)
        self._mixed.overflowed()
        what = f"update {update}: the gradient of {parameter} overflowed on rank {rank} at loss scale {scale:.12g}"
        log.info("%s; done again at %.12g", what, self._mixed.scale)
        return True

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
            about = {"rank": rank, "parameter": parameter, "update": update, "learning_rate": learning_rate}
            raise NotFinite(what="loss", **about, compute=self.plan.recipe.precision.compute)
        return math.fsum(losses)

    def _require_finite_weights(self, model: chainer.Link, update: int, learning_rate: float) -> None:
        found = self._first_of(first_not_finite(model, "array"))
        if found is not None:
            rank, parameter = found
            raise NotFinite(what="weight", rank=rank, parameter=parameter, update=update, learning_rate=learning_rate)

    def _first_of(self, parameter: str | None) -> tuple[int, str] | None:
        """The first rank that has a path to tell, and the path; None where none has. One byte a worker."""
        flags = np.empty(self._mpi.size, dtype=np.int8)
        self._mpi.Allgather(np.array([parameter is not None], dtype=np.int8), flags)
        if not flags.any():
            return None
        rank = int(np.flatnonzero(flags)[0])
        return rank, self._mpi.bcast(parameter, root=rank)

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
        kept = {"gain": self._gain, "precision": self._mixed}
        return {name: part.state for name, part in kept.items() if part is not None}

    @state.setter
    def state(self, kept: dict[str, Any]) -> None:
        if self._gain is not None:
            self._gain.state = kept["gain"]
        if self._mixed is not None:
            self._mixed.state = kept["precision"]

    def serialize(self, serializer: chainer.Serializer) -> None:
        """The iterator's place; weights and optimizer state are the checkpoint's own business."""
        self.get_iterator("main").serialize(serializer["iterator"])
        self.iteration = self.get_iterator("main").update
