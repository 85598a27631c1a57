"""The compiled passes of normalisation are NumPy's in float64, whoever shares them, and write every number."""

import ctypes
import ctypes.util
import importlib
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from trainers import kernels
from trainers.kernels import threads
from trainers.kernels.cpu import compiled_normalization, normalization
from trainers.kernels.cpu import operators as numpy_operators
from trainers.kernels.cpu.compiled import _VERSION, Steps, Threads, address, load
from trainers.kernels.cpu.compiled_normalization import Passes

pytestmark = pytest.mark.skipif(
    compiled_normalization.COMPILED is None, reason="needs what a C compiler makes at the installation, and AVX2"
)
SHAPES = [(1, 5, 1), (2, 63, 3), (1, 64, 8), (3, 65, 17), (1, 1025, 33), (2, 2500, 64), (1, 131, 2048)]
ALONE = Passes(Threads(lambda: 1))
EPS = 2e-5


@pytest.fixture(autouse=True)
def poisoned(monkeypatch, poisoned_numpy):
    monkeypatch.setattr(compiled_normalization, "np", poisoned_numpy)


def made(shape, *, level=3.0):
    """x, what is added, gy, gamma and beta."""
    random = np.random.RandomState(0)
    x, plus, gy = (random.normal(mean, 2.0, shape).astype("f") for mean in (level, 0.0, 0.0))
    return x, plus, gy, *(random.normal(size=shape[2]).astype("f") for _ in range(2))


def in_float64(x, gamma, beta):
    """The same scales, as the passes are held to: of exact mean and deviation."""
    wide = x.astype("d")
    vectors = (np.array([vector] * len(x), "d") for vector in (gamma, beta))
    return wide.mean(axis=1), 1 / np.sqrt(wide.var(axis=1) + EPS), *vectors


def assert_near(actual, expected, *, bound=1e-5):
    """Both bounds of the kernels' accuracy: of the norm, and ten times that of the largest element."""
    assert actual.shape == expected.shape
    away = actual - expected
    assert np.linalg.norm(away) <= bound * np.linalg.norm(expected)
    assert np.abs(away).max() <= 10 * bound * np.abs(expected).max()


