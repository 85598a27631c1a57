"""Networks for small images: number of weights, shapes, initial weights and formulas, by hand."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers.models import CifarResNet, SimpleCNN, SmallCNN, SmallResNet, WideResNet
from trainers.models.keyed_random import KeyedDropout
from trainers.runs.errors import UnfitImage

CIFAR = {20: 0.27e6, 32: 0.46e6, 44: 0.66e6, 56: 0.85e6}  # weights by depth: He et al. 2015, table 6
GREY = np.random.default_rng(0).standard_normal((6, 1, 8, 8)).astype(np.float32)


def built(component, channels=3):
    return component.build(num_classes=10, channels=channels, image_size=32)


def images(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def weights_of_cifar(depth):
    n = (depth - 2) // 6
    scales = 2 * (16 + 2 * n * (16 + 32 + 64))
    stages = 2 * n * 16 * 16 + (16 * 32 + (2 * n - 1) * 32 * 32) + (32 * 64 + (2 * n - 1) * 64 * 64)
    return 9 * (3 * 16 + stages) + scales + 64 * 10 + 10


def weights_of_wide(depth, widen):
    n, (a, b, c) = (depth - 4) // 6, (16 * widen, 32 * widen, 64 * widen)
    threes, ones, scales = 3 * 16, 0, 0
    for num_in, num_out in ((16, a), (a, b), (b, c)):
        threes += num_in * num_out + (2 * n - 1) * num_out * num_out
        ones += num_in * num_out if num_in != num_out else 0
        scales += num_in + (2 * n - 1) * num_out
    return 9 * threes + ones + 2 * (scales + c) + c * 10 + 10


SMALL_BLOCKS = (4 * 4 * 9 + 2 * 4) * 2 + (4 * 8 * 9 + 2 * 8) + (8 * 8 * 9 + 2 * 8) + (4 * 8 + 2 * 8)


@pytest.mark.parametrize(
    ("component", "by_hand", "published"),
    [
        (SmallCNN(width=4), 9 * (3 * 4 + 4 * 8 + 8 * 16) + 2 * (4 + 8 + 16) + 16 * 10 + 10, None),
        (SmallResNet(width=4, blocks=(1, 1)), 3 * 4 * 9 + 2 * 4 + SMALL_BLOCKS + 8 * 10 + 10, None),
        *((CifarResNet(depth=depth), weights_of_cifar(depth), number) for depth, number in CIFAR.items()),
        (CifarResNet(shortcut="projection"), weights_of_cifar(20) + 16 * 32 + 32 * 64 + 2 * (32 + 64), None),
        (WideResNet(depth=16, widen=4), weights_of_wide(16, 4), 2.7e6),
        (WideResNet(depth=10, widen=1), weights_of_wide(10, 1), None),
        (WideResNet(depth=22, widen=2), weights_of_wide(22, 2), None),
    ],
    ids=repr,
)
def test_number_of_weights_by_hand(component, by_hand, published):
    assert built(component).count_params() == by_hand
    if published:
        assert by_hand == pytest.approx(published, abs=0.05e6 if published > 1e6 else 0.005e6)


@pytest.mark.parametrize(
    ("component", "num_layers", "kind"),
    [
        *((SmallResNet(width=2, blocks=(n, n, n)), 6 * n + 2, "/W") for n in (1, 2, 3)),
        *((CifarResNet(depth=depth), depth, "/W") for depth in CIFAR),
        *((WideResNet(depth=depth, widen=2), depth, "conv") for depth in (10, 16, 28)),
    ],
    ids=repr,
)
def test_it_has_as_many_layers_as_its_name_says(component, num_layers, kind):
    paths = [path for path, _ in built(component).namedparams() if path.endswith("/W") and kind in path]
    without = "shortcut" if isinstance(component, SmallResNet) else " "
    assert sum(without not in path for path in paths) == num_layers


@pytest.mark.parametrize(
    ("component", "shapes"),
    [
        (SmallResNet(width=2, blocks=(1, 2, 1)), [(2, 32, 32), (4, 16, 16), (4, 16, 16), (8, 8, 8)]),
        (CifarResNet(), [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3),
        (WideResNet(widen=1), [(16, 32, 32)] * 2 + [(32, 16, 16)] * 2 + [(64, 8, 8)] * 2),
    ],
    ids=repr,
)
def test_every_stage_but_the_first_halves_the_image_and_doubles_the_channels(component, shapes):
    model = built(component)
    h, actual = model.conv1(np.zeros((1, 3, 32, 32), np.float32)), []
    for block in model.blocks:
        h = block(h)
        actual.append(h.shape[1:])
    assert actual == shapes


def test_convolutions_have_he_initial_weights():
    assert built(SmallResNet(width=64, blocks=(1,))).blocks[0].conv1.W.array.std() == pytest.approx(
        np.sqrt(2 / (64 * 9)), rel=0.02
    )
    assert built(CifarResNet()).blocks[7].conv1.W.array.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)
    wide = built(WideResNet()).blocks[2]  # by what they feed
    assert wide.conv1.W.array.std() == pytest.approx(np.sqrt(2 / (128 * 9)), rel=0.02)
    assert wide.shortcut_conv.W.array.std() == pytest.approx(np.sqrt(2 / 128), rel=0.05)


@pytest.mark.parametrize("component", [SmallResNet(width=16, zero_last_gamma=True), CifarResNet(zero_last_gamma=True)])
def test_zero_last_gamma_lets_every_block_start_as_its_shortcut(component):
    blocks, x = built(component).blocks, images(2, 16, 8, 8)
    assert all(not block.bn2.gamma.array.any() and (block.bn1.gamma.array == 1).all() for block in blocks)
    np.testing.assert_array_equal(blocks[0](x).array, np.maximum(x, 0))
    assert all(block.bn2.gamma.array.all() for block in built(CifarResNet()).blocks)


@pytest.mark.parametrize("component", [SmallCNN(dropout=0.5), WideResNet(depth=10, widen=1, dropout=0.3)])
def test_dropout_follows_the_keys_of_the_samples_and_rests_in_evaluation(component):
    network = built(component, channels=1)

    def logits(seed):
        with KeyedDropout(network, seed=seed, epochs=np.zeros(6, int), indices=np.arange(6)):
            return network(GREY).array

    np.testing.assert_array_equal(logits(0), logits(0))
    assert not np.array_equal(logits(0), logits(1))
    assert not np.array_equal(network(GREY).array, network(GREY).array)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(network(GREY).array, network(GREY).array)


@pytest.mark.parametrize("size", [4, 7, 33])
def test_a_small_cnn_pools_odd_sizes_up(size):
    with chainer.using_config("train", False):
        assert built(SmallCNN(width=2), channels=1)(np.zeros((1, 1, size, size), np.float32)).shape == (1, 10)


def test_first_stride_thins_the_first_convolution_and_changes_no_weight():
    plain, strided = (built(SmallCNN(first_stride=stride), channels=1) for stride in (1, 2))
    assert strided.count_params() == plain.count_params()
    with chainer.using_config("train", False):
        strided.conv1.W.array[...] = plain.conv1.W.array
        thinned = plain.conv1(GREY).array[:, :, ::2, ::2]
        np.testing.assert_allclose(strided.conv1(GREY).array, thinned, rtol=0, atol=1e-5)
        assert strided(GREY).shape == (6, 10)


def test_a_small_resnet_fits_a_handful_of_samples():
    images_NCHW, labels = images(16, 3, 8, 8), np.arange(16) % 10
    model = built(SmallResNet(width=8, blocks=(1, 1)))
    optimizer = chainer.optimizers.MomentumSGD(lr=0.1).setup(model)
    losses = []
    for _ in range(60):
        loss = F.softmax_cross_entropy(model(images_NCHW), labels)
        model.cleargrads()
        loss.backward()
        optimizer.update()
        losses.append(float(loss.array))
    assert losses[0] == pytest.approx(np.log(10), abs=0.5)
    assert losses[-1] < 0.1


def test_the_padded_shortcut_takes_every_other_pixel_and_adds_empty_channels():
    block, x = built(CifarResNet(zero_last_gamma=True)).blocks[3], images(2, 16, 7, 8)  # its branch starts at 0
    y = block(x).array
    assert y.shape == (2, 32, 4, 4)
    np.testing.assert_array_equal(y[:, :16], np.maximum(x, 0)[:, :, ::2, ::2])
    assert not y[:, 16:].any()
    ones = chainer.Variable(np.ones((1, 16, 4, 4), np.float32))
    F.sum(block(ones)).backward()
    kept = np.zeros((4, 4))
    kept[::2, ::2] = 1
    np.testing.assert_array_equal(ones.grad[0], np.broadcast_to(kept, (16, 4, 4)))


def test_a_wide_block_is_its_printed_formula():
    block, x = built(WideResNet(widen=2)).blocks[2], images(3, 32, 8, 8)
    assert block.projects

    def normalised(h):
        return (h - h.mean((0, 2, 3), keepdims=True)) / np.sqrt(h.var((0, 2, 3), keepdims=True) + 2e-5)

    activated = np.maximum(normalised(x), 0)
    h = F.convolution_2d(activated, block.conv1.W, stride=2, pad=1).array
    h = F.convolution_2d(np.maximum(normalised(h), 0), block.conv2.W, pad=1).array
    shortcut = np.einsum("oi,nihw->nohw", block.shortcut_conv.W.array[:, :, 0, 0], activated[:, :, ::2, ::2])
    np.testing.assert_allclose(block(x).array, h + shortcut, rtol=1e-4, atol=1e-4)


def test_where_the_channels_stay_a_wide_shortcut_is_the_image_itself():
    block, x = built(WideResNet(widen=1)).blocks[0], images(2, 16, 8, 8)
    block.conv2.W.array[...] = 0
    np.testing.assert_array_equal(block(x).array, x)


@pytest.mark.parametrize(
    ("component", "fields", "message"),
    [
        (SmallCNN, {"first_stride": 0}, "SmallCNN.first_stride must be a whole number >= 1, got 0"),
        (SmallCNN, {"first_stride": 1.5}, "SmallCNN.first_stride must be a whole number >= 1, got 1.5"),
        (SmallCNN, {"first_stride": True}, "SmallCNN.first_stride must be a whole number >= 1, got True"),
        (CifarResNet, {"depth": 18}, "CifarResNet.depth must be 20, 32, 44 or 56, got 18"),
        (CifarResNet, {"depth": True}, "CifarResNet.depth must be 20, 32, 44 or 56, got True"),
        (CifarResNet, {"zero_last_gamma": 0}, "CifarResNet.zero_last_gamma must be true or false, got 0"),
        (CifarResNet, {"shortcut": "A"}, "CifarResNet.shortcut must be identity_pad or projection, got 'A'"),
        (WideResNet, {"depth": 18}, "WideResNet.depth must be 6n + 4, got 18: the nearest is 16"),
        (WideResNet, {"depth": 4}, "WideResNet.depth must be a whole number >= 10, got 4"),
        (WideResNet, {"widen": 0}, "WideResNet.widen must be a whole number >= 1, got 0"),
        (WideResNet, {"dropout": 1}, "WideResNet.dropout must be < 1, got 1"),
    ],
)
def test_wrong_fields_are_refused(component, fields, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        component(**fields)
    assert str(refusal.value) == message


def test_a_simple_cnn_refuses_images_of_another_size_than_it_was_built_for():
    """29 to 31 pixels leave as many features behind two poolings as 28 do."""
    model = SimpleCNN(hidden=8).build(num_classes=3, channels=1, image_size=28)
    assert model(np.zeros((2, 1, 28, 28), np.float32)).shape == (2, 3)
    for height, width in ((29, 29), (28, 31), (32, 32)):
        with pytest.raises(
            UnfitImage, match=f"SimpleCNN was built for images of 28x28 pixels and got {height}x{width}"
        ):
            model(np.zeros((2, 1, height, width), np.float32))
