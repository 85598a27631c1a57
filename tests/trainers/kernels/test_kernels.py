"""Our kernels compute what Chainer's own do, as exactly, and gradients of gradients go through them."""

import importlib

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from chainer import gradient_check

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers import kernels
from trainers.gradients.mixed_precision import forward_in
from trainers.kernels import by_group
from trainers.kernels import threads as pool
from trainers.kernels.by_group import tree_sum
from trainers.kernels.cpu import compiled_normalization, convolution, elementwise, normalization, pooling
from trainers.models import SmallResNet
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights

OURS = ["numpy", pytest.param("torch", marks=pytest.mark.torch)]
CASES = 25


@pytest.fixture(params=OURS)
def ours(request):
    """Sets the kernels to one of ours; called with a kind to change them."""
    if request.param == "torch":
        pytest.importorskip("torch")
    before = kernels.in_use()
    kernels.use(request.param)
    yield lambda kind=request.param: kernels.use(kind)
    kernels.use(before)


def array(random, *shape, dtype=np.float64, channels_last=True):
    values = random.normal(0.2, 1.0, shape).astype(dtype)
    if channels_last and len(shape) == 4:
        values = np.ascontiguousarray(values.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    return values


def convolution_case(random):
    """Arrays and options of a convolution, odd sizes among them."""
    kernel = tuple(random.randint(1, 5, 2)) if random.rand() < 0.8 else (1, 1)
    stride = tuple(random.randint(1, 4, 2)) if random.rand() < 0.5 else (1, 1)
    pad = tuple(random.randint(0, 3, 2)) if random.rand() < 0.7 else (0, 0)
    size = tuple(k + random.randint(0, 9) for k in kernel)
    n, c, o = random.randint(1, 6), random.choice([1, 2, 3, 8, 17]), random.choice([1, 3, 8, 16, 33])
    last = random.rand() < 0.7
    x, W = array(random, n, c, *size, channels_last=last), array(random, o, c, *kernel, channels_last=False)
    b = random.normal(size=o) if random.rand() < 0.5 else None
    return x, W, b, {"stride": tuple(map(int, stride)), "pad": tuple(map(int, pad))}


def pooling_case(random):
    kernel, pad = tuple(map(int, random.randint(1, 4, 2))), (0, 0)
    if random.rand() < 0.4:
        pad = tuple(int(random.randint(0, k)) for k in kernel)
    stride = tuple(map(int, random.randint(1, 4, 2)))
    size = tuple(k + int(random.randint(0, 9)) for k in kernel)
    x = array(random, random.randint(1, 5), random.choice([1, 3, 8]), *size, channels_last=random.rand() < 0.7)
    if random.rand() < 0.5:
        x = x.round()  # equal values: the first one counts
    return x, {"ksize": kernel, "stride": stride, "pad": pad, "cover_all": bool(random.rand() < 0.5)}


def derivatives(function, arrays, gy, *, dtype):
    """What a function gives, its gradients for `gy`, and their gradients: a list of arrays."""
    variables = [chainer.Variable(a.astype(dtype, order="K")) for a in arrays]
    y = function(*variables)
    assert y.shape == gy.shape
    first = chainer.grad([y], variables, [chainer.Variable(gy.astype(dtype, order="K"))], enable_double_backprop=True)
    second = chainer.grad([sum(F.sum(g * g) for g in first if g is not None)], variables)
    return [v.array for v in (y, *first, *second) if v is not None]


def assert_close(actual, expected, *, bound):
    """Norm of the difference over that of the reference, and no element off by more than ten times the largest."""
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_array_equal(np.isneginf(one), np.isneginf(other))  # of a pooling window in the padding
        one, other = (np.where(np.isneginf(values), 0, values) for values in (one, other))
        difference = one.astype(np.float64) - other
        assert np.linalg.norm(difference) <= bound * np.linalg.norm(other)
        assert np.abs(difference).max() <= 10 * bound * np.abs(other).max()


def compared(function, arrays, random, ours):
    """A function by our kernels in float32 and float64, against Chainer's own in float64 on the same inputs."""
    arrays = [a.astype(np.float32, order="K") for a in arrays]
    kind = kernels.use("chainer")
    shape = function(*[a.astype(np.float64, order="K") for a in arrays]).shape
    gy = array(random, *shape, dtype=np.float32)
    expected = derivatives(function, arrays, gy, dtype=np.float64)
    ours()
    assert kernels.in_use() != kind
    for dtype, bound in ((np.float64, 1e-11), (np.float32, 1e-5)):
        actual = derivatives(function, arrays, gy, dtype=dtype)
        assert all(one.dtype == dtype for one in actual)
        assert_close(actual, expected, bound=bound)


@pytest.mark.parametrize("seed", range(CASES))
def test_convolution_is_chainers(ours, seed):
    random = np.random.RandomState(seed)
    x, W, b, options = convolution_case(random)
    arrays = (x, W) if b is None else (x, W, b)
    compared(lambda x, W, b=None: F.convolution_2d(x, W, b, **options), arrays, random, ours)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 5, 3), (32, 65, 10)])
