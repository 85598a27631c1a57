"""Averaged weights that follow all at once, on a GPU or by what is compiled, are those that follow one by one."""

import chainer
import chainer.links as L
import numpy as np
import pytest

from recipes.schema import WeightAverage
from trainers.kernels import chainer_hooks
from trainers.kernels.cpu import compiled
from trainers.optimizers.weight_average import AveragedWeights


def followed(*, otherwise=False):
    """The averages behind some updates, the first of them before the start."""
    random, model = np.random.RandomState(0), chainer.Sequential(L.Linear(300, 150), L.BatchNormalization(33))
    averaged = AveragedWeights(model, WeightAverage(keep=0.9, per=64, start=0.5))
    for epoch in range(4):
        for parameter in model.params():
            parameter.array = random.normal(size=parameter.shape).astype(np.float32)
        model[1].avg_var = random.uniform(1, 2, 33).astype(np.float32)
        if otherwise:
            model[0].W.array = np.asfortranarray(model[0].W.array)
        averaged.move(epoch=epoch, global_batch_size=32)
        if epoch == 0:
            for path, array in averaged._current().items():
                np.testing.assert_array_equal(averaged.arrays[path], array, err_msg=path)
    return averaged.arrays


@pytest.fixture
def one_by_one(monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(chainer_hooks, "operators", None)
        return followed()


def assert_alike(found, expected):
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_allclose(found[path], array, rtol=0, atol=1e-6, err_msg=path)


def test_all_at_once_on_a_gpu(one_by_one, cuda_on_cpu):
    launched = cuda_on_cpu()
    assert_alike(followed(), one_by_one)
    assert launched == ["momentum_step"] * 4


@pytest.mark.skipif(not compiled.STEPS, reason="needs what a C compiler makes at the installation, and AVX2")
def test_all_at_once_by_what_is_compiled(one_by_one, monkeypatch):
    steps, served = chainer_hooks.operators, []
    monkeypatch.setattr(steps, "optimizer_step", lambda *given, do=steps.optimizer_step: served.append(do(*given)))
    assert_alike(followed(), one_by_one)
    assert len(served) == 4


def test_arrays_that_lie_otherwise_one_by_one(one_by_one, cuda_on_cpu):
    launched = cuda_on_cpu()
    assert_alike(followed(otherwise=True), one_by_one)
    assert launched == []
