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
    """Per-sample gradients 1, 2 | 6 of one weight: means 1.5 and 6, together 3; losses were multiplied by 4."""
    shares = ShareNorms(factor=4.0)
    shares.add(offset=2, size=1, squared=(4.0 * 6.0) ** 2)
    shares.add(offset=0, size=2, squared=(4.0 * 3.0) ** 2)
    assert shares.gathered(chain([3.0]), MPI.COMM_SELF) == Norms.of_shares([2, 1], [1.5**2, 36.0], 9.0)


def test_a_gradient_that_is_not_finite_gives_no_norms():
    shares = ShareNorms()
    for offset in (0, 1):
        shares.add(offset=offset, size=1, squared=np.inf)
    assert shares.gathered(chain([3.0]), MPI.COMM_SELF) is None