def test_linear_is_chainers(ours, shape, biased):
    random = np.random.RandomState(sum(shape))
    samples, inputs, outputs = shape
    arrays = (array(random, samples, inputs), array(random, outputs, inputs), array(random, outputs))
    compared(F.linear, arrays if biased else arrays[:2], random, ours)


@pytest.mark.parametrize("seed", range(CASES))
def test_deconvolution_is_chainers(ours, seed):
    random = np.random.RandomState(seed)
    x, W, b, options = convolution_case(random)
    out = convolution.out_size(x.shape[2:], W.shape[2:], options["stride"], options["pad"])
    y = array(random, len(x), len(W), *out)
    if seed % 2:
        options["outsize"] = x.shape[2:]
    arrays = (y, W) if b is None else (y, W, random.normal(size=W.shape[1]))
    compared(lambda y, W, b=None: F.deconvolution_2d(y, W, b, **options), arrays, random, ours)


@pytest.mark.parametrize("seed", range(CASES))
def test_max_pooling_is_chainers(ours, seed):
    random = np.random.RandomState(seed)
    x, options = pooling_case(random)
    compared(lambda x: F.max_pooling_2d(x, **options), (x,), random, ours)


@pytest.mark.parametrize("seed", range(CASES))
def test_normalisation_is_chainers(ours, seed):
    random = np.random.RandomState(seed)
    shape = (random.randint(2, 9), random.choice([1, 3, 8, 100]), *random.randint(1, 9, random.choice([0, 2])))
    x = array(random, *shape, channels_last=random.rand() < 0.8)
    gamma, beta = random.normal(1, 0.3, (2, shape[1]))

    def function(x, gamma, beta):
        running = [np.zeros(shape[1], x.dtype), np.ones(shape[1], x.dtype)]
        y = F.batch_normalization(x, gamma, beta, eps=0.1, running_mean=running[0], running_var=running[1])
        return F.concat([F.flatten(y), *running], axis=0)

    compared(function, (x, gamma, beta), random, ours)


def test_normalisation_reads_parameters_that_lie_apart_in_memory(ours):
    random = np.random.RandomState(0)
    x, (gamma, beta), gy = array(random, 4, 8, 3, 2), random.normal(1, 0.3, (8, 2)).T, array(random, 4, 8, 3, 2)

    def gradient():
        images = chainer.Variable(x)
        y = F.batch_normalization(images, gamma, beta)
        y.grad = gy
        y.backward()
        return images.grad

    actual = gradient()
    ours("chainer")
    np.testing.assert_allclose(actual, gradient(), atol=1e-12)


def test_a_channel_of_one_large_value_is_normalised_to_its_shift(ours, monkeypatch):
    monkeypatch.setattr(compiled_normalization, "COMPILED", None)
    x = np.ascontiguousarray(np.full((2, 3, 4, 3), 3e4, np.float32)).transpose(0, 3, 1, 2)
    y = F.batch_normalization(x, np.float32([1, 2, 3]), np.float32([0.1, 0.2, 0.3])).array
    np.testing.assert_allclose(y.transpose(0, 2, 3, 1).reshape(-1, 3), np.tile(np.float32([0.1, 0.2, 0.3]), (24, 1)))


