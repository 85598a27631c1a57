"""Law 2: the same recipe and seed on any number of workers, with any micro-batch, is the same run."""

import numpy as np
import pytest

pytestmark = pytest.mark.mpi

# Sizes of shares: whole groups on a rank (32, 96), or groups on teams of two ranks (16).
# Of the three groups of an update four ranks have none or one, of the six one or two.
SPLITS = [(1, 32), (4, 32), (4, 16)]
MORE_SPLITS = [(2, 32), (3, 32), (5, 32), (2, 96), (3, 96), (4, 96), (5, 96), (2, 16), (5, 16)]


def slow(splits):
    """Left to those who ask for them."""
    return [pytest.param(*split, marks=pytest.mark.slow) for split in splits]


@pytest.fixture(scope="module")
def alone(tmp_path_factory, train):
    return train(tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.fixture(scope="module")
def alone_in_float64(tmp_path_factory, train):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, dtype="float64")


def test_the_run_alone_is_what_the_recipe_says(alone):
    sizes = [line["global_batch_size"] for line in alone.trace]
    assert sizes == [96] * 16 + [192] * 8
    assert [len(line["sample_ids"]) for line in alone.trace] == sizes
    stream = [index for line in alone.trace for index in line["sample_ids"]]
    assert sorted(stream[:1500]) == list(range(1500)), "an epoch holds each sample once"
    assert alone.trace[-1]["loss"] < 0.95 * alone.trace[0]["loss"], "it trains"


@pytest.mark.parametrize(("ranks", "micro_batch_size"), SPLITS + slow(MORE_SPLITS))
def test_ranks_and_micro_batches_change_nothing(alone, tmp_path, train, assert_same_run, ranks, micro_batch_size):
    assert_same_run(train(tmp_path / "run", ranks, "--micro-batch-size", micro_batch_size), alone)


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(3, 32), *slow([(5, 96), (5, 16)])])
def test_in_float64_the_difference_is_rounding_and_nothing_else(
    alone_in_float64, tmp_path, train, assert_same_run, ranks, micro_batch_size
):
    actual = train(tmp_path / "run", ranks, "--micro-batch-size", micro_batch_size, dtype="float64")
    assert actual.weights["/fc/W"].dtype == np.float64
    assert_same_run(actual, alone_in_float64, loss=1e-13, weights=1e-12)


@pytest.mark.parametrize(("first", "then"), [(2, 3), *slow([(3, 1), (2, 2)])])
def test_a_resumed_run_is_the_uninterrupted_one(alone, tmp_path, train, assert_same_run, first, then):
    train(tmp_path / "run", first, stop_after=13)
    assert_same_run(train(tmp_path / "run", then, "--resume"), alone)


@pytest.mark.parametrize("norm_statistics", ["moving_average", pytest.param("last_batch", marks=pytest.mark.slow)])
def test_running_statistics_of_each_kind_are_the_same_on_three_ranks(tmp_path, train, assert_same_run, norm_statistics):
    options = ("--set", f"evaluation.norm_statistics={norm_statistics}")
    alone, three = (train(tmp_path / str(ranks), ranks, *options) for ranks in (1, 3))
    assert_same_run(three, alone)
