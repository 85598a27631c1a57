"""ResNet-18 to 152: what their names and papers say of them. The large ones are built once and never run."""

import chainer
import chainer.functions as F
import chainercv.links
import numpy as np
import pytest

from trainers import models
from trainers.models.keyed_random import draw_initial_weights

# Published parameters with 1,000 classes; blocks of the four stages (He et al. 2015, table 1); arrays.
PUBLISHED = {
    18: (11_689_512, (2, 2, 2, 2), 62),
    34: (21_797_672, (3, 4, 6, 3), 110),
    50: (25_557_032, (3, 4, 6, 3), 161),
    101: (44_549_160, (3, 4, 23, 3), 314),
    152: (60_192_808, (3, 8, 36, 3), 467),
}


def built(depth, **fields):
    return getattr(models, f"ResNet{depth}")(**fields).build(num_classes=1000, channels=3, image_size=224)


@pytest.fixture(scope="module", params=PUBLISHED)
def depth_and_model(request):
    """The weights are not drawn."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(chainer.initializers.Normal, "__call__", lambda self, array: array.fill(0.01))
        return request.param, built(request.param)


def weights_by_formula(depth):
    """Convolutions k*k*in*out and two values a channel for their normalisation, stage by stage."""
    num_in, total = 64, 3 * 64 * 49 + 2 * 64
    for stage, num_blocks in enumerate(PUBLISHED[depth][1]):
        width = 64 * 2**stage
        num_out = width if depth < 50 else 4 * width
        for place in range(num_blocks):
            if depth < 50:
                layers = [(9, num_in, width), (9, width, width)]
            else:
                layers = [(1, num_in, width), (9, width, width), (1, width, num_out)]
            if place == 0 and num_in != num_out:
                layers.append((1, num_in, num_out))
            total += sum(area * a * b + 2 * b for area, a, b in layers)
            num_in = num_out
    return total + num_in * 1000 + 1000


def blocks_of(model):
    return [[stage[name] for name in stage.layer_names] for stage in (model.res2, model.res3, model.res4, model.res5)]


def test_it_has_the_published_number_of_weights(depth_and_model):
    depth, model = depth_and_model
    assert model.count_params() == PUBLISHED[depth][0] == weights_by_formula(depth)
    assert len(list(model.params())) == PUBLISHED[depth][2]
    text = f"{PUBLISHED[depth][0] / 1e6:.3f} million parameters with 1,000 classes, in {PUBLISHED[depth][2]} arrays"
    component = getattr(models, f"ResNet{depth}")
    assert text in component.__doc__
    assert f" {sum(PUBLISHED[depth][1])} b" in component.__doc__


def test_it_has_as_many_layers_with_weights_as_its_name_says(depth_and_model):
    depth, model = depth_and_model
    layers = [path for path, _ in model.namedparams() if path.endswith("/W") and "residual_conv" not in path]
    assert len(layers) == depth
    assert tuple(len(stage) for stage in blocks_of(model)) == PUBLISHED[depth][1]


def test_every_stage_but_the_first_has_one_stride_on_its_first_3x3(depth_and_model):
    depth, model = depth_and_model
    for number, stage in enumerate(blocks_of(model)):
        strided = {
            f"{place}{path}"
            for place, block in enumerate(stage)
            for path, link in block.namedlinks()
            if getattr(link, "stride", 1) == (2, 2)
        }
        name = "conv1" if depth < 50 else "conv2"
        assert strided == ({f"0/{name}/conv", "0/residual_conv/conv"} if number else set())
        assert all(getattr(block, name).conv.ksize == 3 for block in stage)


def test_only_the_last_scale_of_a_block_starts_at_zero(depth_and_model):
    depth, model = depth_and_model
    last = "conv2" if depth < 50 else "conv3"
    gammas = {path: array.array for path, array in model.namedparams() if path.endswith("gamma")}
    zero = {path for path, gamma in gammas.items() if not gamma.any()}
    assert zero == {path for path in gammas if path.endswith(f"/{last}/bn/gamma")}
    assert len(zero) == sum(PUBLISHED[depth][1])
    assert all((gammas[path] == 1).all() for path in gammas.keys() - zero)


@pytest.mark.parametrize("depth", [18, 50])
def test_a_block_with_zero_last_gamma_starts_as_its_shortcut(depth):
    model = built(depth)
    x = np.random.default_rng(0).standard_normal((2, 64 if depth < 50 else 256, 8, 8)).astype(np.float32)
    np.testing.assert_array_equal(model.res2.b1(x).array, np.maximum(x, 0))
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(model.res3.a(x).array, F.relu(model.res3.a.residual_conv(x)).array)


def test_the_last_scale_of_a_block_may_start_elsewhere():
    model = built(18, zero_last_gamma=False, last_gamma=0.4138)
    gammas = {path: array for path, array in model.namedparams() if path.endswith("gamma")}
    last = {path for path in gammas if path.endswith("/conv2/bn/gamma")}
    draw_initial_weights(model, seed=3)  # as a run begins: by the initialisers
    assert all((gammas[path].array == np.float32(0.4138)).all() for path in last)
    assert all((gammas[path].array == 1).all() for path in gammas.keys() - last)


@pytest.mark.parametrize("depth", [18, 50])  # of either kind of block
def test_initial_weights_are_goyals(depth):
    model = built(depth)
    linear, block = (model.fc, model.res2.a.conv1) if depth < 50 else (model.fc6, model.res2.a.conv2)
    assert linear.W.array.std() == pytest.approx(0.01, rel=0.01)
    assert not linear.b.array.any()
    assert block.conv.W.array.std() == pytest.approx(np.sqrt(2 / (64 * 9)), rel=0.02)
    assert model.res3.a.residual_conv.conv.W.array.std() == pytest.approx(
        np.sqrt(2 / (128 if depth < 50 else 512)), rel=0.05
    )
    assert all(link.b is None for link in model.links() if hasattr(link, "ksize"))


def test_building_leaves_the_running_statistics_alone(depth_and_model):
    norm = depth_and_model[1].conv1.bn
    assert not norm.avg_mean.any()
    assert (norm.avg_var == 1).all()


@pytest.mark.parametrize("depth", [18, 50])
def test_grey_images_are_served_in_the_type_of_chainers_config(depth):
    with chainer.using_config("dtype", np.float64), chainer.using_config("train", False), chainer.no_backprop_mode():
        model = getattr(models, f"ResNet{depth}")(zero_last_gamma=False)
        model = model.build(num_classes=2, channels=1, image_size=32)
        assert model.conv1.conv.W.shape == (64, 1, 7, 7)
        assert model(np.zeros((1, 1, 32, 32))).dtype == np.float64
    assert all(gamma.array.all() for path, gamma in model.namedparams() if path.endswith("gamma"))


@pytest.mark.parametrize("depth", [18, 34])
def test_the_basic_networks_shrink_an_image_as_chainercvs_do(depth):
    model = getattr(models, f"ResNet{depth}")().build(num_classes=3, channels=1, image_size=None)
    model.pick = ("conv1", "pool1", "res2", "res3", "res4", "res5", "fc")
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        shapes = [h.shape[1:] for h in model(np.zeros((1, 1, 64, 64), np.float32))]
    assert shapes == [(64, 32, 32), (64, 16, 16), (64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2), (3,)]


@pytest.mark.slow
def test_resnet101_gives_what_chainercvs_gives():
    """Chainer has no other ResNet with the stride on the 3x3; the softmax behind the logits is ChainerCV's default."""
    model = models.ResNet101(zero_last_gamma=False).build(num_classes=7, channels=3, image_size=64)
    other = chainercv.links.ResNet101(n_class=7, arch="fb", initialW=chainer.initializers.Zero(), fc_kwargs={})
    images_NCHW = np.random.default_rng(0).standard_normal((2, 3, 64, 64)).astype(np.float32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        other(images_NCHW)  # gives its layers their sizes
        other.copyparams(model)
        np.testing.assert_allclose(other(images_NCHW).array, F.softmax(model(images_NCHW)).array, atol=1e-5)


def test_a_basic_network_is_chainers_parts_in_a_row():
    """An independent forward of ResNet-18 in evaluation, from its parameters alone."""
    model = models.ResNet18(zero_last_gamma=False).build(num_classes=4, channels=3, image_size=32)
    weights = {path: array.array for path, array in model.namedparams()}

    def layer(x, path, stride, pad):
        h = F.convolution_2d(x, weights[f"{path}/conv/W"], stride=stride, pad=pad)
        gamma, beta = weights[f"{path}/bn/gamma"], weights[f"{path}/bn/beta"]
        return F.fixed_batch_normalization(h, gamma, beta, np.zeros_like(beta), np.ones_like(beta))

    images_NCHW = np.random.default_rng(0).standard_normal((2, 3, 32, 32)).astype(np.float32)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        h = F.max_pooling_2d(F.relu(layer(images_NCHW, "/conv1", 2, 3)), 3, 2)
        for stage in range(2, 6):
            for block in ("a", "b1"):
                stride = 2 if stage > 2 and block == "a" else 1
                path = f"/res{stage}/{block}"
                branch = layer(F.relu(layer(h, f"{path}/conv1", stride, 1)), f"{path}/conv2", 1, 1)
                projected = f"{path}/residual_conv/conv/W" in weights
                h = F.relu(branch + (layer(h, f"{path}/residual_conv", stride, 0) if projected else h))
        logits = F.linear(F.average(h, axis=(2, 3)), weights["/fc/W"], weights["/fc/b"])
        np.testing.assert_allclose(model(images_NCHW).array, logits.array, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("depth", PUBLISHED)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"zero_last_gamma": 1}, "zero_last_gamma must be true or false, got 1"),
        ({"zero_last_gamma": False, "last_gamma": -1}, "last_gamma must be >= 0, got -1"),
        (
            {"last_gamma": 0.5},
            "last_gamma must be null where zero_last_gamma is true, got 0.5; write zero_last_gamma: false",
        ),
        ({"blur_pool": "yes"}, "blur_pool must be true or false, got 'yes'"),
        ({"stochastic_depth": 1.0}, "stochastic_depth must be < 1, got 1.0"),
        ({"stochastic_depth": -0.1}, "stochastic_depth must be >= 0, got -0.1"),
    ],
)
def test_wrong_fields_are_refused_by_the_name_of_the_model(depth, fields, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        getattr(models, f"ResNet{depth}")(**fields)
    assert str(refusal.value) == f"ResNet{depth}.{message}"
