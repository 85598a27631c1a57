import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers.models import WideResNet
from trainers.models.keyed_random import KeyedDropout


def built(**fields):
    return WideResNet(**fields).build(num_classes=10, channels=3, image_size=32)


@pytest.mark.parametrize(("depth", "widen", "published"), [(16, 4, 2.7e6), (10, 1, None), (22, 2, None)])
def test_number_of_weights_by_hand(depth, widen, published):
    n, (a, b, c) = (depth - 4) // 6, (16 * widen, 32 * widen, 64 * widen)
    threes = 3 * 16
    ones = scales = 0
    for num_in, num_out in ((16, a), (a, b), (b, c)):
        threes += num_in * num_out + (2 * n - 1) * num_out * num_out
        ones += num_in * num_out if num_in != num_out else 0
        scales += num_in + (2 * n - 1) * num_out
    by_hand = 9 * threes + ones + 2 * (scales + c) + c * 10 + 10
    assert built(depth=depth, widen=widen).count_params() == by_hand
    if published:
        assert by_hand == pytest.approx(published, abs=0.05e6)


@pytest.mark.parametrize("depth", [10, 16, 28])
def test_it_has_as_many_convolutions_as_its_name_says(depth):
    model = built(depth=depth, widen=2)
    assert sum(path.endswith("/W") and "conv" in path for path, _ in model.namedparams()) == depth


def test_stages_halve_the_image_and_double_the_channels():
    h = np.zeros((1, 16, 32, 32), np.float32)
    shapes = []
    for block in built(widen=1).blocks:
        h = block(h)
        shapes.append(h.shape[1:])
    assert shapes == [(16, 32, 32)] * 2 + [(32, 16, 16)] * 2 + [(64, 8, 8)] * 2


def test_a_block_is_its_printed_formula():
    block = built(widen=2).blocks[2]
    assert block.projects
    x = np.random.default_rng(0).standard_normal((3, 32, 8, 8)).astype(np.float32)

    def normalised(h):
        return (h - h.mean((0, 2, 3), keepdims=True)) / np.sqrt(h.var((0, 2, 3), keepdims=True) + 2e-5)

    activated = np.maximum(normalised(x), 0)
    h = F.convolution_2d(activated, block.conv1.W, stride=2, pad=1).array
    h = F.convolution_2d(np.maximum(normalised(h), 0), block.conv2.W, pad=1).array
    shortcut = np.einsum("oi,nihw->nohw", block.shortcut_conv.W.array[:, :, 0, 0], activated[:, :, ::2, ::2])
    np.testing.assert_allclose(block(x).array, h + shortcut, rtol=1e-4, atol=1e-4)


def test_where_the_channels_stay_the_shortcut_is_the_image_itself():
    block = built(widen=1).blocks[0]
    block.conv2.W.array[...] = 0
    x = np.random.default_rng(0).standard_normal((2, 16, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(block(x).array, x)


def test_convolutions_have_he_initial_weights_by_what_they_feed():
    block = built().blocks[2]
    assert block.conv1.W.array.std() == pytest.approx(np.sqrt(2 / (128 * 9)), rel=0.02)
    assert block.shortcut_conv.W.array.std() == pytest.approx(np.sqrt(2 / 128), rel=0.05)


def test_dropout_follows_the_keys_of_the_samples_and_rests_in_evaluation():
    network = built(depth=10, widen=1, dropout=0.3)
    images_NCHW = np.random.default_rng(0).standard_normal((4, 3, 8, 8)).astype(np.float32)

    def logits(seed):
        with KeyedDropout(network, seed=seed, epochs=np.zeros(4, int), indices=np.arange(4)):
            return network(images_NCHW).array

    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.array_equal(logits(0), logits(1))
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(network(images_NCHW).array, network(images_NCHW).array)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 18}, "WideResNet.depth must be 6n + 4, got 18: the nearest is 16"),
        ({"depth": 4}, "WideResNet.depth must be a whole number >= 10, got 4"),
        ({"widen": 0}, "WideResNet.widen must be a whole number >= 1, got 0"),
        ({"dropout": 1}, "WideResNet.dropout must be < 1, got 1"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        WideResNet(**fields)
    assert str(refusal.value) == message
