"""Several norm groups in one forward have the bits that each has alone, or the graph is refused."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers import kernels, models
from trainers.communicators.tree_sum import TreeSum
from trainers.gradients.flat_gradients import FlatGradients, backward_order
from trainers.gradients.sample_by_sample import MixesSamples, require_operators, require_sample_by_sample
from trainers.kernels import by_group, chainer_hooks
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout, draw_initial_weights

SPAN, GROUPS = 3, 4  # neither a power of two nor a multiple of a vector's length
CASES = {
    "SmallCNN": (models.SmallCNN(width=4, dropout=0.3), 8),
    "SmallResNet": (models.SmallResNet(width=4, blocks=(1, 1)), 16),
    "WideResNet": (models.WideResNet(depth=10, widen=1, dropout=0.3), 16),
    "ResNet18": (models.ResNet18(zero_last_gamma=False), 64),
    "VGG16": (models.VGG16(batch_norm=False), 32),
    "large images": (models.SmallCNN(width=32), 96),  # patches of a group are gathered in several blocks
}


@pytest.fixture(params=["numpy", pytest.param("torch", marks=pytest.mark.torch)])
def each_kind(request):
    """Every test once by each kind of kernels that compute groups apart."""
    if request.param == "torch":
        pytest.importorskip("torch")
    before = kernels.in_use()
    kernels.use(request.param)
    yield
    kernels.use(before)


def bits_of(model, images, *, groups):
    """Logits, mean gradient and statistics, of forwards of so many norm groups."""
    norm_groups, tree = NormGroups(Evaluation(), TreeSum(MPI.COMM_SELF)), TreeSum(MPI.COMM_SELF)
    norm_groups.install(model)
    flat, logits = FlatGradients(backward_order(model, images[:1])), []
    division = divide(global_batch_size=len(images), norm_span=SPAN, workers=1, micro_batch_size=SPAN * groups)
    norm_groups.begin_update(division)
    numbers = np.arange(len(images))
    for part in division.micro_batches(0):
        samples = slice(part.offset, part.offset + part.size)
        norm_groups.begin_micro_batch(part)
        flat.begin_update()
        keyed = KeyedDropout(model, seed=0, epochs=numbers[samples], indices=numbers[samples])
        with by_group.apart(part.num_groups), flat.collect(), chainer.using_config("train", True), keyed:
            require_operators(images)
            y = model(own := images[samples])
            require_sample_by_sample(y, own)
            F.sum(y * np.sin(numbers[samples, None] + np.arange(y.shape[1])).astype("f")).backward()
        norm_groups.end_micro_batch()
        flat.zero_unwritten()
        tree.add(part.first_group, flat.values, leaves=part.num_groups)
        logits.append(y.array)
    gradient = np.empty_like(flat.values)
    tree.total(gradient)
    norm_groups.update_running_statistics(MPI.COMM_SELF, len(images))
    return [np.concatenate(logits), gradient, *norm_groups.averages.values()]


def made(component, size):
    model = component.build(num_classes=5, channels=3, image_size=size)
    draw_initial_weights(model, seed=1)
    return model


def dense(net, h):
    one, other = F.split_axis(F.concat([net.conv2(h), h], axis=1), [5], axis=-3)
    return F.concat([F.maximum(F.leaky_relu(h), -h), other, one], axis=1)


def gated(net, h):
    gate = F.relu(F.max(h, axis=(2, 3)) - F.min(h, axis=(-1, -2)))
    return h * F.broadcast_to(F.expand_dims(F.expand_dims(gate, 2), 3), h.shape) - F.square(h)


def pooled(net, h):
    h = F.minimum(F.relu6(F.add(h, h, h)), F.average_pooling_2d(h, 3, stride=1, pad=1))
    return F.transpose(F.transpose(h, (0, 3, 1, 2)), (0, 2, 3, 1)) * F.average_pooling_2d(h, h.shape[2:])


def summed(net, h):
    return h * F.sum(h, axis=1, keepdims=True)


@pytest.mark.usefixtures("each_kind")
@pytest.mark.parametrize("how", [dense, gated, pooled, summed])
@pytest.mark.parametrize("size", [7, 1])
def test_what_own_networks_compute_of_each_sample_has_the_bits_of_a_group_alone(how, size):
    images = np.random.default_rng(0).standard_normal((SPAN * GROUPS, 3, size, size)).astype(np.float32)
    found = []
    for groups in (1, 2, 4):
        net = Net(how, 12 if how is dense else 4)
        with net.init_scope():
            net.conv2 = L.Convolution2D(4, 4, 3, pad=1)
        draw_initial_weights(net, seed=1)
        found.append(bits_of(net, images, groups=groups))
    for together in found[1:]:
        for one, other in zip(found[0], together, strict=True):
            np.testing.assert_array_equal(one, other)
    assert np.abs(found[0][1]).max() > 0


LARGE = ("ResNet18", "VGG16")


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LARGE else n for n in CASES])
@pytest.mark.parametrize("groups", [2, 4])
def test_a_forward_of_several_groups_has_the_bits_of_one_for_each(each_kind, name, groups):
    component, size = CASES[name]
    images = np.random.default_rng(0).standard_normal((SPAN * GROUPS, 3, size, size)).astype(np.float32)
    together, alone = (bits_of(made(component, size), images, groups=number) for number in (groups, 1))
    for one, other in zip(together, alone, strict=True):
        assert np.isfinite(one).all()
        np.testing.assert_array_equal(one, other)
    assert np.abs(together[1]).max() > 0


class Net(chainer.Chain):
    def __init__(self, how, channels=4):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, pad=1)
            self.fc = L.Linear(channels, 5)
            self.scale = chainer.Parameter(np.ones((1, 4, 1, 1), np.float32))
        self.how = how

    def forward(self, x):
        h = F.relu(self.conv(x))
        h = self.how(self, h)
        return self.fc(F.average(h, axis=(2, 3)))


def samples_along_another_axis(net, h):
    rows = F.reshape(net.six(h), (len(h), 6, -1)) + F.reshape(F.mean(h, axis=1), (len(h), -1))
    return h * F.mean(F.reshape(rows, (len(h), 6, 8, 8)), axis=1, keepdims=True)


HOWS = {
    "samples along another axis": (samples_along_another_axis, "Add"),
    "a mean over the samples": (
        lambda net, h: h - F.broadcast_to(F.mean(h, axis=0, keepdims=True), h.shape),
        "BroadcastTo",
    ),
    "a constant": (lambda net, h: h + np.full(h.shape, h.array.mean(), "f"), "neither its images nor a parameter"),
    "a layer twice": (lambda net, h: net.conv2(net.conv2(h)), "a parameter is used twice"),
    "a parameter of its own": (lambda net, h: h * F.broadcast_to(net.scale, h.shape), "BroadcastTo"),
    "dilation": (lambda net, h: net.dilated(h), "Convolution2DFunction"),
    "float64": (lambda net, h: F.cast(F.cast(h, "d"), "f"), "Cast"),
    "a number of the model's": (lambda net, h: h * float(abs(h.array).max()), "MulConstant"),
    "a cap of the model's": (lambda net, h: F.clipped_relu(h, float(h.array.std())), "ClippedReLU is"),
    "a slope of the model's": (lambda net, h: F.leaky_relu(h, float(h.array.std())), "LeakyReLU"),
    "a concatenation of samples": (lambda net, h: F.concat([h[:3], h[3:]], axis=0), "Concat"),
    "samples behind channels": (lambda net, h: F.transpose(F.transpose(h, (1, 0, 2, 3)), (1, 0, 2, 3)), "Transpose"),
    "the largest of all samples": (lambda net, h: h - F.broadcast_to(F.max(h), h.shape), "BroadcastTo"),
    "an order of samples": (lambda net, h: h[::-1], "GetItem"),
    "an average over samples and pixels": (
        lambda net, h: h + F.broadcast_to(F.average(h, axis=(0, 2, 3), keepdims=True), h.shape),
        "BroadcastTo",
    ),
}


@pytest.mark.parametrize("name", HOWS)
def test_a_graph_that_may_mix_samples_is_refused_by_what_does(name):
    how, said = HOWS[name]
    net = Net(how)
    with net.init_scope():
        net.conv2 = L.Convolution2D(4, 4, 3, pad=1)
        net.six = L.Convolution2D(4, 6, 1)
        net.dilated = L.Convolution2D(4, 4, 3, dilate=2, pad=2)
    images = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    flat = FlatGradients(backward_order(net, images[:1]))
    flat.begin_update()
    with by_group.apart(2), flat.collect(), chainer.using_config("train", True):
        with pytest.raises(MixesSamples, match=said):
            require_sample_by_sample(net(images), images)
        net.how = lambda net, h: h
        require_sample_by_sample(net(images), images)


def test_kernels_that_compute_all_samples_as_one_are_refused(monkeypatch):
    from trainers.kernels import chainer_hooks

    images = np.zeros((2, 3, 8, 8), np.float32)
    require_operators(images)
    monkeypatch.setattr(chainer_hooks, "operators", None)
    with pytest.raises(MixesSamples, match="the kernels in use compute all samples of a forward as one"):
        require_operators(images)


@pytest.mark.usefixtures("each_kind")
@pytest.mark.parametrize(("channels", "size", "span"), [(5, 3, 5), (3, 2, 3), (1, 1, 1), (8, 4, 4)])
def test_a_group_has_the_bits_that_it_has_alone_wherever_its_memory_begins(channels, size, span):
    random, ours = np.random.RandomState(0), chainer_hooks.operators
    x, gy = (random.normal(size=(4 * span, each, size, size)).astype("f") for each in (channels, 16))
    W, how = random.normal(size=(16, channels, 1, 1)).astype("f"), {"stride": (1, 1), "pad": (0, 0)}
    y = ours.convolution(x, W, None, **how, groups=4)
    gx = ours.convolution_data(gy, W, size=(size, size), **how, groups=4)
    for first in range(0, 4 * span, span):
        rows = slice(first, first + span)
        np.testing.assert_array_equal(y[rows], ours.convolution(x[rows].copy(), W, None, **how))
        np.testing.assert_array_equal(gx[rows], ours.convolution_data(gy[rows].copy(), W, size=(size, size), **how))


@pytest.mark.usefixtures("each_kind")
def test_a_group_of_one_pixel_has_the_bits_that_it_has_alone():
    random, ours = np.random.RandomState(0), chainer_hooks.operators
    x, W, b = (random.normal(size=shape).astype("f") for shape in ((4, 3, 1, 1), (4, 3, 3, 3), (4,)))
    how = {"stride": (1, 1), "pad": (1, 1)}
    alone = [ours.convolution(x[number : number + 1].copy(), W, b, **how) for number in range(4)]
    np.testing.assert_array_equal(ours.convolution(x, W, b, **how, groups=4), np.concatenate(alone))


def test_the_gradient_of_a_linear_layer_has_gradients_too():
    random, found = np.random.RandomState(0), []
    x, W, b = (random.normal(size=shape).astype("f") for shape in ((4, 3), (2, 3), 2))
    for groups in (0, 1, 2):
        weights, bias = chainer.Variable(W), chainer.Variable(b)
        with by_group.apart(groups):
            of_bias = chainer.grad([F.linear(x, weights, bias) ** 3], [bias], enable_double_backprop=True)[0]
            F.sum(of_bias**2).backward()
        found.append((weights.grad, bias.grad))
    for actual in found[1:]:
        for one, other in zip(actual, found[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
