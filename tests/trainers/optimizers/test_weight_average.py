"""The moving average of the weights."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from recipes.schema import WeightAverage
from trainers.optimizers.weight_average import AveragedWeights


def model_of(value):
    model = chainer.Chain()
    with model.init_scope():
        model.fc = L.Linear(2, 1)
        model.bn = L.BatchNormalization(2)
    set_all(model, value)
    return model


def set_all(model, value):
    for parameter in model.params():
        parameter.array[...] = value
    model.bn.avg_mean[...] = value


def average(model, keep=0.5, per=10, start=0.0):
    return AveragedWeights(model, WeightAverage(keep=keep, per=per, start=start))


def test_by_hand():
    """From 0, half kept an update of 10 samples, towards 8: 4, then a quarter kept in an update of 20: 7."""
    model = model_of(0.0)
    averaged = average(model)
    set_all(model, 8.0)
    averaged.move(epoch=0.0, global_batch_size=10)
    assert (averaged.arrays["/fc/W"] == 4.0).all()
    averaged.move(epoch=0.1, global_batch_size=20)
    for path in ("/fc/W", "/fc/b", "/bn/gamma", "/bn/beta", "/bn/avg_mean"):
        np.testing.assert_allclose(averaged.arrays[path], 7.0)
    assert "/bn/N" not in averaged.arrays, "a count is not averaged"


def test_a_larger_batch_forgets_as_fast_by_samples():
    model = model_of(0.0)
    small, large = average(model, keep=0.9, per=64), average(model, keep=0.9, per=64)
    set_all(model, 1.0)
    for _ in range(8):
        small.move(epoch=0.0, global_batch_size=32)
    large.move(epoch=0.0, global_batch_size=256)
    np.testing.assert_allclose(small.arrays["/fc/W"], large.arrays["/fc/W"], rtol=1e-6)


def test_until_its_start_the_average_is_the_weights():
    model = model_of(0.0)
    averaged = average(model, keep=0.999, per=1000, start=5.0)
    set_all(model, 3.0)
    averaged.move(epoch=4.99, global_batch_size=10)
    assert (averaged.arrays["/fc/W"] == 3.0).all()
    averaged.move(epoch=5.0, global_batch_size=10)
    set_all(model, 4.0)
    averaged.move(epoch=5.1, global_batch_size=10)
    assert averaged.arrays["/fc/W"].max() < 3.01


def test_in_place_the_model_has_the_average_and_gets_its_weights_back():
    model = model_of(2.0)
    averaged = average(model)
    set_all(model, 4.0)

    def evaluation_that_fails():
        with averaged.in_place():
            assert (model.fc.W.array == 2.0).all()
            assert (model.bn.avg_mean == 2.0).all()
            raise KeyError

    with pytest.raises(KeyError):
        evaluation_that_fails()
    assert (model.fc.W.array == 4.0).all()
    assert (averaged.arrays["/fc/W"] == 2.0).all()
