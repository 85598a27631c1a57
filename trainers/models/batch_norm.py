"""Batch normalisation over norm groups: statistics of exactly `norm_span` samples, whoever computes them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L
from chainer.backends.cuda import to_cpu
from chainer.functions.normalization import batch_normalization
from chainer.link_hooks import SpectralNormalization

from recipes.planning.division import Division, MicroBatch
from recipes.schema import Evaluation
from trainers.communicators.tree_sum import TreeSum
from trainers.kernels import chainer_hooks
from trainers.kernels.by_group import tree_sum
from trainers.kernels.fused_normalization import Pending, as_rows, covers
from trainers.models.batch_norm_statistics import FixedStatistics, GroupStatistics, Seen, TeamStatistics
from trainers.runs.phase_clock import PhaseClock

if TYPE_CHECKING:
    from mpi4py import MPI


class NormGroups:
    """The norm groups of the current micro-batch, and the statistics seen during an update.

    One object is shared by all normalisation layers of a model. The updater says where an update and each of its
    micro-batches begin; the layers report the statistics of their groups; `update_running_statistics` moves the running
    statistics once an update.

    Args:
        evaluation: how the running statistics move (the recipe's).
        tree: in exact mode, where a micro-batch is a node of it: sums the groups' statistics.
    Attributes:
        num_groups: norm groups in the current micro-batch.
        team: communicator of the workers that share the current group; None where its samples are all here.
        clock: times the phases of an update; here the time that this worker waits for others.
    """

    def __init__(self, evaluation: Evaluation, tree: TreeSum | None = None) -> None:
        self.evaluation = evaluation
        self._tree = tree
        self.num_groups = 1
        self.team: MPI.Comm | None = None
        self.clock = PhaseClock()
        self._first_group = 0
        self._weights: dict[int, Any] = {}  # by number of groups, on the model's device, where CUDA graphs read them
        self._weights_at: dict[Hashable, Any] = {}  # with `by_group` the same by their place in the update
        self._division: Division | None = None
        self._layers: dict[str, NormGroupBatchNormalization] = {}
        self._means: list[Any] = []
        self._sums = self._averages = self._places = np.empty(0)
        self._most_groups = 1  # of a micro-batch so far

    def install(self, model: chainer.Link) -> None:
        """Make every `BatchNormalization` of a model normalise by groups.

        Raises:
            TypeError: a normalisation over the batch that is not plain `BatchNormalization`, or spectral normalisation:
                its statistics, or the vector that each forward moves, would depend on the split into micro-batches.
        """
        for path, link in sorted(model.namedlinks()):
            if any(isinstance(hook, SpectralNormalization) for hook in link.local_link_hooks.values()):
                raise TypeError(
                    f"{path} has the hook SpectralNormalization: each forward moves a vector of the hook, which would "
                    "depend on the micro-batch; use chainer.link_hooks.WeightStandardization, or take the hook away"
                )
            if type(link) is L.BatchNormalization:
                link.__class__ = NormGroupBatchNormalization
                link.norm_groups = self
                self._layers[path] = link
            elif isinstance(link, (L.BatchNormalization, L.BatchRenormalization, L.DecorrelatedBatchNormalization)):
                raise TypeError(
                    f"{path} is a {type(link).__name__}: its statistics would depend on the micro-batch; "
                    "use chainer.links.BatchNormalization, which kilobatch applies to each norm group"
                )
        self._lay_out()

    def begin_update(self, division: Division, team: MPI.Comm | None = None) -> None:
        """Clear the statistics: an update begins, or is done again.

        Args:
            division: of the update.
            team: communicator of this worker's team, where teams have several workers.
        """
        self.team, self._division = team, division
        if any(layer.avg_mean is not own for layer, own in zip(self._layers.values(), self._means, strict=True)):
            self._lay_out()  # the model has moved to another device
        self._sums.fill(0)
        if self._tree is not None:
            self._tree.clear()

    def begin_micro_batch(self, part: MicroBatch) -> None:
        """The next forward is of this part of the update."""
        self.num_groups, self._first_group = part.num_groups, part.first_group
        if self._tree is not None:
            if part.num_groups > self._most_groups:
                self._most_groups = part.num_groups
                self._lay_out()
            self._sums.fill(0)
        if self.evaluation.norm_statistics == "by_group" and self._layers:
            xp = chainer.backend.get_array_module(self._sums)
            place = (part.num_groups, self._division, part.first_group)
            if place not in self._weights_at:
                self._weights_at[place] = xp.asarray(self.weights)
            self.weights_on(xp)[...] = self._weights_at[place]

    def end_micro_batch(self) -> None:
        """Forward and backward of the micro-batch are done."""
        if self._tree is not None and self._layers:
            sums = to_cpu(tree_sum(self._sums[: self.num_groups]))
            self._tree.add(self._first_group, sums, leaves=self.num_groups)

    def take_statistics(self) -> np.ndarray:
        """Return and clear what the layers have seen: float64, (1 + 3 * channels,) of each layer in turn."""
        seen = to_cpu(self._sums).copy()
        self._sums.fill(0)
        return seen

    def update_running_statistics(
        self,
        world: MPI.Comm,
        global_batch_size: int,
        *,
        launch_sum: Callable[[Any], bool] = lambda sums: False,
        keep: float | None = None,
    ) -> None:
        """Move the running statistics by those of the update, equally on all workers.

        Args:
            world: all workers; on the wire one all-reduce of 24 bytes a channel, in exact mode what `TreeSum` says.
            global_batch_size: samples of the update, for a `norm_momentum` counted in samples.
            launch_sum: see `Connection.launch_sum`; it sums on GPUs what else crosses the host.
            keep: fraction of the running statistics that is kept; None: the recipe's.
        """
        if not self._layers:
            return
        summed = self._tree is None and (world.size == 1 or launch_sum(self._sums))
        sums = self._sums if summed else self._total(world)
        keep, how = self._keep(global_batch_size) if keep is None else keep, self.evaluation.norm_statistics
        ours = chainer_hooks.operators_for(self._averages)
        if hasattr(ours, "move_averages"):
            ours.move_averages(sums, self._places, self._averages, keep, pooled=how == "pooled")
        else:
            self._averages[...] = moved_statistics(sums[self._places], self._averages, keep, how)
        self._sums.fill(0)

    def _total(self, world: MPI.Comm) -> Any:
        """What the layers of all workers have seen, summed, on this worker's device."""
        from mpi4py import MPI

        sums = self.take_statistics() if self._tree is None else np.empty(self._sums.shape[1])
        with self.clock("waiting"):
            if self._tree is None:
                world.Allreduce(MPI.IN_PLACE, sums)
            else:
                self._tree.total(sums)
        return chainer.backend.get_array_module(self._sums).asarray(sums)

    def _lay_out(self) -> None:
        """Put what all layers see into one array, their running statistics into another; each layer gets views.

        So an update moves all layers at once, and CUDA graphs find the arrays at the same addresses. In exact mode what
        they see has a row for each group of a micro-batch.
        """
        layers, self._weights, self._weights_at = list(self._layers.values()), {}, {}
        if not layers:
            return
        xp, ends = layers[0].xp, np.cumsum([0, *(layer.avg_mean.size for layer in layers)])
        size = len(layers) + 3 * int(ends[-1])
        self._sums = xp.zeros(size if self._tree is None else (self._most_groups, size))
        self._averages = xp.empty((2, int(ends[-1])), np.result_type(*(layer.avg_mean.dtype for layer in layers)))
        places = np.empty((4, int(ends[-1])), np.intp)
        for number, (layer, start, stop) in enumerate(zip(layers, ends.tolist(), ends[1:].tolist(), strict=False)):
            first, shape = number + 3 * start, layer.avg_mean.shape
            layer._seen = self._sums[..., first : first + 1 + 3 * (stop - start)]
            places[0, start:stop] = first
            places[1:, start:stop] = np.arange(first + 1, first + 1 + 3 * (stop - start)).reshape(3, -1)
            for name, own in zip(("avg_mean", "avg_var"), self._averages[:, start:stop], strict=True):
                own[...] = getattr(layer, name).ravel()
                setattr(layer, name, own.reshape(shape))
        self._means, self._places = [layer.avg_mean for layer in layers], xp.asarray(places)

    @property
    def weights(self) -> np.ndarray:
        """How much each group of the micro-batch counts in the update's statistics, (groups,)."""
        if self.evaluation.norm_statistics != "by_group":
            return np.ones(self.num_groups)
        per, span = self.evaluation.norm_momentum.per, self._division.norm_span
        # Not a root of `_keep`, which may have underflowed to 0.
        keep = self.evaluation.norm_momentum.keep ** (1 if per == "update" else span / per)
        return keep ** (self._division.num_groups - 1.0 - self._first_group - np.arange(self.num_groups))

    def weights_on(self, xp: Any) -> Any:
        """`weights` as an array of `xp`; the same array each time for the same number of groups."""
        if self.num_groups not in self._weights:
            self._weights[self.num_groups] = xp.asarray(self.weights)
        return self._weights[self.num_groups]

    @property
    def seen(self) -> list[Any]:
        """What the layers have seen in the update so far: one array on the model's device, which may be changed in
        place; an empty list without layers."""
        return [self._sums] if self._layers else []

    @property
    def averages(self) -> dict[str, Any]:
        """The running statistics of all layers, one array by what an error calls it; none without layers."""
        return {"of the running statistics": self._averages} if self._layers else {}

    def _keep(self, global_batch_size: int) -> float:
        """The fraction of the running statistics that an update keeps."""
        how, momentum = self.evaluation.norm_statistics, self.evaluation.norm_momentum
        if how == "last_batch":
            return 0.0
        if momentum.per != "update":
            return momentum.keep ** (global_batch_size / momentum.per)
        return momentum.keep ** (self._division.num_groups if how == "by_group" else 1)


class NormGroupBatchNormalization(L.BatchNormalization):
    """Batch normalisation whose statistics are those of each norm group of the micro-batch.

    Not made by its constructor: `NormGroups.install` turns a `BatchNormalization` into one, in place, so that its
    parameters, its path and every reference to it stay.

    Attributes:
        is_frozen: training too normalises by the running statistics, which stay as they are.
    """

    norm_groups: NormGroups
    is_frozen = False
    _seen: Any  # weights of the groups; weighted sums of their means, variances, squared means

    def forward(self, x):
        """Normalise x of shape (samples, channels, ...); in test mode by the running statistics.

        Where the kernels serve, the convolution that made x, `+` and `F.relu` join its node, see `Pending`.
        """
        train, parameters, array = chainer.config.train, self._parameters(), chainer.as_array(x)
        gamma, beta = map(chainer.as_array, parameters)
        has_one_node = self.axis in (None, (0, 2, 3)) and covers(array, gamma if train else self.avg_mean)
        statistics = self._statistics() if train else None
        if train and has_one_node:
            scales = statistics.scales(as_rows(array, self.norm_groups.num_groups), gamma, beta, self.eps)
        elif train:
            return self._normalized(x, parameters, statistics)
        elif has_one_node and not chainer.config.enable_backprop:
            rows, averages = as_rows(array, 1), (self.avg_mean[None], self.avg_var[None])
            scales = chainer_hooks.operators_for(rows).scales(rows, *averages, gamma, beta, self.eps)
        else:
            return super().forward(x)
        return Pending(x, parameters, scales, eps=self.eps, statistics=statistics)

    def _normalized(self, x, parameters, statistics):
        count = self.norm_groups.num_groups
        grouped = F.reshape(x, (count, x.shape[0] // count, *x.shape[1:]))  # a view: only the first axis is split
        axis = self.axis or (0, *range(2, x.ndim))
        node = batch_normalization.BatchNormalization(
            self.eps, axis=(1, *(i + 1 for i in axis if i)), impl_selector=lambda *_: statistics
        )
        of_each = (F.broadcast_to(parameter, (count, *self.avg_mean.shape)) for parameter in parameters)
        return F.reshape(node.apply((grouped, *of_each))[0], x.shape)

    def _parameters(self):
        """gamma and beta; ones and zeros for those that the layer lacks."""
        return [
            self.xp.full(self.avg_mean.shape, default, self.avg_mean.dtype) if parameter is None else parameter
            for parameter, default in ((self.gamma, 1), (self.beta, 0))
        ]

    def _statistics(self) -> GroupStatistics:
        """What computes the statistics of one forward and adds them to what this layer has seen."""
        if self.is_frozen:
            return FixedStatistics(self.avg_mean, self.avg_var)
        groups = self.norm_groups
        unbiased = groups.evaluation.norm_statistics != "pooled"
        sums = self._seen if groups._tree is None else self._seen[: groups.num_groups]
        seen = Seen(sums, groups.weights_on(self.xp), unbiased)
        return GroupStatistics(seen) if groups.team is None else TeamStatistics(groups.team, groups.clock, seen)


def moved_statistics(sums: Any, averages: Any, keep: float, norm_statistics: str) -> Any:
    """keep * avg + (1 - keep) * s for mean and variance, with s the statistics of the whole update; float64.

        moving_average, last_batch: s = mean over groups of (mean_g, unbiased var_g)
        by_group:                   s = the same, group g of G weighted by k ** (G - 1 - g), and keep = k ** G
        pooled:                     s = mean of mean_g; mean of var_g + mean of mean_g^2 - (mean of mean_g)^2

    Args:
        sums: what the layers have seen, summed over all workers, (4, channels): weights, and weighted sums of means,
            variances and squared means.
        averages: the running means and variances, (2, channels); those of a layer that was not used stay.
        keep: what is kept of the average, in [0, 1].
        norm_statistics: the recipe's word.
    """
    xp, used = chainer.backend.get_array_module(sums), sums[0] != 0
    mean, var, squares = sums[1:] / xp.where(used, sums[0], 1.0)
    if norm_statistics == "pooled":
        var = var + xp.maximum(squares - mean**2, 0.0)
    return xp.where(used, keep * averages.astype(np.float64) + (1.0 - keep) * xp.stack([mean, var]), averages)
