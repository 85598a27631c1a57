"""From a worker's share of an update to the mean gradient over all workers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import chainer
import chainer.functions as F
import numpy as np

from recipes.planning.cluster import Cluster
from recipes.planning.noise_scale import Norms
from recipes.planning.planner import Plan
from trainers import kernels
from trainers.datasets.loader import LoadedMicroBatch, UpdateShare
from trainers.gradients.exchange import ExactExchange, ExactHandle, Exchange, ExchangeHandle
from trainers.gradients.mixed_precision import LossScale, computing, forward_in
from trainers.gradients.norms import MicroBatchNorms, SquaredNorm, read_together
from trainers.gradients.sample_by_sample import (
    MixesSamples,
    require_no_parameters,
    require_operators,
    require_sample_by_sample,
)
from trainers.kernels import by_group
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout
from trainers.runs.errors import OutOfMemory, one_line
from trainers.runs.memory import is_out_of_memory, release
from trainers.runs.phase_clock import ExchangeStats, phase
from trainers.training.cuda_graphs import GraphRecorder, MicroBatchGraphs

log = logging.getLogger("kilobatch")


def has_graphs(cluster: Cluster, device: Any) -> bool:
    """Whether micro-batches are to be replayed as CUDA graphs: as `cuda_graph` says, else on GPUs with cuDNN."""
    if cluster.cuda_graph is not None:
        return cluster.cuda_graph
    return device.xp is not np and kernels.in_use() == "cudnn"


@dataclass(kw_only=True)
class Gradient:
    """The gradient of one update; its exchange may still be in flight.

    Args:
        own_losses: this worker's terms of the mean loss over the global batch, one a micro-batch; in exact mode one a
            norm group.
        values: the flat array that holds it, once it is complete.
        handle: its exchange; None once it is complete.
        micro_batch_norms: squared norms of its micro-batches, where they are measured, until it is complete.
        norms: of the update, where they are measured, once it is complete.
        ran_out: the error if memory ran out on this worker, and `values` are worthless; else None.
        overflowed: the first parameter whose gradient is not finite on this worker, where that is checked.
        also: what the arrays hold that `MeanGradient.begin` was given to read.
    """

    own_losses: list[float]
    values: np.ndarray
    handle: ExchangeHandle | ExactHandle | None
    micro_batch_norms: MicroBatchNorms | None
    norms: Norms | None = None
    ran_out: str | None = None
    overflowed: str | None = None
    also: Sequence[Any] = ()


class MeanGradient:
    """Forward and backward of a worker's micro-batches, their gradients into the exchange.

        g = 1/B * sum over workers and micro-batches of n * gradient of the mean loss over its n samples

    Gradients are summed over samples and divided once by the global batch B, so that uneven shares are averaged
    exactly, and a sample's term is rounded in the same way in any micro-batch.

    A worker that runs out of memory still joins the exchange, with incomplete gradients, since others may already wait
    in it; the caller must then agree with all workers to discard the sum. Where no smaller micro-batch is possible it
    raises at once.

    Args:
        model, loss: whose gradient is computed.
        plan: of the run.
        team_of: division -> communicator of this worker's team.
        norm_groups: installed in the model; its clock times the phases.
        exchange: sums the gradients over all workers.
        mixed: the loss scale, where there is one.
        measures: whether to measure the norms of micro-batches.
    """

    def __init__(
        self,
        model: chainer.Chain,
        *,
        loss: Callable[..., chainer.Variable],
        plan: Plan,
        team_of: Callable[..., Any],
        norm_groups: NormGroups,
        exchange: Exchange | ExactExchange,
        mixed: LossScale | None,
        measures: bool,
    ) -> None:
        self._model, self._loss, self._seed, self._team_of = model, loss, plan.recipe.seed, team_of
        self._norm_groups, self._exchange, self._mixed, self._measures = norm_groups, exchange, mixed, measures
        self._compute, self._ends = plan.recipe.precision.compute, frozenset(exchange.ends_of_buckets)
        self._logits, self._graphs, self._warned_eager = forward_in(model, self._compute), None, False
        if has_graphs(plan.cluster, model.device) and not isinstance(exchange, ExactExchange):
            self._graphs = MicroBatchGraphs(
                exchange.flat,
                norm_groups,
                compute=self._compute,
                cuts=self._ends if exchange.overlaps else (),
                device=GraphRecorder(),
            )
        self._exact = isinstance(exchange, ExactExchange)
        self._loss_takes_groups = "norm_groups" in inspect.signature(loss).parameters
        # On a GPU a plan belongs to a shape: only forwards of one norm group have the same bits on any ranks.
        self._group_by_group = self._exact and model.device.xp is not np
        self._mpi, self.clock = exchange.connection.mpi, norm_groups.clock
        exchange.observe, exchange.range = self.clock.bucket, self.clock.range

    def begin(self, share: UpdateShare, *, hold: bool = False, also: Sequence[Any] = ()) -> Gradient:
        """Compute this worker's part and start its exchange; with `hold` nothing is sent before `handle.send_rest`.

        Losses, flags, norms and the arrays of `also` are read in one transfer: a GPU is waited for once.

        Raises:
            OutOfMemory: on this worker alone, where no smaller micro-batch is possible.
        """
        flat, division = self._exchange.flat, share.division
        self._norm_groups.begin_update(division, self._team_of(division))
        factor = 1.0 if self._mixed is None else self._mixed.factor(division)
        micro_batch_norms = (
            MicroBatchNorms(factor=factor) if self._measures and division.num_whole_micro_batches > 1 else None
        )
        flat.begin_update(check=self._mixed is not None)
        handle = self._exchange.begin(scale=1.0 / (share.segment.global_batch_size * factor))
        losses: list[tuple[Any, float]] = []
        ran_out = None
        try:
            losses = self._add_all(share, handle, micro_batch_norms, factor=factor, hold=hold)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if division.next_smaller is None:
                size, whole = division.micro_batches(self._mpi.rank)[0].size, division.team_size == 1
                raise OutOfMemory(update=share.update, samples=size, whole=whole, error=error) from error
            ran_out = one_line(error)
        if ran_out is not None:
            if micro_batch_norms is not None:
                micro_batch_norms.fail()
            handle.fail()
            self.close()
            release(self._model.device)  # not in `except`: the error's frames would keep their arrays alive
        flat.zero_unwritten()
        if not hold:
            handle.send_rest()
        if share.prefetch is not None and ran_out is None:
            with self.clock("input"):
                share.prefetch()
        flat.assign_to_parameters(flat.values)  # before waiting for the GPU, which is idle after that
        on_gpu = self._model.device.xp is not np  # which may still run backward
        with self.clock("backward") if on_gpu else contextlib.nullcontext():
            checked = [] if self._mixed is None else [flat.flags]
            squares = [] if micro_batch_norms is None else micro_batch_norms.unread
            read = iter(read_together([*checked, *also, *squares, *(loss for loss, _ in losses)]))
        overflowed = flat.first_flagged(next(read)) if checked else None
        also = [next(read) for _ in also]
        if micro_batch_norms is not None:
            micro_batch_norms.read([next(read) for _ in squares])
        own_losses = [float(mean) * part for mean, (_, part) in zip(read, losses, strict=True)]
        return Gradient(
            own_losses=own_losses,
            values=flat.values,
            handle=handle,
            micro_batch_norms=micro_batch_norms,
            ran_out=ran_out,
            overflowed=overflowed,
            also=also,
        )

    def _add_all(
        self,
        share: UpdateShare,
        handle: ExchangeHandle | ExactHandle,
        micro_batch_norms: MicroBatchNorms | None,
        *,
        factor: float,
        hold: bool,
    ) -> list[tuple[Any, float]]:
        """Forward and backward of all micro-batches; of each its mean loss (array) and fraction of the global batch."""
        last = share.division.micro_batches(self._mpi.rank)[-1:]
        losses: list[tuple[Any, float]] = []
        add = functools.partial(self._add, share, handle, micro_batch_norms, losses, factor=factor)
        for micro_batch in self.clock.each("input", share.micro_batches):
            begins = self._exchange.overlaps and (micro_batch.part,) == last and not hold
            finished = handle.finished if begins else None
            if not self._group_by_group:
                try:
                    add(micro_batch, finished)
                    continue
                except MixesSamples as error:  # nothing was added
                    self._group_by_group, why = True, str(error)
                if self._mpi.rank == 0:
                    slow = "each norm group is a forward of its own, which takes longer where it is small"
                    log.info("%s: %s; a larger batch.norm_span makes fewer of them, and is another recipe", slow, why)
            # Not in `except`: the error's frames would keep the forward's arrays alive.
            for each in micro_batch.by_group:
                add(each, finished)
        return losses

    def _add(
        self,
        share: UpdateShare,
        handle: ExchangeHandle | ExactHandle,
        micro_batch_norms: MicroBatchNorms | None,
        losses: list[tuple[Any, float]],
        micro_batch: LoadedMicroBatch,
        finished: Callable[[int], None] | None,
        *,
        factor: float,
    ) -> None:
        """Forward and backward of a micro-batch; appends its losses, each with its fraction of the global batch."""
        part = micro_batch.part
        self._norm_groups.begin_micro_batch(part)
        with handle.part(part), self.clock.range(f"micro-batch of {part.size}"):
            own_losses, norm = self._run(micro_batch, factor, finished, measure=micro_batch_norms is not None)
        self._norm_groups.end_micro_batch()
        fraction = part.size / len(own_losses) / share.segment.global_batch_size
        losses += [(loss, fraction) for loss in own_losses]
        if micro_batch_norms is not None:
            micro_batch_norms.add(size=part.size, norm=norm)

    def close(self) -> None:
        """Free the memory of CUDA graphs."""
        if self._graphs is not None:
            self._graphs.forget()

    @phase("exposed")
    def complete(self, gradient: Gradient) -> ExchangeStats | None:
        """Wait for the exchange and make the mean the parameters' `grad`. All workers call this together.

        Returns:
            the figures of the exchange; None if the gradient was complete already.
        """
        done = gradient.handle and gradient.handle.finish()
        self._exchange.flat.assign_to_parameters(gradient.values)
        if gradient.micro_batch_norms is not None:
            with self.clock("waiting"):
                gradient.norms = gradient.micro_batch_norms.gathered(gradient.values, self._mpi)
        gradient.handle = gradient.micro_batch_norms = None
        return done

    def _run(
        self, micro_batch: LoadedMicroBatch, factor: float, finished: Callable[[int], None] | None, *, measure: bool
    ) -> tuple[list[Any], SquaredNorm]:
        """Forward and backward of a micro-batch, eager or by a CUDA graph; its losses, and its norm where measured."""
        send, flat, groups = self._model.device.send, self._exchange.flat, self._norm_groups
        images, targets = send(micro_batch.images_NCHW), send(micro_batch.targets)
        if self._exact and self._model.device.xp is np:
            with by_group.apart(micro_batch.part.num_groups):
                return self._backward_by_group(self._masks_of(micro_batch), factor, measure, images, targets)
        work = functools.partial(self._backward, micro_batch, float(micro_batch.part.size) * factor, measure)
        if self._graphs is None or groups.team is not None:
            self._warn_eager()
            loss, norm = work(images, targets, finished)
            return [loss], norm
        of_arrays = tuple((array.shape, array.strides, array.dtype.str) for array in (images, targets))
        kind = (of_arrays, micro_batch.part.size, factor, measure, groups.num_groups, flat.work_key)
        with self.clock("backward"):
            loss, norm = self._graphs.run(kind, (images, targets), work, finished)
            return [loss], norm

    def _warn_eager(self) -> None:
        """Warn once, on rank 0."""
        if self._graphs is not None and self._mpi.rank == 0 and not self._warned_eager:
            why = "workers share a norm group, whose statistics pass through the host"
            log.warning("cuda_graph: %s; forward and backward of such updates stay eager", why)
            self._warned_eager = True

    def _masks_of(self, micro_batch: LoadedMicroBatch) -> KeyedDropout:
        """Masks for one forward: a second forward with them would draw those of further calls."""
        return KeyedDropout(self._model, seed=self._seed, epochs=micro_batch.epochs, indices=micro_batch.indices)

    def _backward(
        self,
        micro_batch: LoadedMicroBatch,
        factor: float,
        measure: bool,
        images: Any,
        targets: Any,
        finished: Callable[[int], None] | None,
    ) -> tuple[Any, SquaredNorm]:
        """Add `factor` times the gradient of the mean loss; returns that loss (array) and the norm of what it added."""
        keyed = self._masks_of(micro_batch)
        collected = self._exchange.flat.collect(finished, ends=self._ends, measure=measure)
        with collected as norm, computing(self._compute, self._model.device):
            with self.clock("forward"), chainer.using_config("train", True), keyed:
                loss = self._loss(self._logits(images), targets)
            with self.clock("backward"):
                (loss * factor).backward()
        return loss.array, norm

    def _backward_by_group(
        self, keyed: KeyedDropout, factor: float, measure: bool, images: Any, targets: Any
    ) -> tuple[list[Any], SquaredNorm]:
        """The same, and the loss of each norm group, with the bits that the group has alone.

        Raises:
            MixesSamples: there are several groups, and the model may look at all of them.
        """
        groups, span = by_group.count, len(images) // by_group.count
        if groups > 1:
            require_operators(images)
        with self._exchange.flat.collect(measure=measure) as norm, computing(self._compute, self._model.device):
            with self.clock("forward"), chainer.using_config("train", True), keyed:
                try:
                    logits = self._logits(images)
                except Exception as error:
                    if groups == 1 or is_out_of_memory(error):
                        raise
                    # Such as a layer over rows that are no samples, which do not divide into groups.
                    raise MixesSamples(f"the model fails on several at once: {one_line(error)}") from error
                if groups > 1:
                    require_sample_by_sample(logits, images)
                losses = self._losses_of(keyed, logits, targets, groups)
                if groups > 1:
                    require_no_parameters(losses, logits)
            with self.clock("backward"):
                losses.grad = np.full(losses.shape, span * factor, losses.dtype)
                losses.backward()
        return [losses.array] if groups == 1 else list(losses.array), norm

    def _losses_of(self, keyed: KeyedDropout, logits: Any, targets: Any, groups: int) -> chainer.Variable:
        """The mean loss of each norm group, (groups,); of one group without axes."""
        if groups == 1:
            return self._loss(logits, targets)
        losses = self._loss(logits, targets, norm_groups=groups) if self._loss_takes_groups else None
        if losses is not None:
            if losses.shape != (groups,):
                raise ValueError(f"the loss gave {losses.shape} for norm_groups={groups}, not ({groups},) or None")
            return losses
        apart, span = [], len(targets) // groups
        for group, of_group in enumerate(F.split_axis(logits, groups, axis=0)):
            rows = slice(group * span, (group + 1) * span)
            with keyed.only(rows):  # dropout in the loss
                apart.append(self._loss(of_group, targets[rows]))
        return F.stack(apart)
