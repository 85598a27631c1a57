import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from trainers.models import ResNet18
from trainers.models.imagenet_networks import BasicBlock, BlurredConvolution2D, DroppedBranch, blurred
from trainers.models.keyed_random import KeyedDropout


def noise(*shape):
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def blocks_of(model):
    return [stage[name] for stage in (model.res2, model.res3, model.res4, model.res5) for name in stage.layer_names]


def test_a_dot_is_blurred_into_the_kernel():
    x = np.zeros((2, 3, 5, 5), np.float32)
    x[1, 2, 2, 2] = 16
    y = blurred(x).array
    assert y[1, 2].tolist() == [
        [0, 0, 0, 0, 0],
        [0, 1, 2, 1, 0],
        [0, 2, 4, 2, 0],
        [0, 1, 2, 1, 0],
        [0, 0, 0, 0, 0],
    ]
    assert y.sum() == 16


def test_a_plain_image_stays_plain_but_for_the_border():
    y = blurred(np.ones((1, 1, 4, 4), np.float32)).array[0, 0]
    assert y[1:3, 1:3].tolist() == [[1, 1], [1, 1]]
    assert y[0, 1:3].tolist() == [0.75, 0.75]
    assert y[0, 0] == 0.5625


def test_every_pixel_has_the_same_say_behind_a_blurred_stride():
    """Shift response: what a dot adds to a strided convolution, summed, for each of the places it can have."""

    def says(kind):
        convolution = kind(1, 1, 1, stride=2, nobias=True, initialW=1)
        x = np.zeros((16, 1, 9, 9), np.float32)
        for number in range(16):
            x[number, 0, 2 + number // 4, 2 + number % 4] = 1
        return convolution(x).array.sum(axis=(1, 2, 3)).reshape(4, 4)

    assert says(L.Convolution2D).tolist() == [[1, 0, 1, 0], [0, 0, 0, 0]] * 2
    assert says(BlurredConvolution2D).tolist() == [[0.25] * 4] * 4


def test_blurring_keeps_the_number_format_and_passes_the_gradient():
    assert blurred(np.ones((1, 2, 4, 4), np.float16)).dtype == np.float16
    x = chainer.Variable(np.ones((1, 1, 4, 4), np.float32))
    F.sum(blurred(x)).backward()
    np.testing.assert_array_equal(x.grad, blurred(x.array).array)  # the kernel is symmetric


def test_blur_pool_stands_before_the_strides_of_the_stages_only():
    model = ResNet18(blur_pool=True).build(num_classes=2, channels=3, image_size=64)
    blurring = {path for path, link in model.namedlinks() if isinstance(link, BlurredConvolution2D)}
    stages = ("res3", "res4", "res5")
    assert blurring == {f"/{stage}/a/{name}/conv" for stage in stages for name in ("conv1", "residual_conv")}
    plain = ResNet18().build(num_classes=2, channels=3, image_size=64)
    assert [path for path, _ in model.namedparams()] == [path for path, _ in plain.namedparams()]
    x, block = noise(2, 64, 8, 8), model.res3.a
    expected = F.convolution_2d(blurred(x), block.conv1.conv.W, stride=2, pad=1).array
    np.testing.assert_allclose(block.conv1.conv(x).array, expected, atol=1e-6)


def test_a_basic_block_is_its_printed_formula():
    block = BasicBlock(2, 4, stride=2)
    x = noise(3, 2, 8, 8)

    def normalised(h):
        return (h - h.mean((0, 2, 3), keepdims=True)) / np.sqrt(h.var((0, 2, 3), keepdims=True) + 2e-5)

    h = np.maximum(normalised(F.convolution_2d(x, block.conv1.conv.W, stride=2, pad=1).array), 0)
    h = normalised(F.convolution_2d(h, block.conv2.conv.W, pad=1).array)
    shortcut = np.einsum("oi,nihw->nohw", block.residual_conv.conv.W.array[:, :, 0, 0], x[:, :, ::2, ::2])
    np.testing.assert_allclose(block(x).array, np.maximum(h + normalised(shortcut), 0), rtol=1e-4, atol=1e-4)


def test_dropped_branches_grow_linearly_to_the_last_block():
    model = ResNet18(stochastic_depth=0.4).build(num_classes=2, channels=3, image_size=64)
    ratios = [block.conv2.activ.ratio for block in blocks_of(model)]
    assert ratios == pytest.approx([0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4])
    assert all(
        block.conv2.activ is None for block in blocks_of(ResNet18().build(num_classes=2, channels=3, image_size=64))
    )


def test_a_branch_is_dropped_whole_and_keeps_its_mean():
    h = DroppedBranch(0.25)(np.ones((20_000, 2, 1, 2), np.float32)).array
    assert (h == h[:, :1, :1, :1]).all()
    assert np.unique(h) == pytest.approx([0, 4 / 3])
    assert h.mean() == pytest.approx(1, abs=4 * np.sqrt(0.25 / 0.75 / 20_000))  # 4 standard errors


def test_a_branch_rests_in_evaluation():
    x = noise(3, 2, 4, 4)
    with chainer.using_config("train", False):
        assert DroppedBranch(0.9)(x) is x


def test_gradients_pass_the_kept_branches_only():
    x = chainer.Variable(np.ones((50, 1, 2, 2), np.float32))
    y = DroppedBranch(0.5)(x)
    F.sum(y).backward()
    np.testing.assert_array_equal(x.grad, y.array)
    assert set(np.unique(x.grad)) == {0, 2}


def dropped(model, samples, epoch=0, seed=0):
    """Which blocks are dropped for each of these samples: True where the block gives its shortcut alone."""
    seen = []
    with KeyedDropout(model, seed=seed, epochs=np.full(len(samples), epoch), indices=np.array(samples)):
        for block in blocks_of(model):
            if not block.projects:
                x = np.abs(noise(512, 512, 2, 2))[: len(samples), : block.conv1.conv.in_channels]
                y = block(x).array
                seen.append((y == x).all(axis=(1, 2, 3)))
    return np.array(seen).T


def test_what_is_dropped_for_a_sample_does_not_depend_on_the_samples_beside_it():
    """Worker invariance: a batch in one piece, in pieces of other sizes and in another order."""
    model = ResNet18(zero_last_gamma=False, stochastic_depth=0.9).build(num_classes=2, channels=3, image_size=64)
    whole = dropped(model, range(12))
    assert 0.2 < whole.mean() < 0.9
    assert len(np.unique(whole, axis=0)) > 4
    np.testing.assert_array_equal(np.concatenate([dropped(model, range(5)), dropped(model, range(5, 12))]), whole)
    np.testing.assert_array_equal(dropped(model, range(12)[::-1])[::-1], whole)
    assert not np.array_equal(dropped(model, range(12), epoch=1), whole)
    assert not np.array_equal(dropped(model, range(12), seed=1), whole)
