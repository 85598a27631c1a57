"""Clipping, and the norms of micro-batches."""

import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.noise_scale import Norms
from trainers.gradients.norms import MicroBatchNorms, SquaredNorm, clip, squared_norm


def values(*given):
    return np.array(given, dtype=np.float32)


def test_a_long_gradient_is_shortened_as_a_whole():
    gradient = values(3, 0, 4)
    assert clip(gradient, 1.0) == 5.0
    np.testing.assert_allclose(gradient, [0.6, 0.0, 0.8], rtol=1e-6)


def test_a_short_gradient_stays_bit_for_bit():
    gradient = values(0.3, 0.1, 0.2)
    clip(gradient, 1.0)
    assert (gradient == values(0.3, 0.1, 0.2)).all()


@pytest.mark.parametrize("count", [100_000, 1 << 20, 3_000_000])
def test_the_norm_is_added_up_in_float64(count):
    gradient = np.full(count + 1, 1e-3, np.float32)
    gradient[-1] = 1e4
    assert squared_norm(gradient) == pytest.approx(1e8 + count * 1e-6, abs=1e-5)


def test_nothing_has_no_length():
    assert clip(values(), 1.0) == 0.0


def test_norms_of_micro_batches_are_those_of_their_mean_gradients():
    """Per-sample gradients 1, 2 | 6 of one weight: means 1.5 and 6, together 3; losses were multiplied by 4."""
    norms = MicroBatchNorms(factor=4.0)
    norms.add(size=1, norm=SquaredNorm([np.float64(4.0 * 6.0) ** 2]))
    norms.add(size=2, norm=SquaredNorm([np.array([100.0, 40.0]), np.float64(4.0)]))  # together (4 * 3)**2
    norms.read(norms.unread)
    assert norms.gathered(values(3), MPI.COMM_SELF) == Norms.of_micro_batches([2, 1], [1.5**2, 36.0], 9.0)


def test_a_gradient_that_is_not_finite_gives_no_norms():
    norms = MicroBatchNorms(factor=1.0)
    for _ in range(2):
        norms.add(size=1, norm=SquaredNorm([np.float64(np.inf)]))
    norms.read(norms.unread)
    assert norms.gathered(values(3), MPI.COMM_SELF) is None


def test_a_worker_that_fails_at_its_first_micro_batch_gives_no_norms():
    norms = MicroBatchNorms(factor=1.0)
    norms.fail()
    norms.read(norms.unread)
    assert norms.gathered(values(3), MPI.COMM_SELF) is None


def test_a_gradient_beyond_the_root_of_float32_is_clipped_and_not_lost():
    values = np.array([3e19, 4e19], np.float32)
    assert clip(values, 1.0) == pytest.approx(5e19)
    assert values == pytest.approx([0.6, 0.8])