def test_pooling_that_leaves_nothing_is_refused(ours):
    with pytest.raises(AssertionError, match="Output sizes should be positive"):
        F.max_pooling_2d(np.ones((1, 1, 1, 1), np.float32), 2, cover_all=False)


@pytest.mark.parametrize("seed", range(5))
def test_relu_is_chainers(ours, seed):
    random = np.random.RandomState(seed)
    compared(F.relu, (array(random, 3, 5, seed + 1, 4, channels_last=bool(seed % 2)),), random, ours)


def test_large_arrays_are_worked_through_in_blocks_by_several_threads(ours):
    random = np.random.RandomState(0)
    x, W = array(random, 3, 40, 57, 61), array(random, 24, 40, 3, 3, channels_last=False)
    compared(lambda x, W: F.convolution_2d(x, W, pad=1), (x, W), random, ours)
    compared(lambda x, W: F.convolution_2d(x, W, pad=1, stride=2), (x, W), random, ours)
    compared(lambda x: F.max_pooling_2d(x, 3, 2, 1), (x,), random, ours)
    gamma, beta = random.normal(1, 0.3, (2, 40))
    compared(lambda *inputs: F.batch_normalization(*inputs, eps=0.1), (x, gamma, beta), random, ours)


def test_large_arrays_are_added_and_cut_off_in_blocks(ours):
    random = np.random.RandomState(0)
    for last in (True, False):
        x, y = (array(random, 4, 33, 50, 47, channels_last=last) for _ in range(2))
        compared(lambda x, y: F.relu(x + F.relu(y)), (x, y), random, ours)
        mixed = array(random, *x.shape, channels_last=not last)
        compared(lambda x, y: F.relu(x + y), (x, mixed), random, ours)


