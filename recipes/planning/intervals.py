"""Intervals of a mean, by Student's t."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np


def interval_of_mean(values: Sequence[float], *, level: float = 0.95) -> tuple[float, float]:
    """The ends of the interval of the mean of independent draws from one normal distribution.

        mean -+ t((1 + level) / 2, n - 1) * s / sqrt(n)         s the sample standard deviation

    Args:
        values: at least two, finite.
        level: how often such an interval holds the mean of the distribution.

    >>> [round(end, 3) for end in interval_of_mean([0.90, 0.92])]
    [0.783, 1.037]
    """
    half = t_quantile((1 + level) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return mean - half, mean + half


def t_quantile(probability: float, df: float) -> float:
    """The quantile of Student's t: with t = sqrt(df) tan(a), the density of the angle a is cos(a) ** (df - 1).

    Args:
        probability: from 0.5 up to below 1.
        df: degrees of freedom, at least 1.

    >>> round(t_quantile(0.95, 4), 4), round(t_quantile(0.95, 1e6), 3)
    (2.1318, 1.645)
    """
    end = np.pi / 2 if df < 1000 else 10 / math.sqrt(df)
    angles = end * np.sin(np.linspace(0, np.pi / 2, 4001))  # dense at the end, where few degrees have their tail
    density = np.cos(angles) ** (df - 1)
    upto = np.concatenate([[0.0], np.cumsum(np.diff(angles) * (density[1:] + density[:-1]) / 2)])
    angle = np.interp(probability - 0.5, 0.5 * upto / upto[-1], angles)
    return math.sqrt(df) * math.tan(angle)
