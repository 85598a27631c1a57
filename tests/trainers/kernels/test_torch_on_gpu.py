"""PyTorch's operators for GPUs against NumPy in float64, on a GPU and on NumPy's arrays."""

import numpy as np
import pytest

from trainers.kernels.cpu import convolution, normalization, pooling
from trainers.training.device import has_gpu

pytestmark = pytest.mark.torch
BOUNDS = {"f": 1e-5, "d": 1e-12}
SHAPES = [(3, 1, 1, 0, (7, 6)), (8, 3, 1, 1, (9, 8)), (17, 3, 2, 1, (9, 11)), (16, 7, 2, 3, (14, 12))]


@pytest.fixture(params=["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def xp(request):
    """The module of the arrays."""
    pytest.importorskip("torch")
    if request.param == "cpu":
        return np
    if not has_gpu():
        pytest.skip("needs a GPU with CuPy")
    return pytest.importorskip("cupy")


@pytest.fixture
def ours(xp):
    from trainers.kernels.cuda import torch_operators

    return torch_operators


def images(seed, *shape):
    """float64 images with channels last in memory."""
    n, channels, height, width = shape
    return np.random.RandomState(seed).normal(size=(n, height, width, channels)).transpose(0, 3, 1, 2)


def there(xp, array, kind):
    last = array.ndim == 4
    order = (0, 2, 3, 1) if last else range(array.ndim)
    given = xp.asarray(np.ascontiguousarray(array.transpose(*order), kind))
    return given.transpose(0, 3, 1, 2) if last else given


def assert_close(actual, expected, kind):
    actual = np.asarray(actual.get() if hasattr(actual, "get") else actual)
    assert actual.dtype.char == kind or actual.dtype == np.float64
    assert actual.shape == expected.shape
    assert np.linalg.norm(actual - expected) <= BOUNDS[kind] * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize(("channels", "kernel", "stride", "pad", "size"), SHAPES)
def test_convolution_and_its_gradients(xp, ours, kind, channels, kernel, stride, pad, size):
    x, W, how = images(0, 4, channels, *size), images(1, 5, channels, kernel, kernel), {"stride": (stride,) * 2}
    how["pad"] = (pad,) * 2
    y = convolution.convolution(x, W, None, **how)
    gy = images(2, *y.shape)
    given = [there(xp, each, kind) for each in (x, W, gy)]
    assert_close(ours.convolution(given[0], given[1], None, **how), y, kind)
    gx = convolution.convolution_data(gy, W, size=size, **how)
    assert_close(ours.convolution_data(given[2], given[1], size=size, **how), gx, kind)
    gW = convolution.convolution_weights(x, gy, kernel=W.shape[2:], **how)
    assert_close(ours.convolution_weights(given[0], given[2], kernel=W.shape[2:], **how), gW, kind)


@pytest.mark.parametrize(("kernel", "stride", "pad", "out"), [(3, 2, 1, (4, 5)), (2, 2, 0, (4, 5)), (3, 2, 2, (5, 6))])
def test_max_pooling_and_its_gradient(xp, ours, kernel, stride, pad, out):
    x, how = images(0, 3, 8, 8, 9), {"kernel": (kernel,) * 2, "stride": (stride,) * 2, "pad": (pad,) * 2}
    y, places = pooling.max_pooling(x, out=out, **how)
    actual, found = ours.max_pooling(there(xp, x, "d"), out=out, **how)
    np.testing.assert_array_equal(np.asarray(actual.get() if hasattr(actual, "get") else actual), y)
    gy = images(1, *y.shape)
    gx = pooling.max_pooling_gradient(gy, places, size=(8, 9), **how)
    assert_close(ours.max_pooling_gradient(there(xp, gy, "d"), found, size=(8, 9), **how), gx, "d")


def test_average_pooling_and_its_gradient(xp, ours):
    x, how = images(0, 3, 8, 6, 6), {"kernel": (3, 3), "stride": (3, 3), "pad": (0, 0)}
    blocks = x.reshape(3, 8, 2, 3, 2, 3)
    assert_close(ours.average_pooling(there(xp, x, "d"), out=(2, 2), **how), blocks.mean(axis=(3, 5)), "d")
    gy = images(1, 3, 8, 2, 2)
    gx = gy.repeat(3, axis=2).repeat(3, axis=3) / 9
    assert_close(ours.average_pooling_gradient(there(xp, gy, "d"), size=(6, 6), **how), gx, "d")


@pytest.mark.parametrize("kind", BOUNDS)
@pytest.mark.parametrize(("relu", "adds"), [(False, False), (True, False), (True, True)])
def test_normalisation_and_its_gradients(xp, ours, kind, relu, adds):
    random = np.random.RandomState(0)
    x, gy, plus = random.normal(size=(3, 2, 40, 8))
    (gamma, beta), plus = random.normal(size=(2, 8)), plus if adds else None
    mean, var = normalization.mean_and_variance(x)
    scales = normalization.scales(x, mean, var, gamma, beta, 1e-3)
    y = normalization.normalized_by(x, scales, relu=relu, plus=plus)
    given = [there(xp, each, kind) for each in (x, gamma, beta, gy)]
    found = ours.mean_and_variance(given[0])
    for actual, expected in zip(found, (mean, var), strict=True):
        assert_close(actual, expected, kind)
    at = ours.scales(given[0], *found, *given[1:3], 1e-3)
    actual = ours.normalized_by(given[0], at, relu=relu, plus=None if plus is None else there(xp, plus, kind))
    assert_close(actual, y, kind)
    expected = normalization.gradient_by(gy, x, scales, relu=relu, y=y if adds else None)
    gx, parameters, counted = ours.gradient_by(given[3], given[0], at, relu=relu, y=actual if adds else None)
    assert_close(gx, expected[0], kind)
    for one, other in zip(parameters, expected[1], strict=True):
        assert_close(one, other, kind)
    if adds:
        assert_close(counted, expected[2], kind)


def test_relu_and_sums(xp, ours):
    x, y = images(0, 2, 4, 3, 3), images(1, 2, 4, 3, 3)
    given = [there(xp, each, "f") for each in (x, y)]
    assert_close(ours.relu(given[0]), np.maximum(x, 0), "f")
    assert_close(ours.relu_gradient(*given), np.where(x > 0, y, 0), "f")
    assert_close(ours.add(*given), x + y, "f")
    into = there(xp, x, "f")
    assert ours.add_to(into, given[1])
    assert_close(into, x + y, "f")
