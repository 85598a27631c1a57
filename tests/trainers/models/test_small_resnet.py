import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers.models import SmallResNet


def built(**fields):
    return SmallResNet(**fields).build(num_classes=10, channels=3, image_size=32)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_equal_stages_are_as_deep_as_the_networks_of_the_paper(n):
    model = built(width=2, blocks=(n, n, n))
    layers = [path for path, array in model.namedparams() if path.endswith("/W") and "shortcut" not in path]
    assert len(layers) == 6 * n + 2


def test_number_of_weights_by_hand():
    model = built(width=4, blocks=(1, 1))
    stem = 3 * 4 * 9 + 2 * 4
    first = 2 * (4 * 4 * 9 + 2 * 4)
    second = (4 * 8 * 9 + 2 * 8) + (8 * 8 * 9 + 2 * 8) + (4 * 8 + 2 * 8)
    assert model.count_params() == stem + first + second + 8 * 10 + 10


def test_every_stage_but_the_first_halves_the_image():
    model = built(width=2, blocks=(1, 2, 1))
    h = F.relu(model.conv1(np.zeros((1, 3, 32, 32), np.float32)))
    sizes = []
    for block in model.blocks:
        h = block(h)
        sizes.append(h.shape[1:])
    assert sizes == [(2, 32, 32), (4, 16, 16), (4, 16, 16), (8, 8, 8)]


def test_convolutions_have_he_initial_weights():
    weights = built(width=64, blocks=(1,)).blocks[0].conv1.W.array
    assert weights.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)


def test_zero_last_gamma_lets_each_block_start_as_its_shortcut():
    block = built(width=4, blocks=(1,), zero_last_gamma=True).blocks[0]
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(block(x).array, np.maximum(x, 0))
    assert block.bn1.gamma.array.tolist() == [1] * 4


def test_it_fits_a_handful_of_samples():
    images_NCHW = np.random.default_rng(0).standard_normal((16, 3, 8, 8)).astype(np.float32)
    labels = np.arange(16) % 10
    model = built(width=8, blocks=(1, 1))
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
