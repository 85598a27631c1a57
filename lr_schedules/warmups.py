"""Warmups: a factor that ends at 1 after `epochs`, joined to a schedule by `Joined`."""

from __future__ import annotations

from dataclasses import dataclass

from lr_schedules.units import Epochs, require_number

__all__ = ["ConstantWarmup", "GradualWarmup"]


@dataclass(frozen=True, kw_only=True)
class GradualWarmup:
    """Rise from `start` to 1 in a straight line over the samples of the first epochs.

        w(t) = start + (1 - start) * t / epochs   t < epochs
        w(t) = 1                                  t >= epochs

    Args:
        epochs: length of the warmup, greater than 0.
        start: the factor of the first update, in [0, 1]. Goyal's "start from the unscaled rate" is per / global batch.
    Raises:
        ValueError: an argument is not finite or outside its range.

    >>> warmup = GradualWarmup(epochs=5.0, start=256 / 8192)
    >>> warmup(0.0), warmup(5.0)
    (0.03125, 1.0)

    Source: Goyal et al. 2017, arXiv 1706.02677 (a constant increment every iteration, five epochs).
    Differs: linear in samples, so that the same moment has the same rate at every batch size.
    """

    epochs: Epochs
    start: float = 0.0

    def __post_init__(self) -> None:
        require_number("GradualWarmup.epochs", self.epochs, above=0)
        require_number("GradualWarmup.start", self.start, at_least=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        if epoch >= self.epochs:
            return 1.0
        return self.start + (1.0 - self.start) * epoch / self.epochs


@dataclass(frozen=True, kw_only=True)
class ConstantWarmup:
    """Stay at `start`, then jump to 1.

        w(t) = start   t < epochs
        w(t) = 1       t >= epochs

    Args:
        epochs: length of the warmup, greater than 0.
        start: the factor until then, in (0, 1].
    Raises:
        ValueError: an argument is not finite or outside its range.

    >>> warmup = ConstantWarmup(epochs=5.0, start=0.1)
    >>> warmup(4.99), warmup(5.0)
    (0.1, 1.0)

    Source: Goyal et al. 2017, arXiv 1706.02677, which measured it: 25.88 % top-1 error at batch 8192
        against 23.74 % with the gradual one.
    """

    epochs: Epochs
    start: float

    def __post_init__(self) -> None:
        require_number("ConstantWarmup.epochs", self.epochs, above=0)
        require_number("ConstantWarmup.start", self.start, above=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        return 1.0 if epoch >= self.epochs else float(self.start)
