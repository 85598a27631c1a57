"""Compiled max pooling is NumPy's, whoever shares the images, and writes every number; so are sums of rows."""

import numpy as np
import pytest

from trainers.kernels.cpu import pooling
from trainers.kernels.cpu.compiled import LIBRARY, Threads, address
from trainers.kernels.cpu.compiled_normalization import Passes

pytestmark = pytest.mark.skipif(
    pooling._COMPILED is None, reason="needs what a C compiler makes at the installation, and AVX2"
)
CASES = [  # kernel, stride, pad, size, out
    ((2, 2), (2, 2), (0, 0), (8, 6), (4, 3)),
    ((2, 2), (2, 2), (0, 0), (9, 7), (4, 3)),  # a line and a column in no window
    ((2, 2), (2, 2), (0, 0), (9, 7), (5, 4)),  # windows that extend beyond the border
    ((3, 3), (2, 2), (1, 1), (11, 8), (6, 4)),
    ((3, 2), (1, 3), (2, 1), (5, 9), (7, 4)),
    ((4, 4), (1, 1), (0, 0), (4, 4), (1, 1)),
    ((1, 1), (3, 2), (0, 0), (7, 5), (3, 3)),
    ((15, 17), (4, 4), (7, 8), (6, 30), (2, 8)),  # 255 places
    ((2, 2), (2, 2), (2, 2), (4, 4), (4, 4)),  # windows without a pixel of the image: by NumPy
    ((2, 2), (3, 3), (0, 0), (4, 4), (3, 3)),
]
CHANNELS = [1, 3, 8, 12, 33]


def images(*shape, seed=0, levels=None):
    """(n, c, h, w), channels last in memory; with few levels, many values are equal."""
    random = np.random.RandomState(seed)
    n, c, h, w = shape
    x = random.normal(size=(n, h, w, c)) if levels is None else random.randint(levels, size=(n, h, w, c))
    return x.astype("f").transpose(0, 3, 1, 2)


def by_numpy(monkeypatch, function, *arrays, **how):
    with monkeypatch.context() as patch:
        patch.setattr(pooling, "_COMPILED", None)
        return function(*arrays, **how)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch, poisoned_numpy):
    monkeypatch.setattr(pooling, "np", poisoned_numpy)


@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize(("kernel", "stride", "pad", "size", "out"), CASES)
@pytest.mark.parametrize("levels", [None, 3])
def test_pooling_and_its_gradient_are_numpys(monkeypatch, kernel, stride, pad, size, out, channels, levels):
    how = {"kernel": kernel, "stride": stride, "pad": pad}
    x, gy = images(3, channels, *size, levels=levels), images(3, channels, *out, seed=1)
    y, places = pooling.max_pooling(x, **how, out=out)
    expected, expected_places = by_numpy(monkeypatch, pooling.max_pooling, x, **how, out=out)
    np.testing.assert_array_equal(y, expected, strict=True)
    np.testing.assert_array_equal(places, expected_places, strict=True)
    gx = pooling.max_pooling_gradient(gy, places, **how, size=size)
    wanted = by_numpy(monkeypatch, pooling.max_pooling_gradient, gy.astype("d"), places, **how, size=size)
    assert gx.dtype == gy.dtype
    np.testing.assert_allclose(gx, wanted, atol=1e-5 * np.sqrt(np.prod(kernel)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])  # compiled, and by NumPy
@pytest.mark.parametrize("channels", [3, 8])
def test_nan_goes_through(channels, dtype):
    x = images(1, channels, 4, 4).astype(dtype)
    x[0, :, 1, 1] = np.nan
    y, places = pooling.max_pooling(x, kernel=(2, 2), stride=(2, 2), pad=(0, 0), out=(2, 2))
    assert np.isnan(y[0, :, 0, 0]).all()
    assert (places[0, :, 0, 0] == 3).all()
    assert np.isfinite(y).sum() == 3 * channels


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stride", [1, 2])
def test_an_infinite_gradient_reaches_the_largest_value_alone(stride, dtype):
    x, how = images(1, 2, 4, 4).astype(dtype), {"kernel": (2, 2), "stride": (stride, stride), "pad": (0, 0)}
    out = ((4 - 2) // stride + 1,) * 2
    _, places = pooling.max_pooling(x, **how, out=out)
    gy = np.zeros((1, 2, *out), dtype)
    gy[0, 0, 0, 0] = np.inf
    gx = pooling.max_pooling_gradient(gy, places, **how, size=(4, 4))
    assert (np.isposinf(gx).sum(), np.isnan(gx).sum()) == (1, 0)


def test_an_image_has_the_same_bits_on_any_number_of_threads(monkeypatch):
    how = {"kernel": (3, 3), "stride": (2, 2), "pad": (1, 1)}
    x, gy = images(37, 20, 15, 15), images(37, 20, 8, 8, seed=1)

    def computed():
        y, places = pooling.max_pooling(x, **how, out=(8, 8))
        return y, places, pooling.max_pooling_gradient(gy, places, **how, size=(15, 15))

    alone = computed()
    shared = Threads(lambda: 3, address(LIBRARY, "run_parallel"))
    monkeypatch.setattr(pooling, "THREADS", shared)
    for ours, theirs in zip(computed(), alone, strict=True):
        np.testing.assert_array_equal(ours, theirs, strict=True)


@pytest.mark.parametrize("shape", [(1, 5, 1), (3, 65, 17), (2, 2500, 64), (8, 6272, 8)])
def test_sums_of_rows_are_those_of_each_group_alone_and_numpys(shape):
    passes = Passes(Threads(lambda: 1))
    x = np.random.RandomState(0).normal(3, 2, shape).astype("f")
    sums = passes.row_sums(x)
    np.testing.assert_allclose(sums, x.astype("d").sum(axis=1), rtol=1e-6)
    for group, expected in zip(x, sums, strict=True):
        np.testing.assert_array_equal(passes.row_sums(group[np.newaxis]), expected[np.newaxis])
    assert passes.row_sums(x.astype("d")) is None