@pytest.mark.parametrize("level", [0.0, 3.0, 200.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_are_those_of_float64(shape, level):
    x, _, _, gamma, beta = made(shape, level=level)
    weights, channels = np.linspace(0.5, 1.0, shape[0]), shape[2]
    sums, factor = np.full(1 + 3 * channels, 7.0), 1.25
    scales = ALONE.whole_scales(x, gamma, beta, EPS, seen=(weights, sums, factor))
    assert scales.shape == (4, shape[0], channels)
    assert scales.dtype == np.float32
    assert_near(scales, np.stack(in_float64(x, gamma, beta)), bound=2e-6)
    mean, var = x.mean(axis=1, dtype="d"), x.astype("d").var(axis=1)
    expected = np.concatenate([[weights.sum()], *(weights @ part for part in (mean, factor * var, mean**2))])
    np.testing.assert_allclose(sums - 7.0, expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_array_equal(ALONE.whole_scales(x, gamma, beta, EPS), scales)
    actual = ALONE.mean_and_variance(x)
    assert actual.dtype == np.float64
    deviation = np.sqrt(var)
    assert (np.abs(actual[0] - mean) <= 1e-6 * deviation).all()
    np.testing.assert_allclose(actual[1], var, rtol=2e-6)
    np.testing.assert_array_equal(actual[0].astype("f"), scales[0])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_normalised_and_its_gradients_are_those_of_float64(shape, adds, relu):
    x, plus, gy, gamma, beta = made(shape)
    plus, scales = plus if adds else None, ALONE.whole_scales(x, gamma, beta, EPS)
    y = ALONE.normalized_by(x, scales, relu=relu, plus=plus)
    wide, wide_scales = x.astype("d"), tuple(part.astype("d") for part in scales)
    assert_near(y, normalization.normalized_by(wide, wide_scales, relu=relu, plus=plus))
    actual = ALONE.gradient_by(gy, x, scales, relu=relu, y=y if adds and relu else None)
    out = y.astype("d") if relu else None
    expected = normalization.gradient_by(gy.astype("d"), wide, wide_scales, relu=relu, y=out)
    assert_near(actual[0], expected[0])
    assert_near(actual[1], np.stack(expected[1]))
    if adds:
        np.testing.assert_array_equal(actual[2], expected[2])


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("rows", [(1, 8), (500, 1001), (3000, 2000, 7)])
def test_gradients_of_parts_are_those_of_the_whole_group(rows, adds, relu):
    x, plus, gy, gamma, beta = made((2, sum(rows), 24))
    scales = ALONE.whole_scales(x, gamma, beta, EPS)
    y = ALONE.normalized_by(x, scales, relu=True, plus=plus) if adds and relu else None
    cuts = np.cumsum(rows)[:-1]
    parts = [
        (*(np.ascontiguousarray(part) for part in each[:2]), {"relu": relu, "y": each[2]})
        for each in zip(*(np.split(one, cuts, axis=1) for one in (gy, x)), pieces(y, cuts), strict=True)
    ]
    sums = []

    def noted(ggamma, gbeta, count):
        sums.append((ggamma.copy(), gbeta.copy(), count))
        return sums[-1]

    def whole(*_):
        return tuple(map(sum, zip(*sums, strict=True)))

    for gy_part, x_part, how in parts:
        apart = ALONE.gradient_by(gy_part, x_part, scales, **how)
        for one, same in zip(ALONE.gradient_by(gy_part, x_part, scales, **how, whole=noted), apart, strict=True):
            np.testing.assert_array_equal(one, same)
    assert whole()[2] == sum(rows)
    actual = [ALONE.gradient_by(gy_part, x_part, scales, **how, whole=whole) for gy_part, x_part, how in parts]
    expected = ALONE.gradient_by(gy, x, scales, relu=relu, y=y)
    assert_near(np.concatenate([gx for gx, _, _ in actual], axis=1), expected[0], bound=1e-6)
    assert_near(sum(of_parameters for _, of_parameters, _ in actual), expected[1], bound=1e-6)
    np.testing.assert_array_equal(np.concatenate([counted for *_, counted in actual], axis=1), expected[2])


def pieces(y, cuts):
    """y cut so, each without gaps; nothing for each piece where there is none."""
    if y is None:
        return [None] * (len(cuts) + 1)
    return [np.ascontiguousarray(part) for part in np.split(y, cuts, axis=1)]


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_number_is_not_hidden(bad):
    x, _, gy, gamma, beta = made((1, 100, 8))
    scales = ALONE.whole_scales(x, gamma, beta, EPS)
    x[0, 70, 3] = bad
    broken = ALONE.whole_scales(x, gamma, beta, EPS)
    assert not np.isfinite(broken[0, 0, 3])
    assert np.isfinite(np.delete(broken, 3, axis=2)).all()
    assert not np.isfinite(ALONE.normalized_by(x, scales, relu=False)[0, 70, 3])
    assert np.isnan(ALONE.normalized_by(x * np.nan, scales, relu=True)).all()
    gy[0, 5, 2] = bad
    assert not np.isfinite(ALONE.gradient_by(gy, made((1, 100, 8))[0], scales, relu=False)[0][0, :, 2]).any()


def everything(passes):
    x, plus, gy, gamma, beta = made((2, 5000, 64))
    scales = passes.whole_scales(x, gamma, beta, EPS)
    y = passes.normalized_by(x, scales, relu=True, plus=plus)
    of_sum = passes.gradient_by(gy, x, scales, relu=True, y=y)
    of_part = passes.gradient_by(gy, x, scales, relu=False, whole=lambda *sums: [2 * one for one in sums])
    return scales, passes.mean_and_variance(x), y, *of_sum, *passes.gradient_by(gy, x, scales, relu=True), *of_part


def threads_of(whose, count):
    actual = ctypes.util.find_library("gomp")
    if whose == "OpenMP's" and actual is None:
        pytest.skip("needs a library of OpenMP")
    parallel = threads.THREADS.parallel if whose == "ours" else address(ctypes.CDLL(actual), "GOMP_parallel")
    return Threads(lambda: count, parallel)


@pytest.mark.parametrize("whose", ["ours", "OpenMP's"])
@pytest.mark.parametrize("count", [2, 3])
def test_threads_change_no_bit(count, whose):
    shared, alone = Passes(threads_of(whose, count)), everything(ALONE)
    for _ in range(5):
        for actual, expected in zip(everything(shared), alone, strict=True):
            np.testing.assert_array_equal(actual, expected)


def test_threads_of_python_may_call_at_once():
    shared, alone = Passes(threads_of("ours", 3)), everything(ALONE)
    with ThreadPoolExecutor(4) as callers:
        for actual in callers.map(lambda _: everything(shared), range(24)):
            for one, expected in zip(actual, alone, strict=True):
                np.testing.assert_array_equal(one, expected)


def test_arrays_of_other_types_and_orders_are_left_to_numpy(monkeypatch):
    x, _, gy, gamma, beta = made((1, 100, 8))
    scales = ALONE.whole_scales(x, gamma, beta, EPS)
    for other in (x.astype("d"), x[:, ::2], x.transpose(0, 2, 1)):
        assert ALONE.whole_scales(other, gamma, beta, EPS) is None
        assert ALONE.mean_and_variance(other) is None
        assert ALONE.normalized_by(other, scales, relu=True) is None
        assert ALONE.gradient_by(other, other, scales, relu=True) is None
    for other in (x[:, :50].copy(), x[:, :, :4].copy(), x.astype("d")):
        assert ALONE.normalized_by(x, scales, relu=True, plus=other) is None
        assert ALONE.gradient_by(other, x, scales, relu=True) is None
        assert ALONE.gradient_by(gy, x, scales, relu=True, y=other) is None
    assert ALONE.whole_scales(x, gamma[:4], beta, EPS) is None
    assert ALONE.whole_scales(x, gamma, beta, EPS, seen=(np.ones(1), np.zeros(7), 1.0)) is None
    assert ALONE.normalized_by(x, scales[:, :, :4], relu=True) is None
    mixed = (*scales[:3], scales[3].astype("d"))  # of a beta in float64
    np.testing.assert_array_equal(ALONE.normalized_by(x, mixed, relu=True), ALONE.normalized_by(x, scales, relu=True))
    monkeypatch.setattr(compiled_normalization, "COMPILED", None)
    assert ALONE.whole_scales(x, gamma, beta, EPS) is None
    assert ALONE.gradient_by(gy, x, scales, relu=True) is None


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def operators(request):
    if request.param == "torch":
        pytest.importorskip("torch")
    return importlib.import_module(
        {"numpy": "trainers.kernels.cpu.operators", "torch": "trainers.kernels.torch"}[request.param]
    )


def test_both_kinds_take_them_for_parts_of_groups(operators):
    x, _, gy, gamma, beta = made((1, 3000, 24))
    scales = ALONE.whole_scales(x, gamma, beta, EPS)
    how = {"relu": True, "whole": lambda *sums: [3 * one for one in sums]}
    np.testing.assert_array_equal(operators.mean_and_variance(x), ALONE.mean_and_variance(x))
    actual, expected = (each.gradient_by(gy, x, scales, **how) for each in (operators, ALONE))
    for one, same in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, same)


def test_without_them_both_kinds_compute_the_same(monkeypatch, operators):
    x, plus, gy, gamma, beta = made((2, 300, 16))
    actual = []
    for compiled in (compiled_normalization.COMPILED, None):
        monkeypatch.setattr(compiled_normalization, "COMPILED", compiled)
        scales = operators.scales(x, *operators.mean_and_variance(x), gamma, beta, EPS)
        y = operators.normalized_by(x, scales, relu=True, plus=plus)
        of_sum = operators.gradient_by(gy, x, scales, relu=True, y=y)
        alone = operators.gradient_by(gy, x, scales, relu=True)[:2]
        of_part = operators.gradient_by(gy, x, scales, relu=True, y=y, whole=lambda *sums: [3 * one for one in sums])
        parts = (of_sum, (*alone, y), of_part)
        actual.append([y, *(each for gx, parameters, counted in parts for each in (gx, np.stack(parameters), counted))])
    for one, other in zip(*actual, strict=True):
        assert one.dtype == other.dtype
        assert_near(one, other)


def test_workers_of_a_team_with_them_and_without_tell_each_other_the_same(monkeypatch, operators):
    x, _, gy, gamma, beta = made((1, 300, 16))
    scales, told = ALONE.whole_scales(x, gamma, beta, EPS), []

    def whole(ggamma, gbeta, count):
        told.append(np.stack([ggamma, gbeta]))
        return 3 * ggamma, 3 * gbeta, 3 * count

    for compiled in (compiled_normalization.COMPILED, None):
        monkeypatch.setattr(compiled_normalization, "COMPILED", compiled)
        operators.gradient_by(gy, x, scales, relu=False, whole=whole)
    assert_near(*told)


def test_exact_mode_is_promised_where_the_same_is_compiled(monkeypatch):
    before = kernels.in_use()
    for kind, expected, words in (
        ("numpy", {"passes": "compiled"}, "numpy, with compiled passes"),
        ("chainer", {}, "chainer"),
    ):
        kernels.use(kind)
        assert kernels.details() == expected
        assert kernels.described(kind) == words
    kernels.use("numpy")
    unserved = Steps(Threads(lambda: 2))  # two threads, and no function to call them by
    monkeypatch.setattr(numpy_operators, "STEPS", unserved.types)
    assert kernels.details() == {}
    assert kernels.described("numpy") == "numpy, without compiled passes"
    kernels.use(before)


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_what_another_version_compiled_is_not_used(tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "other.so"
    source.write_text(f"int serves(void) {{ return {_VERSION}; }}\n")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    assert load(ctypes.CDLL(str(library)), {"normalized": ()}) is None
    assert load(ctypes.CDLL(str(library)), {}) is not None
    assert load(None, {"normalized": ()}) is None
