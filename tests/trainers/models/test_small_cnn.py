import chainer
import numpy as np
import pytest

from trainers.models import SmallCNN
from trainers.models.keyed_random import KeyedDropout

IMAGES = np.random.default_rng(0).standard_normal((6, 1, 8, 8)).astype(np.float32)


def model(**fields):
    return SmallCNN(**fields).build(num_classes=10, channels=1, image_size=8)


def test_number_of_weights_by_hand():
    convolutions = 9 * (1 * 4 + 4 * 8 + 8 * 16)
    assert model(width=4).count_params() == convolutions + 2 * (4 + 8 + 16) + 16 * 10 + 10


def test_dropout_acts_in_training_only():
    network = model(dropout=0.5)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(network(IMAGES).array, network(IMAGES).array)
    assert not np.array_equal(network(IMAGES).array, network(IMAGES).array)


def test_dropout_follows_the_keys_of_the_samples():
    network = model(dropout=0.5)

    def logits(seed):
        with KeyedDropout(network, seed=seed, epochs=np.zeros(6, int), indices=np.arange(6)):
            return network(IMAGES).array

    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.array_equal(logits(0), logits(1))


@pytest.mark.parametrize("size", [4, 7, 33])
def test_odd_sizes_are_pooled_up(size):
    with chainer.using_config("train", False):
        assert model(width=2)(np.zeros((1, 1, size, size), np.float32)).shape == (1, 10)


def test_first_stride_thins_the_first_convolution_and_changes_no_weight():
    plain, strided = model(), model(first_stride=2)
    assert strided.count_params() == plain.count_params()
    with chainer.using_config("train", False):
        strided.conv1.W.array[...] = plain.conv1.W.array
        thinned = plain.conv1(IMAGES).array[:, :, ::2, ::2]
        np.testing.assert_allclose(strided.conv1(IMAGES).array, thinned, rtol=0, atol=1e-5)
        assert strided(IMAGES).shape == (6, 10)


@pytest.mark.parametrize("value", [0, 1.5, True])
def test_a_first_stride_that_is_no_count_is_refused(value):
    with pytest.raises(ValueError, match=r"SmallCNN\.first_stride must be a whole number >= 1"):
        SmallCNN(first_stride=value)
