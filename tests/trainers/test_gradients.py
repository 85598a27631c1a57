"""Clipping, and the norms of shares."""

import chainer
import numpy as np
import pytest
from mpi4py import MPI

from recipes.noise_scale import Norms
from trainers.gradients import clip, squared_norm
from trainers.share_norms import ShareNorms


def chain(*gradients):
    model = chainer.ChainList()
    for gradient in gradients:
        link = chainer.Link()
        with link.init_scope():
            link.W = chainer.Parameter(np.zeros(np.shape(gradient), dtype=np.float32))
        link.W.grad = np.array(gradient, dtype=np.float32)
        model.append(link)
    return model


def test_a_long_gradient_is_shortened_over_all_parameters_together():
    model = chain([3.0, 0.0], [[4.0]])
    assert clip(model, 1.0) == 5.0
    np.testing.assert_allclose([*model[0].W.grad, *model[1].W.grad[0]], [0.6, 0.0, 0.8], rtol=1e-6)


def test_a_short_gradient_stays_bit_for_bit():
    model = chain([0.3, 0.1], [[0.2]])
    clip(model, 1.0)
    assert (model[0].W.grad == np.array([0.3, 0.1], dtype=np.float32)).all()


def test_the_norm_is_added_up_in_float64():
    model = chain(np.full(100_000, 1e-3), [1e4])
    assert squared_norm(model) == pytest.approx(1e8 + 0.1, abs=1e-5)


def test_norms_of_micro_batches_are_those_of_their_mean_gradients():
    """Per-sample gradients 1, 2 | 6 of one weight: means 1.5 and 6, together 3."""
    model = chain([0.0])
    model.cleargrads()
    shares = ShareNorms(model)
    weight = model[0].W
    for offset, samples in ((0, [1.0, 2.0]), (2, [6.0])):
        with shares.of(offset=offset, size=len(samples)):
            for sample in samples:
                chainer.functions.sum(weight * np.float32(sample)).backward()
    assert weight.grad == [9.0], "the micro-batches add up as they do without being measured"
    weight.grad /= 3
    assert shares.gathered(MPI.COMM_SELF) == Norms.of_shares([2, 1], [1.5**2, 36.0], 9.0)
