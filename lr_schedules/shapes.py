"""Shapes: how the factor of the learning rate moves over the run.

rate(t) = full rate * f(t), t the epochs seen.

Every shape is defined for all t >= 0 and keeps its last value after its end. A change at a boundary holds
from the boundary on (t >= boundary).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import groupby

from lr_schedules.units import Epochs, as_written, require_increasing, require_number

__all__ = [
    "Constant",
    "Cosine",
    "CosineRestarts",
    "Exponential",
    "MultiStep",
    "PiecewiseLinear",
    "Polynomial",
    "SlowStart",
    "StableDecay",
]

_EXACT = 1000  # periods of a cosine with restarts whose starts are exact


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same factor from the first update to the last.

        f(t) = factor

    Args:
        factor: greater than 0.
    Raises:
        ValueError: `factor` is not finite or not greater than 0.

    >>> Constant(factor=0.5)(12.0)
    0.5

    Source: Smith et al. 2017, arXiv 1711.00489: where the batch grows instead, the rate stays constant.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        require_number("Constant.factor", self.factor, above=0)

    def __call__(self, epoch: float) -> float:
        return float(self.factor)


@dataclass(frozen=True, kw_only=True)
class MultiStep:
    """Multiply by the same factor at each boundary.

        f(t) = factor ** (number of boundaries <= t)

    Args:
        boundaries: epochs, increasing, each greater than 0.
        factor: the rate is multiplied by it at each boundary; greater than 0.
    Raises:
        ValueError: `boundaries` is empty, not a tuple, not increasing or not above 0; `factor` is not above 0.

    >>> goyal = MultiStep(boundaries=(30.0, 60.0, 80.0), factor=0.1)
    >>> goyal(29.99), goyal(30.0)
    (1.0, 0.1)

    Source: Goyal et al. 2017, arXiv 1706.02677 (x0.1 at epochs 30, 60 and 80).
    """

    boundaries: tuple[Epochs, ...]
    factor: float = 0.1

    def __post_init__(self) -> None:
        require_increasing("MultiStep.boundaries", self.boundaries)
        require_number("MultiStep.boundaries", self.boundaries[0], above=0)
        require_number("MultiStep.factor", self.factor, above=0)

    def __call__(self, epoch: float) -> float:
        return float(self.factor ** bisect_right(self.boundaries, epoch))


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """Fall from 1 to `end` along a power of the time that is left.

        f(t) = end + (1 - end) * (1 - t / epochs) ** power        t < epochs
        f(t) = end                                                t >= epochs

    Args:
        epochs: length of the decay, greater than 0.
        power: 1 is a straight line, 2 falls faster at first; greater than 0.
        end: the last factor, in [0, 1].
    Raises:
        ValueError: an argument is not finite or outside its range.

    >>> Polynomial(epochs=90.0, power=2.0)(45.0)
    0.25

    Source: You et al. 2017 use power 2 with LARS, arXiv 1708.03888; MLPerf fixes power 2.
    Differs: MLPerf's rules and `tf.keras` give the last *rate*; `end` is that rate divided by the full one.
    """

    epochs: Epochs
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        require_number("Polynomial.epochs", self.epochs, above=0)
        require_number("Polynomial.power", self.power, above=0)
        require_number("Polynomial.end", self.end, at_least=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        left = max(0.0, 1.0 - epoch / self.epochs)
        return self.end + (1.0 - self.end) * left**self.power


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Fall from 1 to `end` along half a cosine, once, without restarts.

        f(t) = end + (1 - end) * (1 + cos(pi * t / epochs)) / 2   t < epochs
        f(t) = end                                                t >= epochs

    Args:
        epochs: length of the decay, greater than 0.
        end: the last factor, in [0, 1].
    Raises:
        ValueError: an argument is not finite or outside its range.

    >>> [round(Cosine(epochs=20.0)(t), 3) for t in (0.0, 10.0, 15.0, 20.0)]
    [1.0, 0.5, 0.146, 0.0]

    Source: Loshchilov and Hutter 2016, arXiv 1608.03983; the closed form as the documentation of PyTorch's
        `CosineAnnealingLR` quotes it, paper not checked.
    Differs: read at every update instead of once an epoch, and it stays at `end` where the cosine would rise again.
    """

    epochs: Epochs
    end: float = 0.0

    def __post_init__(self) -> None:
        require_number("Cosine.epochs", self.epochs, above=0)
        require_number("Cosine.end", self.end, at_least=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        seen = min(1.0, epoch / self.epochs)
        return self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * seen)) / 2.0


