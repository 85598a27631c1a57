"""What a frontier says of all batches: the curve of McCandlish et al. through its points, and how sure it is.

    S(B) = S_min (1 + B_crit / B)                # updates to the goal at batch B

At B_crit both the updates and the samples are twice what they are at least. Source: McCandlish et al. 2018, arXiv
1812.06162, eq. 2.11 with E = B S (not checked).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, median, median_low

_USEFUL = 0.2  # above S_min at the largest useful batch, and above perfect scaling where that ends
_BEYOND = 100.0  # times the largest batch, or below the smallest: so far B_crit is looked for
_GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The curve through the points of a method.

    Args:
        s_min: updates that no batch goes below.
        b_crit: the critical batch, in samples.
        error: root mean square of the logarithms' residuals: 0.1 is about 10 %.
        end: `low` or `high` where the points show no bend, so that `b_crit` is only the end of where it is looked for:
            updates hardly fall with the batch, or fall in proportion at all of them. Empty with a bend.
    """

    s_min: float
    b_crit: float
    error: float
    end: str = ""

    def updates(self, batch: float) -> float:
        """S(B)."""
        return self.s_min * (1 + self.b_crit / batch)

    def perfect(self, batch: float) -> float:
        """The line of perfect scaling: half of the updates at twice the batch."""
        return self.s_min * self.b_crit / batch

    @property
    def perfect_to(self) -> float:
        """The batch at which the updates are 20 % above perfect scaling: 0.2 B_crit.

        Source: the definition is that of Zhang et al. 2024, arXiv 2410.21676 (not checked).
        """
        return _USEFUL * self.b_crit

    @property
    def useful_to(self) -> float:
        """The largest useful batch, 5 B_crit: updates are 20 % above S_min. A larger one saves a sixth at most."""
        return self.b_crit / _USEFUL


def fit(points: Sequence[tuple[float, float]]) -> Fit | None:
    """The curve with the least squares of log residuals; None with fewer than three points.

    B_crit is looked for from a hundredth of the smallest batch to a hundred times the largest.

    Args:
        points: (batch, updates to the goal).

    >>> made = fit([(batch, 50 * (1 + 400 / batch)) for batch in (16, 64, 256, 1024)])
    >>> round(made.s_min, 3), round(made.b_crit, 2), round(made.error, 6)
    (50.0, 400.0, 0.0)
    """
    if len(points) < 3:
        return None
    logs = [(batch, math.log(updates)) for batch, updates in points]

    def residuals(log_crit: float) -> tuple[float, list[float]]:
        curve = [updates - math.log1p(math.exp(log_crit) / batch) for batch, updates in logs]
        log_s_min = fmean(curve)  # the best one for this B_crit
        return log_s_min, [each - log_s_min for each in curve]

    def cost(log_crit: float) -> float:
        return sum(each * each for each in residuals(log_crit)[1])

    batches = [batch for batch, _ in points]
    low, high = math.log(min(batches) / _BEYOND), math.log(max(batches) * _BEYOND)
    steps = [low + (high - low) * step / 60 for step in range(61)]
    best = min(range(61), key=lambda step: cost(steps[step]))
    end = {0: "low", 60: "high"}.get(best, "")
    low, high = steps[max(best - 1, 0)], steps[min(best + 1, 60)]
    while high - low > 1e-9:  # golden section
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if cost(left) <= cost(right) else (left, high)
    log_s_min, rest = residuals((low + high) / 2)
    error = math.sqrt(fmean(each * each for each in rest))
    return Fit(s_min=math.exp(log_s_min), b_crit=math.exp((low + high) / 2), error=error, end=end)


def middle(runs: Sequence[float]) -> float:
    """The median of updates to a goal, infinite only if most of the runs missed it.

    >>> middle([40, 10, math.inf]), middle([10, math.inf]), middle([10, math.inf, math.inf])
    (40, 10, inf)
    """
    found = median(runs)
    return found if math.isfinite(found) else median_low(runs)


def interval(
    samples: Sequence[tuple[float, Sequence[float]]],
    *,
    seed: int,
    statistic: Callable[[Sequence[float]], float] = middle,
    draws: int = 500,
) -> tuple[float, float]:
    """The 95 % interval of B_crit: the percentile bootstrap over the runs of every point.

    Each draw takes as many runs of every point as it has, with replacement, and fits the curve to their medians. It
    knows what the runs differ by, and not whether the curve has the right form. From 0, or to infinity, where that draw
    shows no bend.

    Args:
        samples: (batch, updates to the goal of each run; infinite where it was missed).
        seed: of the draws.
        statistic: what counts of the runs of a point.
    """
    random, found = Random(seed), []
    for _ in range(draws):
        drawn = [(batch, statistic(random.choices(runs, k=len(runs)))) for batch, runs in samples]
        made = fit([point for point in drawn if math.isfinite(point[1])])
        if made is not None:
            found.append({"low": 0.0, "high": math.inf}.get(made.end, made.b_crit))
    found.sort()
    if not found:
        return 0.0, math.inf
    return found[round(0.025 * (len(found) - 1))], found[round(0.975 * (len(found) - 1))]
