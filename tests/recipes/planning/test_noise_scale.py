"""The noise scale: by hand, and recovered where it is known."""

import numpy as np
import pytest

from recipes.planning.noise_scale import Norms, noise_scale


def test_two_samples_by_hand():
    """Gradients 3 and 1: mean 2, variance of a sample 2 (over n - 1), so |G|^2 is estimated as 4 - 2/2."""
    assert Norms.of_micro_batches([1, 1], [9.0, 1.0], 4.0) == Norms(noise=2.0, signal=3.0)


def test_uneven_shares_by_hand():
    """Three samples 0, 0, 3 in shares of two and one: mean gradients 0, 3 and 1."""
    result = Norms.of_micro_batches([2, 1], [0.0, 9.0], 1.0)
    assert result == Norms(noise=(1 / 3 * 9 - 1) * 3, signal=1 - 2.0)


def test_the_bits_do_not_depend_on_the_order_of_the_shares():
    norms = np.random.default_rng(0).exponential(size=50).tolist()
    for turned in range(1, 50):
        sizes = [1 + index % 7 for index in range(50)]
        result = Norms.of_micro_batches(sizes[turned:] + sizes[:turned], norms[turned:] + norms[:turned], 0.5)
        assert result == Norms.of_micro_batches(sizes, norms, 0.5)


def test_one_share_gives_no_estimate():
    assert Norms.of_micro_batches([64], [1.0], 1.0) is None


def test_equal_gradients_have_no_noise():
    result = Norms.of_micro_batches([5, 7, 1], [4.0, 4.0, 4.0], 4.0)
    assert result.noise == pytest.approx(0, abs=1e-12)
    assert result.signal == pytest.approx(4)


@pytest.mark.parametrize("sizes", [[32] * 8, [100, 28, 64, 8, 56], [255, 1]])
def test_the_scale_of_a_quadratic_model_is_recovered(sizes):
    """loss_i(w) = |A (w - x_i)|^2 / 2 has the gradient A'A (w - x_i): its mean and covariance are known."""
    generator = np.random.default_rng(5)
    size = 20
    curvature = np.diag(np.linspace(0.2, 2.0, size))
    mean_x, deviations, w = generator.normal(size=size), np.linspace(0.5, 3.0, size), generator.normal(size=size)
    true_gradient = curvature @ (w - mean_x)
    true_scale = ((np.diag(curvature) * deviations) ** 2).sum() / (true_gradient @ true_gradient)

    norms, result = [], None
    while result is None or result.standard_error > 0.03 * result.value:
        gradients = (w - (mean_x + deviations * generator.normal(size=(sum(sizes), size)))) @ curvature
        shares = [share.mean(axis=0) for share in np.split(gradients, np.cumsum(sizes)[:-1])]
        whole = gradients.mean(axis=0)
        norms.append(Norms.of_micro_batches(sizes, [share @ share for share in shares], whole @ whole))
        result = noise_scale(norms) if len(norms) >= 20 else None
        assert len(norms) < 20_000
    assert result.value == pytest.approx(true_scale, rel=0.1)
    assert result.num_updates == len(norms)


def test_the_standard_error_is_the_spread_of_repeated_estimates():
    generator = np.random.default_rng(0)
    values, errors = [], []
    for _ in range(400):
        signal = 1 + 0.2 * generator.normal(size=200)
        noise = 50 + 10 * generator.normal(size=200) + 5 * (signal - 1)
        result = noise_scale([Norms(noise=n, signal=s) for n, s in zip(noise, signal, strict=True)])
        values.append(result.value)
        errors.append(result.standard_error)
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.15)


def test_without_a_signal_or_with_one_update_there_is_no_scale():
    assert noise_scale([Norms(noise=1.0, signal=1.0)]) is None
    assert noise_scale([Norms(noise=1.0, signal=-1.0), Norms(noise=1.0, signal=0.5)]) is None


def test_noise_and_signal_are_averaged_before_the_division():
    norms = [Norms(noise=10.0, signal=1.0), Norms(noise=20.0, signal=3.0)]
    assert noise_scale(norms).value == 7.5
