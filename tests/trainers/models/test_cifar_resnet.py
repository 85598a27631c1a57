import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers.models import CifarResNet

DEPTHS = {20: 0.27e6, 32: 0.46e6, 44: 0.66e6, 56: 0.85e6}  # He et al. 2015, table 6


def built(**fields):
    return CifarResNet(**fields).build(num_classes=10, channels=3, image_size=32)


@pytest.mark.parametrize("depth", DEPTHS)
def test_it_has_as_many_weights_as_the_paper_says(depth):
    n = (depth - 2) // 6
    scales = 2 * (16 + 2 * n * (16 + 32 + 64))
    stages = 2 * n * 16 * 16 + (16 * 32 + (2 * n - 1) * 32 * 32) + (32 * 64 + (2 * n - 1) * 64 * 64)
    by_hand = 9 * (3 * 16 + stages) + scales + 64 * 10 + 10
    assert built(depth=depth).count_params() == by_hand
    assert by_hand == pytest.approx(DEPTHS[depth], abs=0.005e6)


@pytest.mark.parametrize("depth", DEPTHS)
def test_it_has_as_many_layers_with_weights_as_its_name_says(depth):
    assert sum(path.endswith("/W") for path, _ in built(depth=depth).namedparams()) == depth


def test_projections_are_two_more_convolutions_with_normalisation():
    projections = 16 * 32 + 32 * 64 + 2 * (32 + 64)
    assert built(shortcut="projection").count_params() == built().count_params() + projections


def test_stages_halve_the_image_and_double_the_channels():
    model = built()
    h = F.relu(model.conv1(np.zeros((1, 3, 32, 32), np.float32)))
    shapes = []
    for block in model.blocks:
        h = block(h)
        shapes.append(h.shape[1:])
    assert shapes == [(16, 32, 32)] * 3 + [(32, 16, 16)] * 3 + [(64, 8, 8)] * 3


def test_the_padded_shortcut_takes_every_other_pixel_and_adds_empty_channels():
    block = built(zero_last_gamma=True).blocks[3]  # 16 to 32 channels; its branch starts at 0
    x = np.random.default_rng(0).standard_normal((2, 16, 7, 8)).astype(np.float32)
    y = block(x).array
    assert y.shape == (2, 32, 4, 4)
    np.testing.assert_array_equal(y[:, :16], np.maximum(x, 0)[:, :, ::2, ::2])
    assert not y[:, 16:].any()


def test_gradients_pass_the_padded_shortcut():
    block = built(zero_last_gamma=True).blocks[3]
    x = chainer.Variable(np.ones((1, 16, 4, 4), np.float32))
    F.sum(block(x)).backward()
    kept = np.zeros((4, 4))
    kept[::2, ::2] = 1
    np.testing.assert_array_equal(x.grad[0], np.broadcast_to(kept, (16, 4, 4)))


def test_zero_last_gamma_lets_every_block_start_as_its_shortcut():
    blocks = built(zero_last_gamma=True).blocks
    assert all(not block.bn2.gamma.array.any() and (block.bn1.gamma.array == 1).all() for block in blocks)
    x = np.random.default_rng(0).standard_normal((2, 16, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(blocks[0](x).array, np.maximum(x, 0))
    assert all(block.bn2.gamma.array.all() for block in built().blocks)


def test_convolutions_have_he_initial_weights():
    assert built().blocks[7].conv1.W.array.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"depth": 18}, "CifarResNet.depth must be 20, 32, 44 or 56, got 18"),
        ({"depth": True}, "CifarResNet.depth must be 20, 32, 44 or 56, got True"),
        ({"zero_last_gamma": 0}, "CifarResNet.zero_last_gamma must be true or false, got 0"),
        ({"shortcut": "A"}, "CifarResNet.shortcut must be identity_pad or projection, got 'A'"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        CifarResNet(**fields)
    assert str(refusal.value) == message
