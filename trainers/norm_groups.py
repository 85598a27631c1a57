"""Batch normalisation over norm groups: statistics of exactly `norm_span` samples, whoever computes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L
from chainer.functions.normalization import batch_normalization

from recipes.schema import Evaluation

if TYPE_CHECKING:
    from mpi4py import MPI


class TeamStatistics(batch_normalization.GeneralBatchNormalizationImpl):
    """Statistics of one group whose samples lie on several workers, uneven parts weighted by their size.

        mean = sum_j n_j/n mean_j        var = sum_j n_j/n (var_j + (mean_j - mean)^2)        j: workers of the team

    Bytes on the wire: 16 a channel and worker in the forward, 16 in the backward, for each layer.

    Args:
        team: communicator of the workers that share the group.
    """

    def __init__(self, team: MPI.Comm) -> None:
        self.team = team
        self.num_values = 0

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        count = x.size // gamma.size
        mean, var = super().get_mean_and_var(axis, gamma, x, xp, interm_dtype)
        parts = self._gathered(np.concatenate([[count], mean.ravel(), var.ravel()]))
        counts, means, variances = parts[:, :1], *np.split(parts[:, 1:], 2, axis=1)
        self.num_values = int(counts.sum())
        shares = counts / self.num_values
        whole_mean = (shares * means).sum(axis=0)
        whole_var = (shares * (variances + (means - whole_mean) ** 2)).sum(axis=0)
        return (whole.reshape(mean.shape).astype(interm_dtype) for whole in (whole_mean, whole_var))

    def backward(self, axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data):
        x_hat = (x - mean[expander]) * inv_std[expander]
        gbeta, ggamma = self.get_ggamma_and_gbeta(axis, gamma, gy, x_hat, xp)
        whole = self._gathered(np.concatenate([ggamma.ravel(), gbeta.ravel()])).sum(axis=0)
        whole_ggamma, whole_gbeta = (part.reshape(gamma.shape).astype(gamma.dtype) for part in np.split(whole, 2))
        inv_m = gamma.dtype.type(1.0 / self.num_values)
        gx = (gamma * inv_std)[expander] * (gy - (x_hat * whole_ggamma[expander] + whole_gbeta[expander]) * inv_m)
        # The parts stay apart here: the exchange of gradients adds them up once, with all other gradients.
        return gx.astype(x.dtype, copy=False), None, ggamma, gbeta

    def _gathered(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float64)
        parts = np.empty((self.team.size, values.size))
        self.team.Allgather(values, parts)
        return parts


class NormGroups:
    """The norm groups of the micro-batch at hand, and the statistics seen during an update.

    One object is shared by all normalisation layers of a model. The updater sets `num_groups` and `team` before a
    forward; the layers report the statistics of their groups; `update_running_statistics` moves the running ones once.

    Args:
        evaluation: how the running statistics move (the recipe's).
    """

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation = evaluation
        self.num_groups = 1
        self.team: MPI.Comm | None = None
        self._layers: dict[str, NormGroupBatchNormalization] = {}

    def install(self, model: chainer.Link) -> None:
        """Make every `BatchNormalization` of a model normalise by groups.

        Raises:
            TypeError: a normalisation over the batch that is not plain `BatchNormalization`: its statistics would
                depend on the split into micro-batches.
        """
        for path, link in sorted(model.namedlinks()):
            if type(link) is L.BatchNormalization:
                link.__class__ = NormGroupBatchNormalization
                link.norm_groups = self
                link.forget_statistics()
                self._layers[path] = link
            elif isinstance(link, (L.BatchNormalization, L.BatchRenormalization, L.DecorrelatedBatchNormalization)):
                raise TypeError(
                    f"{path} is a {type(link).__name__}: its statistics would depend on the micro-batch; "
                    "use chainer.links.BatchNormalization, which kilobatch applies to each norm group"
                )

    def update_running_statistics(self, world: MPI.Comm, global_batch_size: int) -> None:
        """Move the running statistics by those of the update, equally on all workers.

        Args:
            world: all workers; one all-reduce of 24 bytes a channel.
            global_batch_size: samples of the update, for a `norm_momentum` counted in samples.
        """
        if not self._layers:
            return
        from mpi4py import MPI

        sums = np.concatenate([layer.take_statistics() for layer in self._layers.values()])
        world.Allreduce(MPI.IN_PLACE, sums)
        keep = self._keep(global_batch_size)
        start = 0
        for layer in self._layers.values():
            size = 1 + 3 * layer.avg_mean.size
            layer.move_running_statistics(sums[start : start + size], keep, self.evaluation.norm_statistics)
            start += size

    def _keep(self, global_batch_size: int) -> float:
        if self.evaluation.norm_statistics == "last_batch":
            return 0.0
        momentum = self.evaluation.norm_momentum
        return momentum.keep if momentum.per == "update" else momentum.keep ** (global_batch_size / momentum.per)


class NormGroupBatchNormalization(L.BatchNormalization):
    """Batch normalisation whose statistics are those of each norm group of the micro-batch.

    Not made by its constructor: `NormGroups.install` turns a `BatchNormalization` into one, in place, so that its
    parameters, its path and every reference to it stay.
    """

    norm_groups: NormGroups

    def forget_statistics(self) -> None:
        """Begin an update: nothing seen yet."""
        self._seen = np.zeros(1 + 3 * self.avg_mean.size)  # groups, sums of means, of variances, of squared means

    def forward(self, x):
        """Normalise float32 x of shape (samples, channels, ...); in test mode by the running statistics."""
        if not chainer.config.train:
            return super().forward(x)
        groups = self.norm_groups
        count = groups.num_groups
        first, rest = x.shape[0], x.shape[1:]
        grouped = F.reshape(x, (count, first // count, *rest))  # a view: only the first axis is split
        axis = self.axis or (0, *range(2, x.ndim))
        scale, shift = (self._of_each_group(p, count, default) for p, default in ((self.gamma, 1), (self.beta, 0)))
        team = groups.team
        node = batch_normalization.BatchNormalization(
            self.eps,
            axis=(1, *(i + 1 for i in axis if i)),
            **({"impl_selector": lambda *_: TeamStatistics(team)} if team is not None else {}),
        )
        y = node.apply((grouped, scale, shift))[0]
        self._see(node)
        return F.reshape(y, x.shape)

    def _of_each_group(self, parameter, count, default):
        if parameter is None:
            parameter = self.xp.full(self.avg_mean.shape, default, dtype=self.avg_mean.dtype)
        return F.broadcast_to(parameter, (count, *self.avg_mean.shape))

    def _see(self, node) -> None:
        """Add the statistics of the groups of one forward; of a team's group only its first worker does."""
        team = self.norm_groups.team
        if team is not None and team.rank > 0:
            return
        means, variances = (np.asarray(s, dtype=np.float64).reshape(len(s), -1) for s in (node.mean, node.var))
        if self.norm_groups.evaluation.norm_statistics != "pooled":
            num_values = node._impl.num_values if team is not None else node.inputs[0].data.size // node.mean.size
            variances = variances * (num_values / max(num_values - 1, 1))  # unbiased, as Chainer and PyTorch have it
        self._seen += np.concatenate([[len(means)], means.sum(axis=0), variances.sum(axis=0), (means**2).sum(axis=0)])

    def take_statistics(self) -> np.ndarray:
        """What was seen since the last call, float64 (1 + 3 * channels,), and forget it."""
        seen = self._seen
        self.forget_statistics()
        return seen

    def move_running_statistics(self, sums: np.ndarray, keep: float, norm_statistics: str) -> None:
        """avg <- keep * avg + (1 - keep) * s, with s the statistics of the whole update.

            moving_average, last_batch: s = mean over groups of (mean_g, unbiased var_g)
            pooled:                     s = mean of mean_g; mean of var_g + mean of mean_g^2 - (mean of mean_g)^2

        Args:
            sums: what `take_statistics` gave, summed over all workers.
            keep: what is kept of the average, in [0, 1].
            norm_statistics: the recipe's word.
        """
        num_groups = sums[0]
        if num_groups == 0:  # the layer was not used in this update
            return
        mean, var, squares = np.split(sums[1:] / num_groups, 3)
        if norm_statistics == "pooled":
            var = var + np.maximum(squares - mean**2, 0.0)
        for average, seen in ((self.avg_mean, mean), (self.avg_var, var)):
            average[...] = keep * average.astype(np.float64) + (1.0 - keep) * seen.reshape(average.shape)
