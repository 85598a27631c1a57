"""While a CUDA graph is captured, products of matrices are convolutions: CuPy refuses cuBLAS there."""

from types import SimpleNamespace

import chainer
import numpy as np
import pytest
from chainer import functions as F

from trainers import kernels
from trainers.kernels import chainer_hooks
from trainers.kernels.cpu import convolution
from trainers.kernels.cuda import launcher, products
from trainers.training.device import has_gpu


def arrays(xp, dtype):
    """Images, weights, biases and the gradient of what comes out."""
    random = np.random.RandomState(0)
    return [xp.asarray(random.normal(size=size), dtype) for size in ((6, 7), (5, 7), 5, (6, 5))]


def linear(x, W, b, gy):
    """A linear layer forward and backward, and a product without a bias."""
    x, W, b = map(chainer.Variable, (x, W, b))
    y = F.linear(x, W, b)
    y.grad = gy
    y.backward()
    return [y.array, x.grad, W.grad, b.grad, F.linear(x, W).array]


def test_a_linear_layer_is_a_convolution_while_a_graph_is_captured(monkeypatch):
    expected = linear(*arrays(np, np.float32))
    called = []

    def counted(name):
        def call(*given, **how):
            called.append(name)
            return getattr(convolution, name)(*given, **how)

        return call

    names = ("convolution", "convolution_data", "convolution_weights")
    ours = SimpleNamespace(product=products.product, **{name: counted(name) for name in names})
    monkeypatch.setattr(chainer_hooks, "operators", ours)
    for rehearses in (False, True):
        monkeypatch.setattr(launcher, "device", SimpleNamespace(rehearses=rehearses))
        for actual, right in zip(linear(*arrays(np, np.float32)), expected, strict=True):
            np.testing.assert_allclose(actual, right, rtol=1e-5, atol=1e-6)
        assert sorted(set(called)) == (sorted(names) if rehearses else [])


@pytest.mark.parametrize("kinds", ["fe", "ef"])
def test_a_product_of_two_types_is_left_to_cublas(monkeypatch, kinds):
    monkeypatch.setattr(launcher, "device", SimpleNamespace(rehearses=True))
    a, b = (np.ones((6, 6), kind) for kind in kinds)
    assert products.product(a, b) is products.product(a, b.T) is products.product(a.T, b) is None


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_captured_linear_layer_gives_what_cublas_gives(dtype):
    pytest.importorskip("cudnn")
    import cupy

    from trainers.kernels.cuda import convolution
    from trainers.training.cuda_graphs import GraphRecorder

    before, gpu = chainer_hooks.gpu_operators, GraphRecorder()
    kernels.use_on_gpu("cudnn")
    try:
        given = arrays(cupy, dtype)  # before the capture, which refuses copies from the host
        expected = linear(*given)
        with gpu.rehearsal():  # kernels are compiled, plans are made
            linear(*given)
        plans = convolution._plan.cache_info().misses
        actual, (launch,) = gpu.record(lambda cut: linear(*given))
        assert convolution._plan.cache_info().misses == plans, "a plan was made while a graph was captured"
        launch()
        for one, right in zip(actual, expected, strict=True):
            np.testing.assert_allclose(one.get(), right.get(), rtol=1e-2 if dtype == "float16" else 1e-5, atol=1e-2)
    finally:
        chainer_hooks.gpu_operators = before
