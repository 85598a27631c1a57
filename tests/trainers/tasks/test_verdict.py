"""Verdicts on reruns: by hand, and how often simulated reruns get a wrong one."""

import math
import statistics

import numpy as np
import pytest

from trainers.tasks.verdict import AS_GOOD, UNDECIDED, WORSE, Claimed, judge, level_of_look, more_seeds

CLAIM = Claimed(value=0.985, deviation=0.006, runs=10, margin=0.01, resolution=1 / 297)


def test_bounds_are_those_of_welch():
    """Reckoned by scipy.stats.ttest_ind(reruns, claimed, equal_var=False).confidence_interval(0.90)."""
    claimed, reruns = [0.91, 0.93, 0.92, 0.90], [0.90, 0.915, 0.88]
    spread = statistics.stdev(claimed)
    claim = Claimed(value=statistics.fmean(claimed), deviation=spread, runs=4, margin=0.05, resolution=1e-6)
    found = judge(claim, reruns)
    assert (found.lower, found.upper) == pytest.approx((-0.0432252, 0.0098919), abs=1e-6)
    assert found.verdict == AS_GOOD


def test_verdicts_by_hand():
    assert judge(CLAIM, [0.985, 0.99, 0.98, 0.985]).verdict == AS_GOOD
    assert judge(CLAIM, [0.95, 0.955, 0.945, 0.95]).verdict == WORSE
    assert judge(CLAIM, [0.985, 0.95]).verdict == UNDECIDED
    significant_but_within = Claimed(value=0.985, deviation=0.001, runs=10, margin=0.02, resolution=1e-4)
    assert judge(significant_but_within, [0.975, 0.9751, 0.9749]).verdict == AS_GOOD


def test_one_seed_is_undecided_and_says_how_many_more_would_do():
    assert judge(CLAIM, [0.985]).verdict == UNDECIDED
    more = more_seeds(CLAIM, [0.985])
    assert judge(CLAIM, [0.985 + 0.006 * sign for sign in (1, -1)] * ((more + 2) // 2)).verdict == AS_GOOD
    assert 1 <= more <= 4
    assert more_seeds(CLAIM, [0.98]) > more, "between 0 and the margin it takes more"
    nothing_known = Claimed(value=0.9, margin=0.01, resolution=0.001)
    assert math.isinf(judge(nothing_known, [0.9]).lower)
    assert more_seeds(nothing_known, [0.9]) == 1
    two_runs = Claimed(value=0.9, deviation=0.02, runs=2, margin=0.001, resolution=0.001)
    assert more_seeds(two_runs, [0.9, 0.91]) is None


def test_equal_results_by_chance_are_no_certainty():
    coarse = Claimed(value=0.95, deviation=0.0, runs=2, margin=0.0, resolution=0.01)
    assert judge(coarse, [0.94, 0.94]).verdict == UNDECIDED


def simulated(true_difference, *, number, seeds=5, runs=10, deviation=0.006, rerun_deviation=0.006):
    """Share of each verdict over simulated reruns that stop early, of accuracies counted over 297 samples."""
    random = np.random.default_rng(1)
    counts = dict.fromkeys((AS_GOOD, WORSE, UNDECIDED), 0)
    for _ in range(number):
        claimed = np.round(random.normal(0.97, deviation, runs) * 297) / 297
        reruns = np.round(random.normal(0.97 + true_difference, rerun_deviation, seeds) * 297) / 297
        claim = Claimed(value=claimed.mean(), deviation=claimed.std(ddof=1), runs=runs, margin=0.01, resolution=1 / 297)
        for look in range(1, seeds + 1):
            verdict = judge(claim, reruns[:look].tolist(), level=level_of_look(look, looks=seeds)).verdict
            if verdict != UNDECIDED:
                break
        counts[verdict] += 1
    return {verdict: count / number for verdict, count in counts.items()}


@pytest.mark.parametrize(("runs", "rerun_deviation", "found"), [(5, 0.006, 0.7), (10, 0.0156, 0.25)])
def test_an_equal_recipe_is_called_worse_at_most_in_one_of_twenty_simulated_reruns(runs, rerun_deviation, found):
    shares = simulated(0.0, number=400, runs=runs, rerun_deviation=rerun_deviation)
    assert shares[WORSE] <= 0.065  # a sample of 400 of a rate of at most 5 %
    assert shares[AS_GOOD] > found


def test_a_recipe_that_misses_the_margin_is_called_as_good_at_most_in_one_of_twenty():
    shares = simulated(-0.01, number=400)
    assert shares[AS_GOOD] <= 0.055  # a sample of 400 of a rate of at most 5 %
    assert simulated(-0.02, number=200)[WORSE] > 0.95
