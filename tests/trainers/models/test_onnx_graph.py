"""Every model gives the same logits in onnxruntime as in Chainer."""

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import onnxruntime
import pytest

from recipes.errors import InputRefused
from trainers import models
from trainers.models.onnx_graph import onnx_model
from trainers.runs.checkpoint import weights_of

CASES = {
    "AlexNetBN": ({}, 3, 67),
    "CifarResNet": ({"depth": 20, "shortcut": "identity_pad"}, 3, 16),
    "ResNet101": ({"zero_last_gamma": False}, 3, 64),
    "ResNet152": ({"zero_last_gamma": False}, 3, 64),
    "ResNet18": ({"zero_last_gamma": False, "blur_pool": True}, 3, 64),
    "ResNet34": ({"zero_last_gamma": False, "stochastic_depth": 0.1}, 3, 65),
    "ResNet50": ({"zero_last_gamma": False, "padded_pool": True}, 3, 64),
    "SimpleCNN": ({"widths": (3, 5), "hidden": 7, "dropout": 0.3}, 1, 9),
    "SmallCNN": ({"width": 4, "dropout": 0.3}, 1, 9),
    "SmallResNet": ({"width": 4, "blocks": (2, 1)}, 3, 32),
    "VGG16": ({"batch_norm": True}, 3, 32),
    "WideResNet": ({"depth": 10, "widen": 2, "dropout": 0.3}, 1, 16),
}
SLOW = ("AlexNetBN", "ResNet101", "ResNet152", "ResNet34", "VGG16")


def with_statistics(model):
    """The model with scales, shifts and running statistics as of a trained one."""
    draws = np.random.default_rng(0)
    for path, array in weights_of(model).items():
        if path.endswith(("/gamma", "/avg_var")):
            array[...] = draws.uniform(0.5, 1.0, array.shape)
        elif path.endswith(("/beta", "/avg_mean")):
            array[...] = draws.normal(0, 0.1, array.shape)
    return model


def both(model, shape, num_images=4):
    """Logits of Chainer and of onnxruntime, for another number of images than the export saw."""
    images_NCHW = np.random.default_rng(1).standard_normal((num_images, *shape)).astype(np.float32)
    exported = onnx_model(model, shape, facts={"recipe": "mine"})
    session = onnxruntime.InferenceSession(exported.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map == {"recipe": "mine"}
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        return model(images_NCHW).array, session.run(["logits"], {"images_NCHW": images_NCHW})[0]


def test_no_model_is_missing_here():
    assert {*CASES} == {*models.__all__}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in sorted(CASES)])
def test_onnxruntime_gives_the_logits_of_chainer(name):
    options, channels, size = CASES[name]
    np.random.seed(0)
    component = getattr(models, name)(**options)
    model = with_statistics(component.build(num_classes=10, channels=channels, image_size=size))
    ours, theirs = both(model, (channels, size, size))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())


