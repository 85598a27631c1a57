"""On a GPU: Chainer's nodes over cuDNN and our kernels, against Chainer's own in float64 on the CPU."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers import kernels
from trainers.kernels import chainer_hooks
from trainers.losses import SoftmaxCrossEntropy
from trainers.training.device import has_gpu

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_gpu(), reason="needs a GPU with CuPy")]

BOUNDS = {"float32": 1e-5, "tf32": 1e-3, "float16": 2e-3, "bfloat16": 1e-2}


@pytest.fixture
def precision(request):
    """Sets the kernels of the GPU, and whether TF32 may be used."""
    cpu = kernels.in_use()
    kernels.use("chainer")  # what is compared with
    kernels.use_on_gpu("cudnn")
    tensor_cores, knows = "always" if request.param == "tf32" else "never", request.param != "bfloat16"
    with chainer.using_config("use_cudnn_tensor_core", tensor_cores), chainer.using_config("type_check", knows):
        yield request.param
    kernels.use(cpu if cpu in kernels.KINDS else None)


def of_both(function, arrays, precision):
    """What a function gives and its gradients: on the GPU, and in float64 of the same rounded numbers on the CPU."""
    dtype, actual = precision if precision == "float16" else "float32", []
    if precision == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    for device, kind in (("@cupy:0", None), ("@numpy", "float64")):
        send = chainer.get_device(device).send
        variables = [chainer.Variable(send(array.astype(dtype).astype(kind or dtype))) for array in arrays]
        y = function(*variables)
        gy = np.random.RandomState(1).normal(size=y.shape).astype(dtype).astype(kind or dtype)
        gradients = chainer.grad([y], variables, [chainer.Variable(send(gy))])
        actual.append([chainer.backends.cuda.to_cpu(v.array).astype(np.float64) for v in (y, *gradients)])
    return actual


def assert_close(actual, expected, bound):
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        one, other = one.astype("d"), other.astype("d")  # squares of float16 overflow
        assert np.linalg.norm(one - other) <= bound * np.linalg.norm(other)
        assert np.abs(one - other).max() <= 10 * bound * np.abs(other).max()


@pytest.mark.parametrize("precision", BOUNDS, indirect=True)
@pytest.mark.parametrize("seed", range(20))
def test_convolution_and_its_gradients(precision, seed):
    random = np.random.RandomState(seed)
    kernel = int(random.choice([1, 2, 3, 5, 7]))
    stride, pad = int(random.randint(1, 3)), int(random.randint(0, kernel))
    size = kernel + random.randint(0, 12, 2)
    n, c, o = random.randint(1, 6), int(random.choice([3, 8, 17, 64])), int(random.choice([1, 8, 33, 128]))
    x, W = random.normal(size=(n, c, *size)), random.normal(size=(o, c, kernel, kernel)) / np.sqrt(c * kernel**2)
    actual, expected = of_both(lambda x, W: F.convolution_2d(x, W, stride=stride, pad=pad), (x, W), precision)
    assert_close(actual, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32", "tf32", "float16"], indirect=True)
def test_the_gradient_of_a_branch_is_added_in_the_kernel_or_not_at_all(precision):
    from trainers.kernels.cuda import convolution

    random, send = np.random.RandomState(0), chainer.get_device("@cupy:0").send
    gy, W, plus = (random.normal(size=size) for size in ((4, 9, 9, 16), (16, 3, 3, 8), (4, 9, 9, 8)))
    dtype = "float16" if precision == "float16" else "float32"
    given = [send(each.astype(dtype)).transpose(0, 3, 1, 2) for each in (gy, W, plus)]
    how = {"size": (9, 9), "stride": (1, 1), "pad": (1, 1)}
    actual = convolution.convolution_data_plus(*given, **how)
    if precision == "float32":
        assert actual is None  # that plan is slow
        return
    if actual is None:
        pytest.skip("cuDNN has no such plan here")
    expected = convolution.convolution_data(*given[:2], **how).astype("float64") + given[2]
    assert_close([actual.get()], [expected.get()], BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32", "float16"], indirect=True)
def test_images_padded_to_whole_pixels_give_the_same(precision):
    from trainers.kernels.cuda import convolution, images

    random, xp = np.random.RandomState(0), chainer.get_device("@cupy:0").xp
    pixels = xp.zeros((4, 12, 11, 4 if precision == "float32" else 8), precision)
    pixels[..., :3] = xp.asarray(random.normal(size=(4, 12, 11, 3)))
    W, gy = (xp.asarray(random.normal(size=size).astype(precision)) for size in ((16, 3, 7, 7), (4, 16, 6, 6)))
    x, how = pixels[..., :3].transpose(0, 3, 1, 2), {"stride": (2, 2), "pad": (3, 3)}
    assert images.whole_pixels(x) is not None
    actual, expected = (
        [
            convolution.convolution(each, W, None, **how).get(),
            convolution.convolution_weights(each, gy, kernel=(7, 7), **how).get(),
        ]
        for each in (x, xp.ascontiguousarray(x))
    )
    assert_close(actual, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32", "float16"], indirect=True)
def test_parts_of_arrays_that_do_not_begin_at_16_bytes_give_the_same(precision):
    from trainers.kernels.cuda import convolution

    random, xp = np.random.RandomState(0), chainer.get_device("@cupy:0").xp
    whole, W, gy = (xp.asarray(random.normal(size=n), precision) for n in ((5, 7, 5, 1), (16, 3, 3, 1), (4, 5, 3, 16)))
    part, W, gy = (each.transpose(0, 3, 1, 2) for each in (whole[1:], W, gy))
    assert part.data.ptr % 16
    how, kernel = {"stride": (1, 1), "pad": (0, 0)}, (3, 3)
    actual, expected = (
        [
            convolution.convolution(x, W, None, **how).get(),
            convolution.convolution_weights(x, gy, kernel=kernel, **how).get(),
        ]
        for x in (part, part.copy())
    )
    assert_close(actual, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_cudnn_is_what_computes_and_leaves_channels_last(precision):
    x = chainer.get_device("@cupy:0").send(np.random.RandomState(0).normal(size=(4, 8, 9, 9)).astype("float32"))
    W = chainer.get_device("@cupy:0").send(np.ones((16, 8, 3, 3), "float32"))
    assert chainer_hooks.operators_for(x, W).__name__ == "trainers.kernels.cuda.operators"
    y = F.convolution_2d(x, W, pad=1).array
    assert y.transpose(0, 2, 3, 1).flags.c_contiguous
    h = F.relu(F.max_pooling_2d(y, 3, 2, 1) + F.average_pooling_2d(y, 3, 2, 1)).array
    assert h.transpose(0, 2, 3, 1).flags.c_contiguous


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"], indirect=True)
@pytest.mark.parametrize("function", [F.relu, lambda x: x + x * 2, lambda x: F.average_pooling_2d(x, 7)])
def test_other_nodes(precision, function):
    random = np.random.RandomState(0)
    actual, expected = of_both(function, (random.normal(size=(4, 24, 7, 7)),), precision)
    assert_close(actual, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16"], indirect=True)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("mixed", [False, True])
def test_softmax_cross_entropy(precision, smoothing, mixed):
    random = np.random.RandomState(0)
    targets = random.randint(0, 1000, 65).astype(np.int32)
    if mixed:
        targets = (0.75 * np.eye(1000)[targets] + 0.25 * np.eye(1000)[targets[::-1]]).astype(np.float32)
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()
    logits = random.normal(0, 4, (65, 1000))
    actual, expected = of_both(lambda x: loss(x, x.xp.asarray(targets)), (logits,), precision)
    assert_close(actual, expected, BOUNDS[precision])


@pytest.mark.parametrize("precision", ["float32"], indirect=True)
def test_where_no_plan_can_be_built_again_the_first_one_stays(precision, monkeypatch):
    from trainers.kernels.cuda.convolution import _Plan

    monkeypatch.setattr(_Plan, "_selects", lambda plan, index: False)  # as where memory runs out
    x, W = np.random.RandomState(0).normal(size=(2, 5, 13, 11)), np.random.RandomState(1).normal(size=(6, 5, 3, 3))
    assert_close(*of_both(F.convolution_2d, (x, W), precision), BOUNDS[precision])
