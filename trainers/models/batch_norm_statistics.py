"""Mean and variance of norm groups, accurate enough to be pooled, their gradients, and the teams that share a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import chainer
import numpy as np
from chainer.backends.cuda import to_cpu

from recipes.planning.division import Division
from trainers.kernels import chainer_hooks
from trainers.kernels.chainer_nodes import ChannelsLastImpl, rows_served

if TYPE_CHECKING:
    from mpi4py import MPI

    from trainers.runs.phase_clock import PhaseClock


@dataclass(frozen=True)
class Seen:
    """The sums to which a forward adds the statistics of its groups.

    Args:
        sums: float64 (1 + 3 * channels,): the weights of the groups; weighted sums of their means, variances, squared
            means. (groups, 1 + 3 * channels): the same of each group apart.
        weights: of the groups of this forward, (groups,), float64 on the same device.
        unbiased: whether the variances added are unbiased.
    """

    sums: Any
    weights: Any
    unbiased: bool

    def add(self, mean: Any, var: Any, num_values: int) -> None:
        """Add mean and biased variance of groups of `num_values` values."""
        means, variances = (part.reshape(len(self.weights), -1) for part in (mean, var))
        factor, ours = self.factor(num_values), chainer_hooks.operators_for(means, variances)
        if hasattr(ours, "see"):
            ours.see(means, variances, self.weights, self.sums, factor=factor)
            return
        parts = (means, factor * variances, means**2)
        if self.sums.ndim == 2:
            weights, sums = self.weights[:, np.newaxis], self.sums
            sums += np.concatenate([weights, *(weights * part for part in parts)], axis=1)
            return
        self.sums[0] += self.weights.sum()
        for sums, part in zip(self.sums[1:].reshape(3, -1), parts, strict=True):
            sums += self.weights @ part

    def factor(self, num_values: int) -> float:
        """What the biased variance of `num_values` values is multiplied by."""
        return num_values / max(num_values - 1, 1) if self.unbiased else 1.0  # as Chainer and PyTorch have it


class GroupStatistics(ChannelsLastImpl):
    """Statistics of groups whose samples are all on this worker, summed in float64.

        mean = 1/n sum x        var = 1/n sum (x - m)^2 - (mean - m)^2        m: the mean, rounded to the type of x

    In two passes, where no kernel serves the array. Chainer sums in the type of x: for 16 images of 56x56 pixels with a
    mean of a hundred standard deviations, channels last in memory as its convolutions leave them, its mean was 7e-4
    standard deviations off and its variance 1e-5.

    Args:
        seen: the sums they are added to; None for none.
    Attributes:
        mean, var: float64, (groups, channels); biased. None before the forward, and where a kernel made both in one
            with the `scales`.
        num_values: values of a group and channel.
    """

    is_whole = True

    def __init__(self, seen: Seen | None = None) -> None:
        self.mean = self.var = None
        self.num_values = 0
        self._seen = seen

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            self._in_two_passes(axis, x, xp, interm_dtype)
        else:
            self._of_rows(rows)
        return tuple(part.astype(interm_dtype, copy=False) for part in (self.mean, self.var))

    def scales(self, rows: Any, gamma: Any, beta: Any, eps: float) -> Any:
        """The scales by which our kernels, which serve such arrays, normalise `rows` (groups, rows, channels)."""
        ours, seen = chainer_hooks.operators_for(rows), self._seen
        self.num_values = rows.shape[1]
        if self.is_whole and hasattr(ours, "whole_scales"):
            given = None if seen is None else (seen.weights, seen.sums, seen.factor(self.num_values))
            if (result := ours.whole_scales(rows, gamma, beta, eps, seen=given)) is not None:
                return result
        self._of_rows(rows)
        return ours.scales(rows, self.mean, self.var, gamma, beta, eps)

    def _of_rows(self, rows):
        self.num_values = rows.shape[1]
        self.mean, self.var = chainer_hooks.operators_for(rows).mean_and_variance(rows)
        self._complete()

    def _in_two_passes(self, axis, x, xp, interm_dtype):
        mean = x.mean(axis=axis, dtype=np.float64, keepdims=True)
        rounded = mean.astype(interm_dtype)
        squares = x - rounded
        xp.square(squares, out=squares)
        var = squares.mean(axis=axis, dtype=np.float64, keepdims=True) - (mean - rounded) ** 2
        self.num_values = x.size // mean.size
        self.mean, self.var = mean.squeeze(axis), xp.maximum(var, 0.0).squeeze(axis)
        self._complete()

    def _complete(self):
        """Turn the statistics of this worker's part into those of the groups: the same here."""
        if self._seen is not None:
            self._seen.add(self.mean, self.var, self.num_values)


