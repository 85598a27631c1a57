"""VGG-16 and AlexNet-BN, mostly at the smallest image they take: their first linear layer grows with its area."""

import re

import chainer
import chainer.functions as F
import chainercv.links
import numpy as np
import pytest

from trainers.models import VGG16, AlexNetBN
from trainers.models.keyed_random import KeyedDropout
from trainers.runs.errors import UnfitImage


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def vgg():
    return VGG16().build(num_classes=10, channels=3, image_size=32)


@pytest.fixture(scope="module")
def normed_vgg():
    return VGG16(batch_norm=True).build(num_classes=10, channels=3, image_size=32)


@pytest.fixture(scope="module")
def alexnet():
    return AlexNetBN().build(num_classes=10, channels=3, image_size=67)


def vgg_weights_by_formula(image_size, num_classes, *, batch_norm=False):
    widths = [3, 64, 64, 128, 128, 256, 256, 256] + [512] * 6
    convolutions = sum(9 * a * b for a, b in zip(widths, widths[1:], strict=False))
    beside = sum(widths[1:]) * (2 if batch_norm else 1)  # scale and shift, or a bias
    first = (image_size // 32) ** 2 * 512 * 4096 + 4096
    return convolutions + beside + first + 4096 * 4096 + 4096 + 4096 * num_classes + num_classes


@pytest.mark.slow
def test_vgg16_has_the_published_number_of_weights(vgg, normed_vgg):
    assert vgg_weights_by_formula(224, 1000) == 138_357_544
    assert vgg.count_params() == vgg_weights_by_formula(32, 10)
    assert normed_vgg.count_params() == vgg_weights_by_formula(32, 10, batch_norm=True)


def alexnet_weights_by_formula(last_side, num_classes):
    convolutions = 121 * 3 * 96 + 25 * 48 * 256 + 9 * (256 * 384 + 192 * 384 + 192 * 256)
    scales = 2 * (96 + 256 + 384 + 384 + 256)
    first = last_side**2 * 256 * 4096 + 4096
    return convolutions + scales + first + 4096 * 4096 + 4096 + 4096 * num_classes + num_classes


def test_alexnet_has_the_number_of_weights_of_its_layers(alexnet):
    assert alexnet.count_params() == alexnet_weights_by_formula(1, 10)
    assert alexnet_weights_by_formula(6, 1000) == 60_966_600


@pytest.mark.slow  # 138 and 61 million normal numbers
@pytest.mark.parametrize(("component", "expected"), [(VGG16(), 138_357_544), (AlexNetBN(), 60_966_600)])
def test_at_their_own_image_size_they_have_these_numbers_of_weights(component, expected):
    assert component.build(num_classes=1000, channels=3, image_size=None).count_params() == expected


def test_they_have_as_many_layers_with_weights_as_their_papers_say(vgg, normed_vgg, alexnet):
    counts = [sum(path.endswith("/W") for path, _ in model.namedparams()) for model in (vgg, normed_vgg, alexnet)]
    assert counts == [16, 16, 8]


def test_vgg16_gives_what_chainercvs_gives(vgg):
    other = chainercv.links.VGG16(n_class=10, initialW=chainer.initializers.Zero())
    images_NCHW = noise(2, 3, 32, 32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        other(images_NCHW)  # gives its layers their sizes
        ours = {path.replace("/fc/", "/fc8/"): array for path, array in vgg.namedparams()}
        assert set(ours) == {path for path, _ in other.namedparams()}
        for path, array in other.namedparams():
            array.array[...] = ours[path].array
        other.pick = "fc8"
        logits = other(images_NCHW).array
        assert np.ptp(logits) > 1e-3
        np.testing.assert_allclose(vgg(images_NCHW).array, logits, rtol=1e-5, atol=1e-6)


def test_alexnet_is_what_its_definition_says(alexnet):
    """An independent forward in evaluation: each group of a convolution computed by itself."""
    weights = {path: array.array for path, array in alexnet.namedparams()}

    def layer(x, number, stride, pad, groups):
        kernels = np.split(weights[f"/conv{number}/conv/W"], groups)
        parts = np.split(x, groups, axis=1)
        h = np.concatenate([F.convolution_2d(*p, None, stride, pad).array for p in zip(parts, kernels, strict=True)], 1)
        return np.maximum(h / np.sqrt(np.float32(1 + 1e-4)), 0)  # running statistics 0 and 1, scale 1, shift 0

    h = noise(2, 3, 67, 67)
    images_NCHW = h
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        h = F.max_pooling_2d(layer(h, 1, 4, 0, 1), 3, 2).array
        h = F.max_pooling_2d(layer(h, 2, 1, 2, 2), 3, 2).array
        h = layer(layer(layer(h, 3, 1, 1, 1), 4, 1, 1, 2), 5, 1, 1, 2)
        h = F.max_pooling_2d(h, 3, 2).array.reshape(2, -1)
        for name in ("fc6", "fc7"):
            h = np.maximum(h @ weights[f"/{name}/W"].T + weights[f"/{name}/b"], 0)
        logits = h @ weights["/fc/W"].T + weights["/fc/b"]
        assert np.ptp(logits) > 1e-3
        np.testing.assert_allclose(alexnet(images_NCHW).array, logits, rtol=1e-4, atol=1e-6)


def test_feature_maps_of_alexnet_by_hand(alexnet):
    shapes, h = [], noise(1, 3, 227, 227)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        for name in ("conv1", "pool1", "conv2", "pool2", "conv3", "conv4", "conv5", "pool5"):
            h = alexnet[name](h)
            shapes.append(h.shape[1:3])
    sides = [55, 27, 27, 13, 13, 13, 13, 6]  # (227 - 11) / 4 + 1, then (side - 3) / 2 + 1
    assert shapes == list(zip([96, 96, 256, 256, 384, 384, 256, 256], sides, strict=True))


def test_initial_weights_are_those_of_the_definitions(vgg, normed_vgg, alexnet):
    assert vgg.conv4_2.conv.W.array.std() == pytest.approx(np.sqrt(2 / (512 * 9)), rel=0.01)
    assert vgg.fc7.W.array.std() == pytest.approx(0.01, rel=0.01)
    assert vgg.fc.W.array.std() == pytest.approx(0.01, rel=0.02)
    assert not any(array.array.any() for path, array in vgg.namedparams() if path.endswith("/b"))
    assert all(link.b is None for path, link in normed_vgg.namedlinks() if path.endswith("/conv"))
    assert all(link.b is None for path, link in alexnet.namedlinks() if path.endswith("/conv"))
    assert alexnet.conv3.conv.W.array.std() == pytest.approx(0.01, rel=0.01)
    assert alexnet.conv3.bn.eps == 1e-4
    assert alexnet.fc6.W.array.std() == pytest.approx(0.005, rel=0.01)
    assert (alexnet.fc6.b.array == np.float32(0.1)).all()
    assert (alexnet.fc7.b.array == np.float32(0.1)).all()
    assert alexnet.fc.W.array.std() == pytest.approx(0.01, rel=0.02)
    assert not alexnet.fc.b.array.any()


def test_half_of_both_hidden_layers_is_dropped_by_the_keys_of_the_samples(alexnet):
    images_NCHW = noise(4, 3, 67, 67)

    def kept(name, seed):
        """Which of the values above 0 are left."""
        alexnet.pick = (f"{name}_relu", f"{name}_dropout")
        try:
            with KeyedDropout(alexnet, seed=seed, epochs=np.zeros(4, int), indices=np.arange(4)):
                before, behind = (h.array for h in alexnet(images_NCHW))
        finally:
            alexnet.pick = None
        np.testing.assert_allclose(behind[behind != 0], 2 * before[behind != 0], rtol=1e-6)
        return (behind != 0)[before > 0]

    for name in ("fc6", "fc7"):
        assert kept(name, 0).mean() == pytest.approx(0.5, abs=0.03)
    np.testing.assert_array_equal(kept("fc6", 0), kept("fc6", 0))
    assert not np.array_equal(kept("fc6", 0), kept("fc6", 1))


@pytest.mark.parametrize("size", [64, 33, (32, 40)])
def test_an_image_of_another_size_is_refused_by_the_sizes(vgg, size):
    height, width = size if isinstance(size, tuple) else (size, size)
    message = f"VGG16 was built for images of 32x32 pixels and got {height}x{width}: its first linear layer takes every"
    with pytest.raises(UnfitImage, match=re.escape(message)):  # told without a traceback
        vgg(noise(1, 3, height, width))


@pytest.mark.parametrize(("component", "size"), [(VGG16(), 31), (AlexNetBN(), 38)])
def test_images_too_small_for_the_poolings_are_refused_when_built(component, size):
    message = f"{type(component).__name__} needs larger images: nothing is left of {size}x{size} pixels"
    with pytest.raises(ValueError, match=message):
        component.build(num_classes=2, channels=1, image_size=size)


def test_the_smallest_grey_image_of_alexnet_leaves_one_pixel():
    model = AlexNetBN().build(num_classes=2, channels=1, image_size=39)  # 8, 4, 2 and 1 behind conv1 and the poolings
    assert model.fc6.W.shape == (4096, 256)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert model(noise(1, 1, 39, 39)).shape == (1, 2)


def test_batch_norm_must_be_a_flag():
    with pytest.raises(ValueError, match=r"^VGG16\.batch_norm must be true or false, got 1$"):
        VGG16(batch_norm=1)