class Own(chainer.Chain):
    """What models of users call beside the library's."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 8, 3, stride=2, pad=1)
            self.dilated = L.DilatedConvolution2D(8, 8, 3, pad=2, dilate=2)
            self.head = L.Linear(8 * 2 * 2, 4)

    def forward(self, x):
        h = F.leaky_relu(self.conv(x), 0.1)
        h = F.elu(self.dilated(h)) * F.sigmoid(h) + 0.5 - F.tanh(h) / 2
        h = F.average_pooling_2d(h, 3, stride=2, pad=1)
        h = F.max_pooling_2d(h, 3, stride=2)
        gate = F.broadcast_to(F.sum(h, axis=(2, 3), keepdims=True), h.shape)
        return F.log_softmax(self.head(F.transpose(F.concat([h * gate, -h], axis=1)[:, 4:12, ::-1], (0, 2, 3, 1))))


def test_functions_that_only_models_of_users_call():
    np.random.seed(0)
    ours, theirs = both(Own(), (3, 16, 16))
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())


class Transformer(chainer.Chain):
    """A vision transformer of one block."""

    def __init__(self, size=6, heads=2):
        super().__init__()
        self.heads = heads
        with self.init_scope():
            self.embed = L.Convolution2D(3, size, 4, stride=4)
            self.first = chainer.Parameter(chainer.initializers.Normal(0.5), (1, 1, size))
            self.places = chainer.Parameter(chainer.initializers.Normal(0.5), (1, 5, size))
            self.norm, self.last_norm = L.LayerNormalization(size), L.LayerNormalization(size)
            self.queries = L.Linear(size, 3 * size)
            self.wide, self.head = L.Linear(size, 2 * size), L.Linear(2 * size, 4)

    def forward(self, x):
        h = F.transpose(F.reshape(h := self.embed(x), (len(x), h.shape[1], -1)), (0, 2, 1))
        h = F.concat([F.broadcast_to(self.first, (len(x), 1, h.shape[2])), h], axis=1)
        h = h + F.broadcast_to(self.places, h.shape)
        normed = F.reshape(self.norm(F.reshape(h, (-1, h.shape[2]))), h.shape)
        parts = F.reshape(self.queries(normed, n_batch_axes=2), (len(x), 5, 3, self.heads, -1))
        q, k, v = F.transpose(parts, (2, 0, 3, 1, 4))
        shares = F.softmax(F.matmul(q, k, transb=True) / 3**0.5, axis=3)
        h = h + F.reshape(F.swapaxes(F.matmul(shares, v), 1, 2), h.shape)
        h = self.wide(self.last_norm(h[:, 0]))
        return self.head(0.5 * h * (1 + F.erf(h / 2**0.5)))


class Mobile(chainer.Chain):
    """Convolutions of single channels, clipped at 6."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.stem = L.Convolution2D(3, 8, 3, pad=1)
            self.deep, self.wide = L.DepthwiseConvolution2D(8, 1, 3, stride=2), L.Convolution2D(8, 12, 1)
            self.norm, self.head = L.BatchNormalization(12), L.Linear(12, 4)

    def forward(self, x):
        h = F.relu6(30 * self.stem(x))
        h = F.clip(self.norm(self.wide(F.clipped_relu(self.deep(h), 2.0))), -0.1, 0.9)
        return self.head(F.max(h, axis=(2, 3)) + F.min(h, axis=(2, 3), keepdims=True)[:, :, 0, -1])


class Grouped(chainer.Chain):
    """Norms of groups, Swish, and what is computed with two halves of the channels."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv, self.norm = L.Convolution2D(3, 8, 3, pad=1), L.GroupNormalization(2, 8)
            self.swish, self.head = L.Swish((8,)), L.Linear(4, 4)

    def forward(self, x):
        one, other, last = F.split_axis(self.swish(self.norm(self.conv(x))), [4, 6], axis=1)
        other = F.concat([other, last], axis=1)
        h = F.maximum(one, other) - F.minimum(one, 1 - other) + F.sqrt(F.square(one) + 1) / (2 / F.exp(other))
        h = F.clip(F.log(F.absolute(h) + 1), None, 3.0)
        flat = F.reshape(h, (-1, 4, h.shape[2] * h.shape[3]))
        alike = F.matmul(flat, flat, transb=True)
        odd = F.matmul(flat[:, :, :3], flat[:, :, 2:5], transa=True)
        return self.head(F.sum(alike, axis=2) + F.sum(odd, axis=(1, 2), keepdims=True)[:, 0])


@pytest.mark.parametrize("make", [Transformer, Mobile, Grouped])
def test_networks_that_only_users_have(make):
    np.random.seed(0)
    model = make()
    model(np.zeros((1, 3, 8, 8), np.float32))
    ours, theirs = both(with_statistics(model), (3, 8, 8))
    assert np.abs(ours - ours[:1]).max() > 0.01
    np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-5 * np.abs(ours).max())


class Scaled(chainer.Chain):
    """Weights that are broadcast to the images, by Chainer's layer too."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.gain = chainer.Parameter(np.array([1.5, -2.0, 0.5], np.float32).reshape(1, 3, 1, 1))
            self.shift = chainer.Parameter(np.array([0.5, 1.0, -1.0], np.float32).reshape(3, 1, 1))
            self.scale = L.Scale(axis=1, W_shape=(3,), bias_term=True)
        self.scale.W.array[...], self.scale.bias.b.array[...] = [0.3, 0.2, 0.1], [3, 2, 1]

    def forward(self, x):
        h = F.relu(x * F.broadcast_to(self.gain, x.shape) + F.broadcast_to(self.shift, x.shape))
        return F.sum(self.scale(h), axis=(2, 3))


@pytest.mark.parametrize("num_images", [1, 4])
def test_weights_are_broadcast_to_any_number_of_images(num_images):
    ours, theirs = both(Scaled(), (3, 5, 5), num_images)
    np.testing.assert_allclose(theirs, ours, rtol=1e-5, atol=1e-5)