def test_gradients_are_those_of_differences(ours):
    random = np.random.RandomState(3)
    x, W = array(random, 2, 3, 7, 6), array(random, 4, 3, 3, 2, channels_last=False)
    gy, ggx, ggW = array(random, 2, 4, 4, 4), array(random, *x.shape), array(random, *W.shape)

    def function(x, W):
        return F.convolution_2d(x, W, stride=2, pad=1)

    gradient_check.check_backward(function, (x, W), gy, dtype=np.float64, rtol=1e-5, atol=1e-5)
    gradient_check.check_double_backward(function, (x, W), gy, (ggx, ggW), dtype=np.float64, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "dtype"),
    [({"groups": 2}, np.float32), ({"dilate": 2}, np.float32), ({"pad": 1, "stride": 2}, np.float16)],
)
def test_what_is_not_covered_is_chainers_to_the_bit(ours, options, dtype):
    random = np.random.RandomState(0)
    x, W = array(random, 2, 4, 9, 9, dtype=dtype), array(random, 6, 4 // options.get("groups", 1), 3, 3, dtype=dtype)
    actual = F.convolution_2d(x, W, **options).array
    kernels.use("chainer")
    np.testing.assert_array_equal(actual, F.convolution_2d(x, W, **options).array)


def test_every_value_of_what_is_allocated_is_written(monkeypatch, poisoned_numpy):
    for module in (convolution, elementwise, normalization, pooling):
        monkeypatch.setattr(module, "np", poisoned_numpy)
    monkeypatch.setattr(convolution, "_kept", type("Kept", (), {})())
    for seed in range(CASES):
        random = np.random.RandomState(seed)
        x, W, b, options = convolution_case(random)
        gy = array(random, *convolution.convolution(x, W, b, **options).shape)
        actual = [
            convolution.convolution(x, W, b, **options),
            convolution.convolution_data(gy, W, size=x.shape[2:], **options),
            convolution.convolution_weights(x, gy, kernel=W.shape[2:], **options),
        ]
        assert all(np.isfinite(one).all() for one in actual), seed
        with chainer.using_config("dtype", np.float64):
            layer = L.BatchNormalization(x.shape[1])
        variable = chainer.Variable(x)
        y = layer(variable)
        y.grad = array(random, *x.shape)
        y.backward()
        assert np.isfinite(y.array).all(), seed
        assert np.isfinite(variable.grad).all(), seed


def test_a_layer_told_who_computes_it_keeps_that():
    """ChainerMN's normalisation over all workers hands its own in."""
    from chainer.functions.normalization import batch_normalization

    node = batch_normalization.BatchNormalization(impl_selector=len)
    assert node._impl_selector is len


@pytest.mark.parametrize("kernel", [1, 3])
def test_gradients_of_parameters_lie_as_parameters_do(ours, kernel):
    link = L.Convolution2D(3, 5, kernel)
    F.sum(link(np.ones((2, 3, 6, 6), np.float32)) ** 2).backward()
    assert all(parameter.grad.flags.c_contiguous for parameter in link.params())  # ChainerMN's mean of others is lost


def mixed_step(compute):
    """The loss of a step in two norm groups, and its gradients by path."""
    model = SmallResNet(width=4).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    groups = NormGroups(Evaluation())
    groups.install(model)
    division = divide(global_batch_size=16, norm_span=8, workers=1, micro_batch_size=16)
    groups.begin_update(division)
    groups.begin_micro_batch(division.micro_batches(0)[0])
    random = np.random.RandomState(0)
    images, labels = random.normal(size=(16, 3, 8, 8)).astype(np.float32), random.randint(0, 5, 16).astype(np.int32)
    with chainer.using_config("train", True):
        loss = F.softmax_cross_entropy(forward_in(model, compute)(images), labels)
        model.cleargrads()
        (loss * 1024).backward()
    return {"loss": loss.array, **{path: parameter.grad for path, parameter in model.namedparams()}}


def test_a_step_in_mixed16_is_chainers_to_the_bit(ours):
    """Float16 is Chainer's own on the CPU, whichever kernels serve."""
    kernels.use("chainer")
    expected, single = mixed_step("mixed16"), mixed_step("float32")
    ours()
    for path, array in mixed_step("mixed16").items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)
    assert any(not np.array_equal(array, single[path]) for path, array in mixed_step("float32").items())