class _OtherStatistics(GroupStatistics):
    """Statistics that are not of the values here alone.

    Their gradient is that of `whole_sums`, in place of the sums of gamma's and beta's gradients here.
    """

    is_whole = False

    def backward(self, axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data):
        if rows_served(x, gamma, axis) is not None:
            return super().backward(axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data)
        x_hat = (x - mean[expander]) * inv_std[expander]
        gbeta, ggamma = self.get_ggamma_and_gbeta(axis, gamma, gy, x_hat, xp)
        *whole, num_values = self.whole_sums(ggamma, gbeta, None)
        whole_ggamma, whole_gbeta = (xp.asarray(part).astype(gamma.dtype) for part in whole)
        inv_m = gamma.dtype.type(1.0 / num_values)
        gx = (gamma * inv_std)[expander] * (gy - (x_hat * whole_ggamma[expander] + whole_gbeta[expander]) * inv_m)
        # This worker's parts only: the exchange sums them over the workers, with all other gradients.
        return gx.astype(x.dtype, copy=False), None, ggamma, gbeta


class FixedStatistics(_OtherStatistics):
    """The running statistics of a frozen layer, the same for all groups; no gradient goes through them.

    Args:
        mean, var: of the layer.
    """

    def __init__(self, mean: Any, var: Any) -> None:
        super().__init__()
        self._given = mean, var

    def _of_rows(self, rows):
        self._repeat(len(rows), (-1,))

    def _in_two_passes(self, axis, x, xp, interm_dtype):
        self._repeat(len(x), self._given[0].shape)

    def _repeat(self, groups, shape):
        xp = chainer.backend.get_array_module(*self._given)
        given = (part.reshape(shape) for part in self._given)
        self.mean, self.var = (xp.broadcast_to(part, (groups, *part.shape)).copy() for part in given)

    def whole_sums(self, ggamma, gbeta, _):
        """Nothing of both gradients, of one value."""
        xp = chainer.backend.get_array_module(ggamma)
        return xp.zeros_like(ggamma), xp.zeros_like(gbeta), 1


class TeamStatistics(_OtherStatistics):
    """Statistics of one group whose samples lie on several workers, uneven parts weighted by their size.

        mean = sum_j n_j/n mean_j        var = sum_j n_j/n (var_j + (mean_j - mean)^2)        j: workers of the team

    Bytes on the wire: 16 a channel and worker in the forward, 16 in the backward, for each layer.

    Args:
        team: communicator of the workers that share the group.
        clock: times how long this worker waits for them.
        seen: see `GroupStatistics`; the group counts for the team's first worker only.
    """

    def __init__(self, team: MPI.Comm, clock: PhaseClock, seen: Seen | None = None) -> None:
        super().__init__(seen if team.rank == 0 else None)
        self.team, self._clock = team, clock

    def _complete(self):
        xp = chainer.backend.get_array_module(self.mean)
        own = [to_cpu(part).ravel() for part in (self.mean, self.var)]
        parts = self._gathered(np.concatenate([[self.num_values], *own]))
        counts, means, variances = parts[:, :1], *np.split(parts[:, 1:], 2, axis=1)
        self.num_values = int(counts.sum())
        shares = counts / self.num_values
        mean = (shares * means).sum(axis=0)
        var = (shares * (variances + (means - mean) ** 2)).sum(axis=0)
        self.mean, self.var = (xp.asarray(whole.reshape(self.mean.shape)) for whole in (mean, var))
        super()._complete()

    def whole_sums(self, ggamma, gbeta, _):
        """Sums of both gradients over the team, and the number of values that they are over."""
        own = [to_cpu(part).ravel() for part in (ggamma, gbeta)]
        whole = np.split(self._gathered(np.concatenate(own)).sum(axis=0), 2)
        return *(part.reshape(gbeta.shape) for part in whole), self.num_values

    def _gathered(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float64)
        parts = np.empty((self.team.size, values.size))
        with self._clock("waiting"):
            self.team.Allgather(values, parts)
        return parts


class Teams:
    """Gives one worker the communicator of its team, for any team size."""

    def __init__(self, mpi: Any) -> None:
        self._mpi = mpi
        self._by_size: dict[int, Any] = {}

    def of(self, division: Division) -> Any:
        """The communicator of this worker's team, None if teams have one worker; all workers call this together.

        Bytes on the wire: those of MPI_Comm_split, once for each size.
        """
        size = division.team_size
        if size == 1:
            return None
        if size not in self._by_size:
            team = division.team_of(self._mpi.rank)
            colour = division.num_teams if team is None else team
            self._by_size[size] = self._mpi.Split(colour, self._mpi.rank)
        return self._by_size[size]

    def close(self) -> None:
        """Free the communicators; all workers call this together."""
        for team in self._by_size.values():
            team.Free()
        self._by_size.clear()