class Refused(chainer.Chain):
    def __init__(self, forward):
        super().__init__()
        self.own = forward

    def forward(self, x):
        return self.own(x)


@pytest.mark.parametrize(
    "spread", [lambda x: x[:, :, None, None], lambda x: x[..., None, None], lambda x: F.expand_dims(x[:, :, None], 3)]
)
def test_axes_that_come_and_go_are_exported(spread):
    def excited(x):
        h = F.relu(x)
        factors = F.squeeze(F.sum(h, axis=(2, 3), keepdims=True)[:, :, :1], axis=3)
        return F.sum(h * F.broadcast_to(spread(F.sigmoid(F.squeeze(factors, axis=2))), h.shape), axis=(2, 3))

    ours, theirs = both(Refused(excited), (3, 4, 4))
    np.testing.assert_allclose(theirs, ours, rtol=1e-5)


@pytest.mark.parametrize(
    "part",
    [
        lambda h: h[..., 0],
        lambda h: h[:, ..., 1:, -1],
        lambda h: h[:, 1:, ...],
        lambda h: h[:, np.int64(2)],
        lambda h: F.transpose(h, (0, -1, 1, 2)),
        lambda h: F.transpose(h, (0, -2, -1, -3)),
    ],
)
def test_an_ellipsis_numpys_integers_and_negative_axes_are_exported(part):
    ours, theirs = both(Refused(lambda x: F.reshape(part(F.relu(x)), (len(x), -1))), (3, 4, 5))
    np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("shape", [(2, 1, 1), (3, 1, 1), (3,)])
def test_a_constant_array_is_none_of_the_images_whatever_its_length(shape):
    shift = np.arange(shape[0], dtype=np.float32).reshape(shape)
    ours, theirs = both(Refused(lambda x: F.mean(F.relu(x) + shift, axis=(2, 3))), (shape[0], 3, 3))
    np.testing.assert_allclose(theirs, ours, rtol=1e-6)


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x: F.sum(F.sin(x), axis=(2, 3)), "function Sin, which has no operator of ONNX here; those that have"),
        (lambda x: F.sum(F.relu(x - x.mean(axis=(2, 3), keepdims=True)), axis=(2, 3)), "without functions of Chainer"),
        (lambda x: x[:, :, 0, 0], "does not compute its logits by functions of Chainer"),
        (lambda x: F.relu(x)[:, :, 0, [0]], "by arrays, or None beside others"),
        (lambda x: F.relu(x)[:, np.array([1, 2]), 0, 0], "by arrays, or None beside others"),
        (lambda x: F.relu(x)[..., None, 0, 0], "by arrays, or None beside others"),
        (lambda x: F.reshape(F.sum(x, axis=3), (2, len(x), 12)), "Reshape differs between 2 and 3 images; write -1"),
        (lambda x: F.sum(x, axis=(2, 3)) / len(x), "the number of images, or on images without functions of Chainer"),
        (lambda x: F.sum(x, axis=(2, 3)) + np.full(3, len(x), np.float32), "Add differs between"),
        (lambda x: F.sum(x, axis=(2, 3)) + np.full((len(x), 3), 1 / len(x), np.float32), "Add gets an array that the"),
        (lambda x: F.sum(x, axis=(2, 3))[: len(x) - 1], "GetItem differs between"),
        (lambda x: F.concat([F.sum(x, axis=(2, 3))] * len(x)), "Concat differs between"),
        (lambda x: F.relu(F.sum(x, axis=(2, 3))) if len(x) > 2 else F.sum(x, axis=(2, 3)), "ReLU differs between"),
        (lambda x: [F.exp(h := F.sum(x, axis=(2, 3))), F.tanh(h)][len(x) - 2], "what it returns differs between"),
        (lambda x: F.broadcast_to(F.sum(x, axis=(0, 2, 3)), (len(x), 3)), "BroadcastTo differs between"),
        (lambda x: F.mean(x, axis=(0, 2)), "what it returns differs between"),
        (lambda x: F.sum(F.max_pooling_2d(x, 2, 4), axis=(2, 3)), "ONNX takes less than a window; write cover_all"),
    ],
)
def test_models_that_cannot_be_followed_are_refused(forward, message):
    with pytest.raises(InputRefused) as refusal:
        onnx_model(Refused(forward), (3, 8, 8), facts={})
    assert message in str(refusal.value)
