"""The gradient noise scale, from the norms of gradients of parts of a batch and of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Estimates from one update of the variance of a sample's gradient and of the true gradient's squared norm.

        noise  = (sum_r b_r/B |g_r|^2 - |g|^2) / ((P - 1) / B)       an estimate of tr(Sigma)
        signal = |g|^2 - noise / B                                   an estimate of |G|^2

    Both are unbiased for shares of any sizes, and either may be negative.

    Notation: g_r mean gradient over share r of b_r samples, g over the whole batch of B samples, P shares; Sigma the
    covariance of a sample's gradient, G its mean.

    Args:
        noise: in units of the gradient squared, for one sample.
        signal: in units of the gradient squared.

    Source: McCandlish et al. 2018, arXiv 1812.06162, appendix A, whose pair of batch sizes becomes the shares and the
        whole batch of one update.
    """

    noise: float
    signal: float

    @classmethod
    def of_micro_batches(cls, sizes: Sequence[int], norms: Sequence[float], whole_norm: float) -> Norms | None:
        """The estimates; None from a single micro-batch, which says nothing about noise.

        Args:
            sizes: samples of each micro-batch, at least 1.
            norms: squared norm of the mean gradient over each micro-batch.
            whole_norm: squared norm of the mean gradient over all samples.

        >>> Norms.of_micro_batches([1, 1], [4.0, 4.0], 0.0)           # gradients 2 and -2
        Norms(noise=8.0, signal=-4.0)
        """
        if len(sizes) < 2:
            return None
        batch = sum(sizes)
        # Rounded once: the same in whatever order they come, that is, whoever held which.
        spread = math.fsum(size / batch * norm for size, norm in zip(sizes, norms, strict=True)) - whole_norm
        noise = spread * batch / (len(sizes) - 1)
        return cls(noise=noise, signal=whole_norm - noise / batch)


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """A noise scale in samples, with its standard error, over `num_updates` updates."""

    value: float
    standard_error: float
    num_updates: int


def noise_scale(norms: Sequence[Norms]) -> NoiseScale | None:
    """The simple noise scale tr(Sigma) / |G|^2 over several updates.

        B_simple = mean(noise) / mean(signal)        averaged separately, since a mean of ratios is biased
        error^2  = var(noise - B_simple signal) / (n mean(signal)^2)

    The error assumes independent updates and holds to first order.

    Args:
        norms: of the updates, at least two.
    Returns:
        None if there are fewer than two updates, or the mean signal is not above 0: then the noise hides the gradient,
        and the scale is large but unknown. Also where the numbers are too large or too small for floats.

    Source: McCandlish et al. 2018, arXiv 1812.06162, equation of B_simple and appendix A. The error: delta method.
    """
    count = len(norms)
    if count < 2:
        return None
    try:
        noise, signal = (math.fsum(getattr(n, name) for n in norms) / count for name in ("noise", "signal"))
        if signal <= 0:
            return None
        value = noise / signal
        rests = [n.noise - value * n.signal for n in norms]
        variance = math.fsum(rest**2 for rest in rests) / (count - 1)  # their mean is 0
    except OverflowError:
        return None
    return NoiseScale(value=value, standard_error=math.sqrt(variance / count) / signal, num_updates=count)