@pytest.mark.parametrize("channels", [64, 1])
@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (1, 1)), ((3, 3), (2, 2)), ((1, 1), (1, 1)), ((1, 1), (2, 2))])
@pytest.mark.parametrize("kind", OURS)
def test_a_norm_group_has_the_bits_it_has_alone_on_any_threads(monkeypatch, kind, kernel, stride, channels):
    by = importlib.import_module(kernels._MODULES[kind])
    random = np.random.RandomState(0)
    x = array(random, 20, channels, 16, 16, dtype=np.float32)
    W = array(random, 48, channels, *kernel, dtype=np.float32, channels_last=False)
    b, pad = random.normal(size=48).astype("f"), tuple(k // 2 for k in kernel)
    out = convolution.out_size((16, 16), kernel, stride, pad)
    gy = array(random, 20, 48, *out, dtype=np.float32)
    modules = [convolution] if kind == "numpy" else [convolution, by]

    def computed(threads, x, gy, groups):
        how = {"stride": stride, "pad": pad, "groups": groups}
        for module in modules:
            monkeypatch.setattr(module, "WORTH_THREADS", 0)
        for module in (pool, *modules):
            monkeypatch.setattr(module, "num_threads", lambda: threads)
        pool._pool.cache_clear()
        try:
            with by_group.apart(groups):
                y = by.convolution(x, W, b, **how)
                assert y.transpose(0, 2, 3, 1).flags.c_contiguous
                of_data = by.convolution_data(gy, W, size=(16, 16), **how)
                return [y, of_data, by.convolution_weights(x, gy, kernel=kernel, **how)]
        finally:
            pool._pool.cache_clear()

    alone = [computed(1, *parts, 1) for parts in zip(np.split(x, 4), np.split(gy, 4), strict=True)]
    *of_samples, of_weights = zip(*alone, strict=True)
    expected = [*map(np.concatenate, of_samples), tree_sum(of_weights)]
    for threads in (1, 2, 3, 7):
        for actual, each in zip(computed(threads, x, gy, 4), expected, strict=True):
            np.testing.assert_array_equal(actual, each)


@pytest.mark.torch
def test_pytorch_is_called_for_each_group_where_more_samples_have_other_bits():
    """No convolution is known here of which this is true: an operator that looks at all samples is in its place."""
    by = importlib.import_module(kernels._MODULES["torch"])
    given = {"dtype": np.dtype("f"), "shape": (64, 4, 8, 8), "W_shape": (4, 4, 3, 3), "how": ((1, 1), (1, 1))}
    given["biased"] = True
    assert by._samples_a_call(by._convolved, **given, groups=2, threads=1) == 64
    assert by._samples_a_call(by._convolved, **given, groups=2, threads=4) == 16
    assert by._samples_a_call(lambda x, *_: x - x.mean(), **given, groups=2, threads=1) == 32
    assert by._samples_a_call(lambda x, *_: x - x.mean(), **given, groups=2, threads=4) == 32


@pytest.mark.torch
def test_pytorchs_gradient_of_an_input_allocates_no_array_beside_it():
    """The operator wants the input itself, of which it reads only the shape."""
    import torch

    by, random = importlib.import_module(kernels._MODULES["torch"]), np.random.RandomState(0)
    gy, W = array(random, 16, 16, 32, 32, dtype=np.float32), array(random, 16, 16, 3, 3, dtype=np.float32)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        gx = by.convolution_data(gy, W, size=(32, 32), stride=(1, 1), pad=(1, 1))
    allocated = [event.self_cpu_memory_usage for event in profile.key_averages()]
    assert gx.nbytes <= sum(each for each in allocated if each > 0) < 1.5 * gx.nbytes


@pytest.mark.torch
@pytest.mark.parametrize(("channels", "stride"), [(3, 2), (4, 2), (12, 4), (15, 2)])
def test_pytorch_gets_no_strided_convolution_that_writes_past_its_memory(channels, stride):
    """It crashed the process where enough was written."""
    by, random = importlib.import_module(kernels._MODULES["torch"]), np.random.RandomState(0)
    x, gy = (array(random, 4, c, s, s, dtype=np.float32) for c, s in ((channels, 224), (8, 224 // stride)))
    how = {"kernel": (1, 1), "stride": (stride, stride), "pad": (0, 0)}
    actual, expected = (of.convolution_weights(x, gy, **how) for of in (by, convolution))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-2)


def test_threads_that_share_images_change_no_bit_of_an_image_and_of_a_sum_the_rounding_only(monkeypatch):
    """As in an evaluation, which has no norm groups."""
    random = np.random.RandomState(0)
    x, gy = array(random, 97, 8, 6, 6), array(random, 97, 5, 6, 6)
    W = array(random, 5, 8, 3, 3, channels_last=False)
    how = {"stride": (1, 1), "pad": (1, 1)}
    monkeypatch.setattr(convolution, "WORTH_THREADS", 0)

    def computed(threads):
        for module in (pool, convolution):
            monkeypatch.setattr(module, "num_threads", lambda: threads)
        pool._pool.cache_clear()
        try:
            return [
                convolution.convolution(x, W, None, **how),
                convolution.convolution_data(gy, W, size=(6, 6), **how),
                convolution.convolution_weights(x, gy, kernel=(3, 3), **how),
            ]
        finally:
            pool._pool.cache_clear()

    (*of_images, of_weights), (*others, other) = computed(1), computed(3)
    for one, several in zip(of_images, others, strict=True):
        np.testing.assert_array_equal(several, one)
    np.testing.assert_allclose(other, of_weights, rtol=1e-12, atol=1e-12)
