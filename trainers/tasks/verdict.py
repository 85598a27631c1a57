"""Whether reruns hold what was claimed: a one-sided Welch bound of the difference against the claim's margin."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from recipes.planning.intervals import t_quantile

AS_GOOD, WORSE, UNDECIDED = "statistically as good", "worse", "undecided"
_ALPHA = 0.05  # of a wrong verdict of either kind, over all looks together
_EARLY = 0.01  # the part of it that looks before the last seed share
_MOST_MORE = 1000


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """What is to be held.

    Args:
        value: mean over the claim's runs; larger is better.
        deviation: standard deviation over them; None: the value counts as exact.
        runs: their number.
        margin: how far the reruns' mean may fall short, at least 0.
        resolution: the smallest difference that one run can show, such as one evaluated sample.
    """

    value: float
    deviation: float | None = None
    runs: int | None = None
    margin: float
    resolution: float


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict.

    Args:
        verdict: AS_GOOD: the lower bound of the difference is above -margin. WORSE: it is not, and the upper bound is
            below 0. UNDECIDED: neither.
        difference: mean of the reruns minus the claimed value.
        lower, upper: its one-sided bounds; infinite where nothing is known of the spread.
    """

    verdict: str
    difference: float
    lower: float
    upper: float


def level_of_look(look: int, *, looks: int) -> float:
    """The level of the bounds after `look` of `looks` seeds: together they err in at most 5 % (Bonferroni).

    >>> [round(level_of_look(look, looks=5), 4) for look in (2, 4, 5)]
    [0.0033, 0.0033, 0.04]
    """
    early = looks - 2
    if early < 1:
        return _ALPHA
    return _ALPHA - _EARLY if look == looks else _EARLY / early


def judge(claimed: Claimed, values: Sequence[float], *, level: float = _ALPHA) -> Judgement:
    """The verdict on the results of reruns.

        difference = mean(values) - value
        bounds     = difference -+ t(1 - level, df) * sqrt(s1^2 / n1 + s0^2 / n0)     df by Welch and Satterthwaite

    One rerun has no spread of its own: it gets that of the claim, and is never decided by.

    Args:
        values: of at least one rerun.
        level: probability at which each bound errs.
    """
    difference, spread = statistics.fmean(values) - claimed.value, _spread(claimed, values)
    if spread is None:
        return Judgement(verdict=UNDECIDED, difference=difference, lower=-math.inf, upper=math.inf)
    half = _half_width(claimed, spread, len(values), level)
    verdict = _verdict(claimed, difference, half) if len(values) > 1 else UNDECIDED
    return Judgement(verdict=verdict, difference=difference, lower=difference - half, upper=difference + half)


def more_seeds(claimed: Claimed, values: Sequence[float]) -> int | None:
    """How many more seeds would decide if they went on like these; None: no number up to 1,000 would."""
    difference, spread = statistics.fmean(values) - claimed.value, _spread(claimed, values)
    if spread is None:
        return 1  # one run has no spread, and two have
    for more in range(1, _MOST_MORE + 1):
        number = len(values) + more
        if _verdict(claimed, difference, _half_width(claimed, spread, number, _ALPHA)) != UNDECIDED:
            return more
    return None


def _spread(claimed: Claimed, values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else claimed.deviation


def _verdict(claimed: Claimed, difference: float, half: float) -> str:
    if difference - half > -claimed.margin:
        return AS_GOOD
    return WORSE if difference + half < 0 else UNDECIDED


def _half_width(claimed: Claimed, spread: float, number: int, level: float) -> float:
    own = max(spread, claimed.resolution) ** 2 / number
    freedom = [(own, max(number - 1, 1))]
    if claimed.deviation is not None and (claimed.runs or 0) > 1:
        freedom.append((max(claimed.deviation, claimed.resolution) ** 2 / claimed.runs, claimed.runs - 1))
    total = sum(part for part, _ in freedom)
    df = total**2 / sum(part**2 / each for part, each in freedom)
    return t_quantile(1 - level, df) * math.sqrt(total)
