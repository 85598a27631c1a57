"""What benchmarks of training compute from times, by hand."""

import os
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def timed(monkeypatch):
    """The module, which imports its neighbours by their names."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import timed_training

    return timed_training


def test_samples_whose_computation_takes_so_long(timed):
    times = (0.1, 0.38)  # of 32 and 256 samples: 1.25 ms each beside 60 ms
    assert [timed.samples_for(seconds, times) for seconds in (0.1, 0.38, 1.06, 0.01)] == [32, 256, 800, 1]


def test_what_is_hidden(timed):
    assert timed.hidden([2.0], none=[2.0], compute=[1.0]) == 0
    assert timed.hidden([1.0], none=[2.0], compute=[1.0]) == 1
    assert timed.hidden([2.5], none=[2.0], compute=[1.0]) == -0.5
    rounds = {"none": [2.0, 12.0, 3.0], "compute": [1.0, 10.0, 2.0]}  # a slow round is slow for all
    assert timed.hidden([1.1, 10.2, 2.5], **rounds) == 0.8, "1 - the median of .1, .2, .5 over that of 1, 2, 1"


def test_batch_of_a_ratio(timed):
    known = timed.Calibrated(communication_seconds=0.19, gradient_bytes=4, compute_seconds=(0.1, 0.38))
    assert known.samples(0.5) == 256
    assert known.samples(1.9) == 32


def test_each_rank_takes_cores_of_its_own_where_there_are_enough(timed, monkeypatch):
    taken = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 4, 5, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: taken.append(list(cores)))
    for rank in range(2):
        timed.take_cores(rank, 2, 2)
        timed.take_cores(rank, 2)
    timed.take_cores(0, 5)
    assert taken == [[4, 5], [4], [6, 7], [5]]
