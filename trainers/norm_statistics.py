"""Mean and variance of norm groups, exact enough to be pooled, and the gradients through them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import chainer
import numpy as np
from chainer.backends.cuda import to_cpu

from trainers.kernels import seams
from trainers.kernels.batch_normalization import ChannelsLastImpl, rows_served

if TYPE_CHECKING:
    from mpi4py import MPI

    from trainers.phases import PhaseClock


class GroupStatistics(ChannelsLastImpl):
    """Statistics of groups that are whole on this worker, their sums float64.

        mean = 1/n sum x        var = 1/n sum (x - m)^2 - (mean - m)^2        m: the mean, rounded to the type of x

    In two passes, where `trainers.kernels` do not serve. Chainer adds up in the type of x: 16 images of 56x56 pixels a
    hundred deviations from zero, channels last in memory as its convolutions leave them, gave a mean 7e-4 deviations
    off and a variance 1e-5 off.

    Attributes:
        mean, var: float64, (groups, channels); biased. None before the forward.
        num_values: values of a group and channel.
    """

    def __init__(self) -> None:
        self.mean = self.var = None
        self.num_values = 0

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            self._in_two_passes(axis, x, xp, interm_dtype)
        else:
            self.of_rows(rows)
        return tuple(part.astype(interm_dtype, copy=False) for part in (self.mean, self.var))

    def of_rows(self, rows):
        """Mean and variance of (groups, rows, channels), which our kernels serve."""
        self.num_values = rows.shape[1]
        self.mean, self.var = seams.serving(rows).mean_and_variance(rows)
        self._complete()
        return self.mean, self.var

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
        """Make of this worker's part the statistics of the groups: they are whole here."""


class TeamStatistics(GroupStatistics):
    """Statistics of one group whose samples lie on several workers, uneven parts weighted by their size.

        mean = sum_j n_j/n mean_j        var = sum_j n_j/n (var_j + (mean_j - mean)^2)        j: workers of the team

    Bytes on the wire: 16 a channel and worker in the forward, 16 in the backward, for each layer.

    Args:
        team: communicator of the workers that share the group.
        clock: told how long this worker waits for them.
    """

    def __init__(self, team: MPI.Comm, clock: PhaseClock) -> None:
        super().__init__()
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

    def backward(self, axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data):
        if rows_served(x, gamma, axis) is not None:
            return super().backward(axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data)
        x_hat = (x - mean[expander]) * inv_std[expander]
        gbeta, ggamma = self.get_ggamma_and_gbeta(axis, gamma, gy, x_hat, xp)
        *whole, num_values = self.whole_sums(ggamma, gbeta, None)
        whole_ggamma, whole_gbeta = (xp.asarray(part).astype(gamma.dtype) for part in whole)
        inv_m = gamma.dtype.type(1.0 / num_values)
        gx = (gamma * inv_std)[expander] * (gy - (x_hat * whole_ggamma[expander] + whole_gbeta[expander]) * inv_m)
        # The parts stay apart here: the exchange of gradients adds them up once, with all other gradients.
        return gx.astype(x.dtype, copy=False), None, ggamma, gbeta

    def whole_sums(self, ggamma, gbeta, _):
        """What the team's parts add up to, and the values that they are over."""
        own = [to_cpu(part).ravel() for part in (ggamma, gbeta)]
        whole = np.split(self._gathered(np.concatenate(own)).sum(axis=0), 2)
        return *(part.reshape(gbeta.shape) for part in whole), self.num_values

    def _gathered(self, values: np.ndarray) -> np.ndarray:
        values = np.ascontiguousarray(values, dtype=np.float64)
        parts = np.empty((self.team.size, values.size))
        with self._clock("waiting"):
            self.team.Allgather(values, parts)
        return parts
