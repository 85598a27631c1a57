"""Chainer's batch normalisation with our passes over the arrays. Imports Chainer."""

from __future__ import annotations

import numpy as np
from chainer.functions.normalization import batch_normalization

from trainers.kernels import numpy_normalization, seams


class ChannelsLastImpl(batch_normalization.GeneralBatchNormalizationImpl):
    """Chainer's own, but for arrays whose channels are last in memory; of one group, or of several on the first axis.

    `backward_sums` is what a part of a group would exchange with the others.
    """

    def forward(self, axis, gamma, x, x_layout, xp, expander, beta, eps, decay, running_mean, running_var):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().forward(axis, gamma, x, x_layout, xp, expander, beta, eps, decay, running_mean, running_var)
        mean, var = self.get_mean_and_var(axis, gamma, x, xp, x.dtype)
        inv_std = np.reciprocal(np.sqrt(var + x.dtype.type(eps)))
        shape = (len(rows), -1)
        y = numpy_normalization.empty_like_rows(x, axis)
        numpy_normalization.normalized(
            rows,
            mean.reshape(shape),
            (gamma * inv_std).reshape(shape),
            beta.reshape(shape),
            out=numpy_normalization.rows_of(y, axis),
        )
        if running_mean is not None:
            count = x.size // gamma.size
            for running, seen in ((running_mean, mean), (running_var, var * (count / max(count - 1.0, 1.0)))):
                running *= decay
                running += (1 - decay) * seen
        return y, x_layout, running_mean, running_var, mean, var, inv_std, None

    def get_mean_and_var(self, axis, gamma, x, xp, interm_dtype):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().get_mean_and_var(axis, gamma, x, xp, interm_dtype)
        return tuple(
            part.reshape(gamma.shape).astype(interm_dtype) for part in numpy_normalization.mean_and_variance(rows)
        )

    def backward(self, axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data):
        rows = rows_served(x, gamma, axis)
        if rows is None:
            return super().backward(axis, gamma, gy, x, x_layout, xp, expander, mean, inv_std, eps, var, forward_data)
        gy_rows = numpy_normalization.rows_of(gy, axis)
        if gy_rows is None:
            copied = numpy_normalization.empty_like_rows(x, axis)
            copied[...] = gy
            gy_rows = numpy_normalization.rows_of(copied, axis)
        shape = (len(rows), -1)
        sums = numpy_normalization.gradient_sums(gy_rows, rows, mean.reshape(shape))
        gbeta, ggamma = (part.reshape(gamma.shape) for part in sums)
        ggamma = ggamma * inv_std
        whole_gbeta, whole_ggamma, num_values = self.whole_sums(gbeta, ggamma, x.size // gamma.size)
        times = gamma * inv_std
        gx = numpy_normalization.empty_like_rows(x, axis)
        numpy_normalization.input_gradient(
            gy_rows,
            rows,
            *(
                vector.reshape(shape).astype(x.dtype, copy=False)
                for vector in (
                    mean,
                    times,
                    times * inv_std * whole_ggamma / num_values,
                    times * whole_gbeta / num_values,
                )
            ),
            out=numpy_normalization.rows_of(gx, axis),
        )
        return gx, None, ggamma.astype(gamma.dtype), gbeta.astype(gamma.dtype)

    def whole_sums(self, gbeta, ggamma, num_values):
        """The sums over whole groups, where this worker has a part of one, and the values that they are over."""
        return gbeta, ggamma, num_values


def rows_served(x, gamma, axis):
    """x as (groups, rows, channels), where our passes serve it; else None."""
    return numpy_normalization.rows_of(x, axis) if seams.served(x, gamma) else None
