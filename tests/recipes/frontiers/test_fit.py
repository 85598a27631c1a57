"""The curve through a frontier's points, against SciPy, and the interval of its critical batch."""

import math
import random
from statistics import median

import numpy as np
import pytest
from scipy.optimize import least_squares

from recipes.frontiers.fit import fit, interval

BATCHES = [2**power for power in range(4, 15)]


def noisy(s_min, b_crit, *, noise, seed):
    draws = random.Random(seed)
    return [(batch, s_min * (1 + b_crit / batch) * draws.lognormvariate(0, noise)) for batch in BATCHES]


@pytest.mark.parametrize("seed", range(10))
def test_the_curve_is_that_of_an_independent_implementation(seed):
    points = noisy(80, 10 ** (1 + seed / 3), noise=0.15, seed=seed)
    batches, updates = np.array(points).T

    def residuals(logs):
        return np.log(updates) - logs[0] - np.log1p(np.exp(logs[1]) / batches)

    expected = least_squares(residuals, x0=[math.log(updates.min()), math.log(300)], xtol=1e-14, ftol=1e-14, gtol=1e-14)
    made = fit(points)
    assert [made.s_min, made.b_crit] == pytest.approx(np.exp(expected.x), rel=1e-5)
    assert made.error == pytest.approx(math.sqrt(np.mean(expected.fun**2)), rel=1e-6)


def test_what_follows_from_the_curve():
    made = fit(noisy(100, 500, noise=0, seed=0))
    assert made.updates(made.perfect_to) == pytest.approx(1.2 * made.perfect(made.perfect_to))
    assert made.updates(made.useful_to) == pytest.approx(1.2 * made.s_min)
    assert made.updates(made.b_crit) == pytest.approx(2 * made.s_min)


@pytest.mark.parametrize(("updates", "end"), [(lambda b: 1e6 / b, "high"), (lambda b: 70.0, "low")])
def test_points_without_a_bend_have_no_critical_batch(updates, end):
    """Its end is that of where it is looked for, and no figure of these points."""
    points = [(batch, updates(batch)) for batch in BATCHES]
    assert fit(points).end == end
    bound = {"high": math.inf, "low": 0}[end]
    assert interval([(batch, [figure] * 3) for batch, figure in points], seed=0, draws=20) == (bound, bound)
    assert fit(noisy(80, 400, noise=0.1, seed=0)).end == ""


def test_two_points_have_no_curve():
    assert fit([(16, 500.0), (32, 260.0)]) is None


def test_the_interval_holds_the_critical_batch_about_as_often_as_it_says():
    hits = 0
    for seed in range(12):
        runs = [noisy(80, 400, noise=0.1, seed=f"{seed} {run}") for run in range(5)]
        samples = [(batch, [points[at][1] for points in runs]) for at, batch in enumerate(BATCHES)]
        low, high = interval(samples, seed=seed, draws=100)
        assert low < fit([(batch, median(each)) for batch, each in samples]).b_crit < high
        hits += low < 400 < high
    assert hits >= 9  # of 12; with five runs a bootstrap of medians is a little too narrow


def test_a_run_that_missed_the_goal_does_not_break_the_interval():
    samples = [(batch, [80 * (1 + 400 / batch), math.inf, 80 * (1 + 400 / batch)]) for batch in BATCHES]
    low, high = interval(samples, seed=0, draws=50)
    assert low == pytest.approx(400, rel=1e-3)
    assert high == pytest.approx(400, rel=1e-3)
