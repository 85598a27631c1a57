"""The stream: each sample once an epoch, in an order that only seed and epoch decide."""

import numpy as np
import pytest

from recipes.planning.draws import draws
from recipes.planning.stream import Stream, permutation


def test_a_permutation_is_the_stable_argsort_of_the_raw_draws():
    bits = draws(7, "permutation", 3).bits(50)
    assert permutation(7, 3, 50).tolist() == sorted(range(50), key=lambda i: int(bits[i]))


def test_every_epoch_holds_each_sample_once_in_another_order():
    stream = Stream(seed=0, num_samples=101)
    orders = [stream.samples(101 * epoch, 101)[1] for epoch in range(5)]
    assert all(sorted(order) == list(range(101)) for order in orders)
    assert len({tuple(order) for order in orders}) == 5


@pytest.mark.parametrize("size", [1, 7, 101, 250])
def test_cutting_the_stream_changes_nothing(size):
    stream = Stream(seed=1, num_samples=101)
    whole = np.stack(stream.samples(0, 500))
    parts = [np.stack(stream.samples(start, min(size, 500 - start))) for start in range(0, 500, size)]
    assert (np.concatenate(parts, axis=1) == whole).all()


def test_an_update_larger_than_the_data_set_takes_from_several_epochs():
    epochs, indices = Stream(seed=0, num_samples=3).samples(2, 7)
    assert epochs.tolist() == [0, 1, 1, 1, 2, 2, 2]
    assert sorted(indices[1:4]) == [0, 1, 2]


def test_an_empty_data_set_is_refused():
    with pytest.raises(ValueError, match=r"num_samples must be at least 1"):
        Stream(seed=0, num_samples=0)
