"""The stream: each sample once an epoch, in an order that only seed and epoch decide."""

from fractions import Fraction

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from recipes.planning.stream import Stream, _stable_argsort, held_out, permutation


def test_a_permutation_is_the_stable_argsort_of_the_raw_draws():
    bits = draws(7, "permutation", 3).bits(50)
    assert permutation(7, 3, 50).tolist() == sorted(range(50), key=lambda i: int(bits[i]))


@pytest.mark.parametrize("spread", [1, 50, 2**16, 2**48, 2**63])
def test_the_fast_sort_is_stable(spread):
    words = draws(7, "permutation", 0).bits(3000) % np.uint64(spread)
    for these in (words, words << np.uint64(50), words[:1], words[:0]):
        assert _stable_argsort(these).tolist() == sorted(range(len(these)), key=lambda i: int(these[i]))


def test_what_is_held_out_comes_first_in_the_argsort_of_draws_that_no_seed_keys():
    bits = draws(0, "held-out samples").bits(50)
    trained, scored = held_out(50, 12)
    assert scored.tolist() == sorted(sorted(range(50), key=lambda i: int(bits[i]))[:12])
    assert sorted([*trained.tolist(), *scored.tolist()]) == list(range(50))
    assert held_out(20, 4)[1].tolist() == [1, 11, 13, 16]  # for ever: runs resume by it


def test_more_is_held_out_with_all_of_less():
    assert set(held_out(1500, 75)[1]) < set(held_out(1500, 150)[1])


@pytest.mark.parametrize("count", [1, 30, 100, 199])
def test_by_class_each_class_has_its_share_up_to_one_sample(count):
    labels = np.random.default_rng(0).choice(5, size=200, p=[0.5, 0.3, 0.15, 0.04, 0.01])
    scored = held_out(200, count, labels)[1].tolist()
    order = _stable_argsort(draws(0, "held-out samples").bits(200)).tolist()
    places = {}
    for label in range(5):
        own = [index for index in order if labels[index] == label]
        places |= {index: Fraction(2 * at + 1, 2 * len(own)) for at, index in enumerate(own)}
    assert scored == sorted(sorted(order, key=places.__getitem__)[:count])
    shares = np.bincount(labels[scored], minlength=5) - count * np.bincount(labels) / 200
    assert abs(shares).max() <= 1
    assert set(held_out(200, count - 1, labels)[1]) < set(scored)


def test_nobody_can_write_into_the_permutation_that_others_read():
    with pytest.raises(ValueError, match="read-only"):
        permutation(7, 3, 50)[0] = 1


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


@pytest.mark.parametrize("wrong", [{"num_samples": 0}, {"num_samples": 3, "repeats": 0}])
def test_an_empty_data_set_and_no_repeat_are_refused(wrong):
    with pytest.raises(ValueError, match=f"{[*wrong][-1]} must be at least 1"):
        Stream(seed=0, **wrong)


@pytest.mark.parametrize("repeats", [2, 3, 4, 200])
def test_repeats_show_a_sample_so_often_in_a_row_and_end_the_epoch_where_it_was(repeats):
    stream, num_samples = Stream(seed=0, num_samples=101, repeats=repeats), 101
    for epoch in range(3):
        _, indices = stream.samples(num_samples * epoch, num_samples)
        order = permutation(0, epoch, num_samples)
        assert indices.tolist() == np.repeat(order, repeats)[:num_samples].tolist()
        assert len(set(indices)) == -(-num_samples // repeats)


def test_every_copy_has_draws_of_its_own_and_the_first_those_of_the_epoch():
    epochs, indices = Stream(seed=0, num_samples=101, repeats=3).samples(0, 303)
    keys = set(zip(epochs.tolist(), indices.tolist(), strict=True))
    assert len(keys) == 303
    first = epochs < 2**32
    assert epochs[first].tolist() == (np.arange(303) // 101)[first].tolist()
    assert epochs[:4].tolist() == [0, 2**32, 2 * 2**32, 0]


@pytest.mark.parametrize("repeats", [1, 3])
def test_samples_at_any_positions_are_those_of_the_whole_stream(repeats):
    stream = Stream(seed=2, num_samples=101, repeats=repeats)
    whole, some = np.stack(stream.samples(0, 500)), [400, 3, 101, 3, 99]
    assert (np.stack(stream.at(some)) == whole[:, some]).all()
