"""The figures of benchmarks of training, by hand."""

import os


def test_batch_of_a_ratio():
    from timed_training import Calibrated

    known = Calibrated(communication_seconds=0.19, gradient_bytes=4, compute_seconds=(0.1, 0.38))
    assert known.samples(0.5) == 256  # 1.25 ms a sample beside 60 ms
    assert known.samples(1.9) == 32
    assert known.samples(19.0) == 1


def test_the_hidden_share():
    from timed_training import hidden

    assert hidden([2.0], none=[2.0], compute=[1.0]) == 0
    assert hidden([1.0], none=[2.0], compute=[1.0]) == 1
    assert hidden([2.5], none=[2.0], compute=[1.0]) == -0.5
    rounds = {"none": [2.0, 12.0, 3.0], "compute": [1.0, 10.0, 2.0]}  # a slow round is slow for all
    assert hidden([1.1, 10.2, 2.5], **rounds) == 0.8, "1 - the median of .1, .2, .5 over that of 1, 2, 1"


def test_each_rank_takes_a_core_of_its_own_if_there_are_enough(monkeypatch):
    from timed_training import take_core

    taken = []
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {7, 4, 5, 6})
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cores: taken.append(cores))
    for rank in range(2):
        take_core(rank, 2)
    take_core(0, 5)
    assert taken == [{4}, {5}]
