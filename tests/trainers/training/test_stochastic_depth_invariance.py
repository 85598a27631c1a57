"""Dropped branches and blurred strides of a real network: the same run on any number of workers."""

import pytest

pytestmark = [pytest.mark.mpi, pytest.mark.slow]  # 11 million weights in float64

MODEL = "model={kind: ResNet18, zero_last_gamma: false, blur_pool: true, stochastic_depth: 0.5}"


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(3, 32), (2, 16)])
def test_dropped_branches_follow_the_samples(tmp_path, train, assert_same_run, ranks, micro_batch_size):
    alone = train(tmp_path / "alone", 1, "--set", MODEL, stop_after=3, dtype="float64")
    options = ("--set", MODEL, "--micro-batch-size", micro_batch_size)
    actual = train(tmp_path / "run", ranks, *options, stop_after=3, dtype="float64")
    assert_same_run(actual, alone, loss=1e-12, weights=1e-12)
