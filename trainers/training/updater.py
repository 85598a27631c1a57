"""One update of the plan: micro-batches, one exchange of gradients, one step of the optimizer; and its record."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import chainer
import numpy as np
from chainer.training.updaters import StandardUpdater
from mpi4py import MPI

from recipes.planning.noise_scale import Norms
from recipes.planning.planner import Plan
from recipes.planning.rates import full_rate_at, learning_rate_at, momentum_at, optimizer_at
from trainers.communicators.mpi_messages import first_message, gather_flags_and_losses
from trainers.datasets.loader import StreamIterator, TracedSample, UpdateShare
from trainers.gradients.exchange import Exchange
from trainers.gradients.local_steps import LocalExchange
from trainers.gradients.mixed_precision import MOST_HALVINGS, LossScale
from trainers.gradients.norms import FiniteCheck, clip, first_not_finite, read_together
from trainers.gradients.power_sgd import PowerExchange
from trainers.models.batch_norm import NormGroups
from trainers.models.batch_norm_statistics import Teams
from trainers.optimizers.fused_step import FusedStep
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters
from trainers.optimizers.weight_average import AveragedWeights
from trainers.runs.checkpoint import copy_arrays
from trainers.runs.errors import NotFinite, Overflow
from trainers.runs.phase_clock import ExchangeStats, phase
from trainers.training.evaluation_point import EvaluationPoint
from trainers.training.mean_gradient import Gradient, MeanGradient

log = logging.getLogger("kilobatch")


@dataclass(frozen=True, kw_only=True)
class UpdateRecord:
    """What one update was: `epoch`, `samples` at its start, `loss` the mean over the global batch before it.

    `gradient_norm` is None if the recipe clips nothing, `gain` if the optimizer has none, `norms` if they were not
    requested or the update is one share. `loss_scale` and `overflows`, how often the update was repeated at half the
    scale, are None without mixed16. `ran_out` lists the attempts that ran out of memory.
    With double buffering `gradient_norm` and `norms` are those of the gradient that was applied, the update's before;
    with local steps `gradient_norm` is that of this worker's own gradient.
    """

    update: int
    epoch: float
    samples: int
    global_batch_size: int
    learning_rate: float
    momentum: float | None
    loss: float
    seen: tuple[TracedSample, ...]
    gradient_norm: float | None = None
    gain: float | None = None
    norms: Norms | None = None
    loss_scale: float | None = None
    overflows: int | None = None
    image_size: int | None = None
    exchanged: ExchangeStats | None = None
    ran_out: tuple[RanOut, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RanOut:
    """An attempt at an update in which the memory of a worker ran out.

    Args:
        rank: the first such worker.
        reason: the error there, in one line.
        micro_batch_size: samples of the largest micro-batch then.
        next_size: samples of the largest from the next attempt on.
    """

    rank: int
    reason: str
    micro_batch_size: int
    next_size: int

    def __str__(self) -> str:
        return (
            f"memory ran out on rank {self.rank} with micro-batches of {self.micro_batch_size} samples: at most "
            f"{self.next_size} from here on, in more steps; this update is repeated, and its mathematics is the same. "
            f"The error: {self.reason}"
        )


@dataclass(frozen=True, kw_only=True)
class Step:
    """What the step of the optimizer was; all None where there was none."""

    gradient_norm: float | None = None
    gain: float | None = None
    learning_rate: float | None = None
    exchanged: ExchangeStats | None = None


class RecipeUpdater(StandardUpdater):
    """Does one update of a plan on Chainer's conventions (`Trainer`, extensions, reporter).

    `MeanGradient` computes the gradient, which crosses the wire once an update. Also on the wire: 24 bytes a normalised
    channel, and from each worker 8 bytes a micro-batch for losses and 16 for flags (17 with mixed16).

    All workers do an update again if on any of them its gradient overflows (mixed16 only), at half the loss scale, or
    memory runs out, at half the micro-batch size in whole norm groups; they keep that. The failed attempt changes
    nothing else.

    With `updater.double_buffering` a gradient is exchanged while the next update computes and applied one update later,
    with the rate, momentum and batch of its own update: update 0 moves no weight, the last update applies two
    gradients, and a checkpoint contains the pending one.

    Args:
        iterator: this worker's share of every update.
        optimizer: set up with the model as its target.
        loss: (logits, targets) -> mean over the samples given.
        plan: of the run.
        exchange: sums the gradients over all workers; over two arrays in turn for double buffering.
        mpi: communicator of all workers.
        norm_groups: installed in the model.
        averaged: the weights that are evaluated, where they are others: a moving average, or the optimizer's choice.
        measure_noise: measure the norms that the noise scale is computed from.
        stop_asked: whether this worker was asked to stop; the workers agree once an update.
    Attributes:
        pending: the gradient that waits to be applied, and its hyperparameters; None without double buffering.
        stopping: the run ends after this update; an extension may set it, on all workers.
        asked_to_stop: some worker was asked to.
        clock: times the phases of every update.
        mpi: as given; extensions may use it, all workers together.
    """

    def __init__(
        self,
        iterator: StreamIterator,
        optimizer: chainer.Optimizer,
        *,
        loss: Callable[..., chainer.Variable],
        plan: Plan,
        exchange: Exchange,
        mpi: Any,
        norm_groups: NormGroups,
        averaged: AveragedWeights | EvaluationPoint | None = None,
        measure_noise: bool = False,
        stop_asked: Callable[[], bool] = lambda: False,
    ) -> None:
        super().__init__(iterator, optimizer, loss_func=loss, auto_new_epoch=False)
        self.plan = plan
        self.record: UpdateRecord | None = None
        self.stopping = self.asked_to_stop = False
        self.averaged = averaged
        self.exchange = exchange
        self.pending: tuple[Gradient, Hyperparameters] | None = None
        self.clock = norm_groups.clock
        self.mpi = mpi
        self._norm_groups = norm_groups
        with_gain = getattr(plan.recipe.optimizer, "gain", None)  # see AdaScale
        self._gain = with_gain and with_gain(per=plan.recipe.learning_rate.per)
        self._mixed = LossScale.of(plan.recipe.precision)
        self._stop_asked, self._move = stop_asked, FusedStep(optimizer)
        self._doubled, self._local = plan.recipe.updater.double_buffering, plan.recipe.updater.local_steps
        self._ran_out: list[RanOut] = []  # in the current update
        self._check: tuple[FiniteCheck, Hyperparameters] | None = None  # of the weights, not yet read from a GPU
        self._teams, self._parameters = Teams(mpi), sorted(optimizer.target.namedparams())
        self._gradients = MeanGradient(
            optimizer.target,
            loss=loss,
            plan=plan,
            team_of=self._teams.of,
            norm_groups=norm_groups,
            exchange=exchange,
            mixed=self._mixed,
            measures=measure_noise or self._gain is not None,
        )

    @phase("update")
    def update_core(self) -> None:
        """Forward and backward of this worker's micro-batches, the exchange, the optimizer's step."""
        iterator = self.get_iterator("main")
        share = iterator.next()
        hyperparameters, doubled, self._ran_out = self._hyperparameters(share), self._doubled, []
        while (attempt := self._attempt(share, hyperparameters)) is None:
            share = iterator.again()
        gradient, loss, exchanged = attempt
        # With double buffering the thread may just sum gradients, by the same communicator.
        launches = {} if doubled else {"launch_sum": self.exchange.connection.launch_sum}
        world = self.mpi if self._local is None else MPI.COMM_SELF
        self._norm_groups.update_running_statistics(world, hyperparameters.global_batch_size, **launches)
        if doubled:  # not earlier: small messages would queue behind the gradient
            gradient.handle.send_rest()
        due = [(gradient, hyperparameters)]
        if doubled:
            due = [self.pending] if self.pending is not None else []
            self.pending = (gradient, hyperparameters)
            self.exchange.flat.next_array()
            if share.update + 1 == self.plan.timeline.num_updates:
                due.append(self.pending)
                self.pending = None
        steps = [self._step(*one) for one in due]

        last, applied = (due[-1][0], steps[-1]) if due else (None, Step())
        self.record = UpdateRecord(
            update=share.update,
            epoch=hyperparameters.epoch,
            samples=share.samples,
            global_batch_size=hyperparameters.global_batch_size,
            learning_rate=hyperparameters.learning_rate if doubled else applied.learning_rate,
            momentum=momentum_at(self.plan.recipe, hyperparameters.epoch),
            loss=loss,
            seen=tuple(share.seen),
            gradient_norm=applied.gradient_norm,
            gain=applied.gain,
            norms=last and last.norms,
            loss_scale=self._mixed and self._mixed.scale,
            overflows=self._mixed and self._mixed.halvings,
            image_size=share.segment.image_size,
            exchanged=exchanged or applied.exchanged,
            ran_out=tuple(self._ran_out),
        )
        if self._mixed is not None:
            self._mixed.updated()
        chainer.reporter.report({"loss": loss}, self.get_optimizer("main").target)

    def _hyperparameters(self, share: UpdateShare) -> Hyperparameters:
        """The progress and hyperparameters of this update, its rate without a gain."""
        epoch, recipe = self.plan.timeline.epoch_at(share.update), self.plan.recipe
        clock = epoch if self._gain is None else self._gain.epoch(epoch, num_train=self.plan.dataset.num_train)
        return Hyperparameters(
            update=share.update,
            epoch=epoch,
            global_batch_size=share.segment.global_batch_size,
            learning_rate=learning_rate_at(recipe, clock),
            full_rate=full_rate_at(recipe, epoch),
        )

    def _attempt(
        self, share: UpdateShare, hyperparameters: Hyperparameters
    ) -> tuple[Gradient, float, ExchangeStats | None] | None:
        """The gradient of an update, not yet exchanged with double buffering; the mean loss; the exchange's figures.

        None if the update must be done again: on some worker the gradient overflowed (the loss scale is now halved) or
        memory ran out (micro-batches are now smaller).
        """
        unread = [] if self._check is None else [self._check[0].flags]
        gradient = self._gradients.begin(share, hold=self._doubled, also=unread)
        exchanged = None
        if not self._doubled:
            exchanged = self._gradients.complete(gradient)
        else:
            self.exchange.flat.assign_to_parameters(gradient.values)  # for the checks; `_step` assigns its own
        self._settle(*gradient.also)
        loss = self._agree(gradient, share, hyperparameters)
        if loss is None:
            self._shrink_micro_batches(share, gradient.ran_out)
            return None
        if self._mixed is not None and self._overflowed(share.update, gradient.overflowed):
            return None
        return gradient, loss, exchanged

    def _overflowed(self, update: int, own: str | None) -> bool:
        """Whether the gradient is not finite on any worker; if so the loss scale is halved on all."""
        with self.clock("waiting"):
            first = first_message(self.mpi, own)
        if first is None:
            return False
        (rank, parameter), scale, halvings = first, self._mixed.scale, self._mixed.halvings
        if halvings == MOST_HALVINGS:
            raise Overflow(rank=rank, parameter=parameter, update=update, loss_scale=scale, halvings=halvings)
        self._mixed.overflowed()
        what = f"update {update}: the gradient of {parameter} overflowed on rank {rank} at loss scale {scale:.12g}"
        log.info("%s; done again at %.12g", what, self._mixed.scale)
        return True

    @phase("optimizer")
    def _step(self, gradient: Gradient, hyperparameters: Hyperparameters) -> Step:
        """Apply a gradient: move the weights and their average by one update."""
        optimizer, recipe = self.get_optimizer("main"), self.plan.recipe
        exchanged = self._gradients.complete(gradient)
        clip_norm = recipe.gradient.clip_norm
        norm = None if clip_norm is None else clip(gradient.values, clip_norm)
        gain = self._observed_gain(gradient.norms, hyperparameters.global_batch_size)
        hyperparameters = replace(
            hyperparameters, learning_rate=hyperparameters.learning_rate * (1.0 if gain is None else gain)
        )
        set_hyperparameters(optimizer_at(recipe, hyperparameters.epoch), optimizer, hyperparameters)
        self._move()
        if isinstance(self.exchange, PowerExchange):
            self.exchange.commit()
        if self._local and self._local.averages_after(hyperparameters.update, epoch=hyperparameters.epoch):
            with self.clock("exposed"):
                self.exchange.average_weights()
        self._check_weights(hyperparameters)
        if self.averaged is not None:
            self.averaged.move(epoch=hyperparameters.epoch, global_batch_size=hyperparameters.global_batch_size)
        return Step(gradient_norm=norm, gain=gain, learning_rate=hyperparameters.learning_rate, exchanged=exchanged)

    def _observed_gain(self, norms: Norms | None, global_batch_size: int) -> float | None:
        if self._gain is None:
            return None
        if norms is None:  # one norm group, the reference batch: the plan refuses any other
            return self._gain.pass_reference()
        return self._gain.observe(noise=norms.noise, signal=norms.signal, global_batch_size=global_batch_size)

    @phase("waiting")
    def _agree(self, gradient: Gradient, share: UpdateShare, hyperparameters: Hyperparameters) -> float | None:
        """The mean loss over the global batch, None where memory ran out; sets `stopping` if any is asked to stop."""
        division = share.division
        most = division.num_groups_of(0) if self.plan.exact else division.num_micro_batches(0)  # none has more
        flags = (self._stop_asked(), gradient.ran_out is not None)
        (self.asked_to_stop, ran_out), losses = gather_flags_and_losses(
            self.mpi, flags, gradient.own_losses, max_losses=most
        )
        self.stopping = self.stopping or self.asked_to_stop
        if ran_out:
            return None
        if not np.isfinite(losses).all():
            rank = int(np.flatnonzero(~np.isfinite(losses).all(axis=1))[0])
            gradients = {path: parameter.grad for path, parameter in self._parameters}
            path, compute = self.mpi.bcast(first_not_finite(gradients), root=rank), self.plan.recipe.precision.compute
            raise NotFinite(what="loss", rank=rank, parameter=path, compute=compute, **_of(hyperparameters))
        return math.fsum(losses.flat)  # exact, so the order does not matter

    @phase("waiting")
    def _shrink_micro_batches(self, share: UpdateShare, reason: str | None) -> None:
        """On all workers, for the rest of the run; a worker that has no smaller size has already raised."""
        iterator, size = self.get_iterator("main"), share.division.next_smaller
        rank, reason = first_message(self.mpi, reason)
        self._ran_out.append(RanOut(rank=rank, reason=reason, micro_batch_size=share.division.largest, next_size=size))
        log.info("update %d: %s", share.update, self._ran_out[-1])
        iterator.limit(size)

    def _check_weights(self, hyperparameters: Hyperparameters) -> None:
        """Look for weights that are not finite. On a GPU the result is read with the losses of the next update."""
        weights = {path: parameter.array for path, parameter in self._parameters}
        self._check = FiniteCheck(weights | self._norm_groups.averages), hyperparameters
        if self.get_optimizer("main").target.device.xp is np:
            self.settle()

    def settle(self) -> None:
        """Fail now if the last update left weights that are not finite: before they are scored or kept.

        Weights are equal on all workers, so all of them raise together without communicating, but for local steps.

        Raises:
            NotFinite: see above.
        """
        if self._check is not None:
            self._settle(*read_together([self._check[0].flags]))

    def _settle(self, *flags: Any) -> None:
        if flags:
            (check, hyperparameters), self._check = self._check, None
            rank, path = self.mpi.rank, check.first(*flags)
            if self._local is not None:
                rank, path = first_message(self.mpi, path) or (rank, None)
            if path is not None:
                raise NotFinite(what="weight", rank=rank, parameter=path, **_of(hyperparameters))

    def close(self) -> None:
        """Free memory and communicators, also after a failure on all workers; they call this together."""
        self._gradients.close()
        self.exchange.close()
        self._teams.close()

    @property
    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside weights, optimizer and `pending_arrays`: plain data, equal on all workers."""
        kept = {"gain": self._gain, "precision": self._mixed}
        state = {name: part.state for name, part in kept.items() if part is not None}
        if self.pending is not None:
            gradient, hyperparameters = self.pending
            state["pending"] = {
                "moment": asdict(hyperparameters),
                "norms": gradient.norms and asdict(gradient.norms),
            }
        return state

    def pending_arrays(self) -> dict[str, np.ndarray]:
        """The mean gradient that waits to be applied, by path; all workers call this together."""
        if self.pending is None:
            return {}
        gradient, _ = self.pending
        self._gradients.complete(gradient)
        return self.exchange.flat.by_path(gradient.values)

    def own_arrays(self) -> list[dict[str, np.ndarray]]:
        """On rank 0 what a checkpoint keeps of each worker by itself, empty where nothing; all call this together."""
        if not isinstance(self.exchange, PowerExchange | LocalExchange):
            return []
        host = chainer.get_device("@numpy")
        return self.mpi.gather({name: host.send(array) for name, array in self.exchange.own_arrays().items()}) or []

    def restore(self, kept: dict[str, Any], pending: dict[str, np.ndarray], own: dict[str, np.ndarray]) -> None:
        """Take back `state` and `pending_arrays` of a checkpoint, and this worker's of `own_arrays`."""
        if isinstance(self.exchange, PowerExchange | LocalExchange):
            self.exchange.restore(own)
        if self._gain is not None:
            self._gain.state = kept["gain"]
        if self._mixed is not None:
            self._mixed.state = kept["precision"]
        if "pending" in kept:
            flat, norms = self.exchange.flat, kept["pending"]["norms"]
            copy_arrays(pending, flat.by_path(flat.values), "pending gradient")
            gradient = Gradient(own_losses=[], values=flat.values, handle=None, micro_batch_norms=None)
            gradient.norms = norms and Norms(**norms)
            self.pending = (gradient, Hyperparameters(**kept["pending"]["moment"]))
            flat.next_array()


def _of(hyperparameters: Hyperparameters) -> dict[str, Any]:
    """The figures of an update in the message of a failure."""
    return {"update": hyperparameters.update, "learning_rate": hyperparameters.learning_rate}