@dataclass(frozen=True, kw_only=True)
class CosineRestarts:
    """Fall from 1 to `end` along half a cosine, again and again, each period `times` as long as the one before.

        f(t) = peak ** i * (end + (1 - end) * (1 + cos(pi * (t - start_i) / length_i)) / 2)   start_i <= t < start_{i+1}
        length_i = first * times ** i,   start_i = length_0 + ... + length_{i-1}

    Args:
        first: length of the first period, greater than 0.
        times: how many times longer each period is than the one before, at least 1.
        end: the last factor of a period, in [0, 1], of its first.
        peak: what is left of the factor at each restart, in (0, 1].
    Raises:
        ValueError: an argument is not finite or outside its range.

    >>> sgdr = CosineRestarts(first=10.0, times=2.0)
    >>> [round(sgdr(t), 3) for t in (0.0, 5.0, 9.999, 10.0, 20.0, 30.0)]
    [1.0, 0.5, 0.0, 1.0, 0.5, 1.0]

    Source: Loshchilov and Hutter 2016, arXiv 1608.03983 (T_0 is `first`, T_mult `times`; not checked).
    Differs: read at every update. `peak` below 1 is not in the paper.
    """

    first: Epochs
    times: float = 1.0
    end: float = 0.0
    peak: float = 1.0

    def __post_init__(self) -> None:
        require_number("CosineRestarts.first", self.first, above=0)
        require_number("CosineRestarts.times", self.times, at_least=1)
        require_number("CosineRestarts.end", self.end, at_least=0, at_most=1)
        require_number("CosineRestarts.peak", self.peak, above=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        number = self.restarts(epoch)
        start, stop = (_start(self.first, self.times, it) for it in (number, number + 1))
        seen = (epoch - start) / (stop - start)
        return self.peak**number * (self.end + (1.0 - self.end) * (1.0 + math.cos(math.pi * seen)) / 2.0)

    def restarts(self, epoch: float) -> int:
        """How many restarts lie at or before an epoch."""
        if epoch <= 0:
            return 0
        if self.times == 1:
            number = int(Fraction(epoch) / as_written(self.first))
        else:
            grown = epoch / self.first * (self.times - 1)
            exponent = math.log1p(grown)
            if grown == math.inf:
                exponent = math.log(epoch) - math.log(self.first) + math.log(self.times - 1)
            number = math.floor(exponent / math.log(self.times))
        number = max(0, number - 1)  # rounding moves it by one at most
        return number + sum(_start(self.first, self.times, number + more) <= epoch for more in (1, 2))


@lru_cache(maxsize=4096)
def _start(first: float, times: float, number: int) -> float:
    """The start of a period, rounded once: 3 periods of 0.1 end at 0.3, where 3 * 0.1 is more.

    Beyond 1,000 periods of unequal length it is rounded more often, since exact fractions would be very long.
    """
    length, ratio = as_written(first), as_written(times)
    try:
        if ratio == 1:
            return float(length * number)
        if number > _EXACT:
            return first * math.expm1(number * math.log(times)) / (times - 1)
        return float(length * (ratio**number - 1) / (ratio - 1))
    except OverflowError:
        return math.inf


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Decay by the same ratio every epoch.

        f(t) = ratio ** t

    Args:
        ratio: what is left of the factor after one epoch, in (0, 1].
    Raises:
        ValueError: `ratio` is not finite or outside (0, 1].

    >>> Exponential(ratio=0.5)(2.0)
    0.25

    Source: the formula itself. Differs: smooth between epochs, where a rate read once an epoch falls in steps.
    """

    ratio: float

    def __post_init__(self) -> None:
        require_number("Exponential.ratio", self.ratio, above=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        return float(self.ratio) ** epoch


@dataclass(frozen=True, kw_only=True)
class PiecewiseLinear:
    """Straight lines through the points, flat before the first and after the last.

        f(t) = y_i + (y_j - y_i) * (t - x_i) / (x_j - x_i)        x_i <= t < x_j, neighbours
        f(t) = y_first for t < x_first, y_last for t >= x_last

    Args:
        points: pairs of (epochs, factor); the epochs increase, no factor is negative. Two points at one position are a
            jump: the line before runs to the first, and from the position on the second holds.
    Raises:
        ValueError: `points` is empty, not a tuple of pairs, goes backwards or has three at one position, or a factor is
            negative or not finite.

    >>> ffcv = PiecewiseLinear(points=((0.0, 1e-4), (2.0, 1.0), (16.0, 0.0)))
    >>> ffcv(2.0), ffcv(9.0)
    (1.0, 0.5)
    >>> jump = PiecewiseLinear(points=((0.0, 1.0), (30.0, 0.5), (30.0, 0.1)))
    >>> jump(15.0), jump(30.0)
    (0.75, 0.1)

    Source: FFCV's ResNet-50 recipes rise to the peak at epoch 2 and fall to 0 at the end in straight lines.
    """

    points: tuple[tuple[Epochs, float], ...]

    def __post_init__(self) -> None:
        points = self.points
        if not isinstance(points, tuple) or any(not isinstance(point, tuple) or len(point) != 2 for point in points):
            raise ValueError(f"PiecewiseLinear.points must be a tuple of pairs (epochs, factor), got {points!r}")
        runs = [(position, len([*same])) for position, same in groupby(position for position, _ in points)]
        if any(length > 2 for _, length in runs):
            raise ValueError(f"PiecewiseLinear.points must have at most two points at one position, got {points!r}")
        require_increasing("PiecewiseLinear.points", tuple(position for position, _ in runs))
        for _, factor in points:
            require_number("PiecewiseLinear.points", factor, at_least=0)

    def __call__(self, epoch: float) -> float:
        after = bisect_right(self.points, epoch, key=lambda point: point[0])
        if after == 0:
            return float(self.points[0][1])
        if after == len(self.points):
            return float(self.points[-1][1])
        (x_i, y_i), (x_j, y_j) = self.points[after - 1], self.points[after]
        return y_i + (y_j - y_i) * (epoch - x_i) / (x_j - x_i)


@dataclass(frozen=True, kw_only=True)
class SlowStart:
    """One factor for each stage, the first one already below 1.

        f(t) = factors[number of boundaries <= t]

    Args:
        boundaries: epochs at which the next stage starts, increasing, each greater than 0.
        factors: one more than boundaries, none negative.
    Raises:
        ValueError: `boundaries` is empty, not a tuple, not increasing or not above 0; `factors` has another length than
            one more, or holds a number that is negative or not finite.

    >>> [SlowStart()(t) for t in (0.0, 39.9, 40.0, 70.0, 85.0)]
    [0.5, 0.5, 0.075, 0.01, 0.001]

    Source: Akiba et al. 2017, arXiv 1711.04325 (0.5 until epoch 40, 0.075 until 70, 0.01 until 85, then 0.001).
    Differs: nothing here. There is no gradual warmup in it; the paper's start is the optimizer's RMSprop warmup.
    """

    boundaries: tuple[Epochs, ...] = (40.0, 70.0, 85.0)
    factors: tuple[float, ...] = (0.5, 0.075, 0.01, 0.001)

    def __post_init__(self) -> None:
        require_increasing("SlowStart.boundaries", self.boundaries)
        require_number("SlowStart.boundaries", self.boundaries[0], above=0)
        if not isinstance(self.factors, tuple) or len(self.factors) != len(self.boundaries) + 1:
            raise ValueError(f"SlowStart.factors must be a tuple of {len(self.boundaries) + 1}, got {self.factors!r}")
        for factor in self.factors:
            require_number("SlowStart.factors", factor, at_least=0)

    def __call__(self, epoch: float) -> float:
        return float(self.factors[bisect_right(self.boundaries, epoch)])


@dataclass(frozen=True, kw_only=True)
class StableDecay:
    """Stay at 1, then fall to `end` by one minus a root at the end of the run: the stable and decay parts of WSD.

        f(t) = 1                                                         t < decay_from
        f(t) = end + (1 - end) * (1 - sqrt((t - decay_from) / (epochs - decay_from)))
        f(t) = end                                                       t >= epochs

    Its warmup is the recipe's. The run may be made longer from a checkpoint before `decay_from`.

    Args:
        decay_from: the epoch at which the decay starts, at least 0 and before `epochs`; about 0.8 to 0.9 of the run.
        epochs: the epoch at which it ends, greater than 0.
        end: the last factor, in [0, 1].
    Raises:
        ValueError: an argument is not finite or outside its range; `decay_from` is not before `epochs`.

    >>> wsd = StableDecay(decay_from=80.0, epochs=100.0)
    >>> [round(wsd(t), 3) for t in (0.0, 80.0, 85.0, 100.0)]
    [1.0, 1.0, 0.5, 0.0]

    Source: Hu et al. 2024, arXiv 2404.06395 (warmup, stable, decay; not checked); the root: Haegele et al. 2024, arXiv
        2405.18392 (not checked).
    """

    decay_from: Epochs
    epochs: Epochs
    end: float = 0.0

    def __post_init__(self) -> None:
        require_number("StableDecay.decay_from", self.decay_from, at_least=0)
        require_number("StableDecay.epochs", self.epochs, above=0)
        if self.decay_from >= self.epochs:
            raise ValueError(f"StableDecay.decay_from must be before epochs {self.epochs}, got {self.decay_from!r}")
        require_number("StableDecay.end", self.end, at_least=0, at_most=1)

    def __call__(self, epoch: float) -> float:
        seen = (epoch - self.decay_from) / (self.epochs - self.decay_from)
        return self.end + (1.0 - self.end) * (1.0 - math.sqrt(min(max(seen, 0.0), 1.0)))
