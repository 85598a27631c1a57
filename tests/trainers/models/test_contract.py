"""Every model keeps the promises that the updater, the planner and the draws of initial weights rely on."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from trainers import models
from trainers.losses import BinaryCrossEntropy

# Another setting than the default, and an image of the size the model is made for.
CASES = {
    "AlexNetBN": (models.AlexNetBN(), 3, 67),
    "CifarResNet": (models.CifarResNet(depth=32, shortcut="projection"), 3, 16),
    "ResNet101": (models.ResNet101(zero_last_gamma=False, stochastic_depth=0.1), 3, 64),
    "ResNet152": (models.ResNet152(zero_last_gamma=False, blur_pool=True), 3, 64),
    "ResNet18": (models.ResNet18(zero_last_gamma=False, blur_pool=True, stochastic_depth=0.1), 1, 64),
    "ResNet34": (models.ResNet34(zero_last_gamma=False), 3, 64),
    "ResNet50": (models.ResNet50(zero_last_gamma=False), 3, 64),
    "SimpleCNN": (models.SimpleCNN(widths=(3, 5), hidden=7, dropout=0.3), 1, 9),
    "SmallCNN": (models.SmallCNN(width=4, dropout=0.3), 1, 8),
    "SmallResNet": (models.SmallResNet(width=4, blocks=(2, 1)), 3, 32),
    "VGG16": (models.VGG16(batch_norm=True), 3, 32),
    "WideResNet": (models.WideResNet(depth=10, widen=2, dropout=0.3), 1, 16),
}
# Their own tests count them, and compare what they compute where that is cheap.
LARGE = ("ResNet101", "ResNet152", "VGG16")
NAMES = [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in sorted(CASES)]


def images(channels, size, num_samples=4):
    return np.random.default_rng(0).standard_normal((num_samples, channels, size, size)).astype(np.float32)


@pytest.fixture(scope="module", params=NAMES)
def built(request):
    component, channels, size = CASES[request.param]
    np.random.seed(0)  # the initialisers draw from it
    return component.build(num_classes=5, channels=channels, image_size=size), images(channels, size)


def test_no_model_is_missing_here():
    missing = {*models.__all__} - {*CASES}
    assert not missing, f"give {', '.join(sorted(missing))} a small setting in CASES above"
    assert {*CASES} <= {*models.__all__}


def test_images_become_logits(built):
    model, images_NCHW = built
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        logits = model(images_NCHW).array
    assert logits.shape == (4, 5)
    assert logits.dtype == np.float32
    assert (logits < 0).any()
    assert not np.allclose(logits.sum(axis=1), 1)


def test_the_head_has_a_bias_that_a_loss_may_set(built):
    model, images_NCHW = built
    head = getattr(model, "fc", None) or model[model.pick]
    before = head.b.array.copy()
    try:
        with chainer.using_config("train", False), chainer.no_backprop_mode():
            logits = model(images_NCHW).array
            BinaryCrossEntropy(head_bias=-7.0).initialize(model)
            np.testing.assert_allclose(model(images_NCHW).array, logits - before - 7, atol=1e-4)
    finally:
        head.b.array[...] = before


def test_every_parameter_is_initialised_and_knows_how(built):
    for path, parameter in built[0].namedparams(include_uninit=True):
        assert parameter.is_initialized, path
        assert parameter.dtype == np.float32, path
        assert isinstance(parameter.initializer, chainer.Initializer), path


def test_initial_arrays_are_what_their_initialisers_give(built):
    for path, parameter in built[0].namedparams():
        again = np.empty_like(parameter.array)
        parameter.initializer(again)
        spread, errors = parameter.array.std(), 6 / np.sqrt(again.size)  # 6 standard errors of a difference
        assert np.isclose(again.std(), spread, rtol=errors, atol=1e-7), path
        assert np.isclose(again.mean(), parameter.array.mean(), atol=6 * errors * spread + 1e-7), path


def test_every_parameter_gets_a_finite_gradient(built):
    model, images_NCHW = built
    model.cleargrads()
    F.softmax_cross_entropy(model(images_NCHW), np.arange(4)).backward()
    for path, parameter in model.namedparams():
        assert np.isfinite(parameter.grad).all(), path
        assert parameter.grad.any(), path


@pytest.mark.parametrize("name", NAMES)
def test_building_twice_gives_the_same_paths_and_shapes(name):
    component, channels, size = CASES[name]
    first, second = (component.build(num_classes=5, channels=channels, image_size=size) for _ in range(2))
    shapes = [{path: array.shape for path, array in model.namedparams()} for model in (first, second)]
    assert shapes[0] == shapes[1]


def test_image_size_of_none_is_served(built):
    component, channels, _ = CASES["SmallResNet"]
    assert component.build(num_classes=5, channels=channels, image_size=None).count_params() > 0


@pytest.mark.parametrize("name", ["SmallCNN", "SmallResNet"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [8, 28, 32])
def test_small_models_take_grey_and_colour_images_of_these_sizes(name, channels, size):
    model = getattr(models, name)(width=2).build(num_classes=10, channels=channels, image_size=size)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        assert model(images(channels, size)).shape == (4, 10)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (models.ResNet50, {"zero_last_gamma": 1}, "ResNet50.zero_last_gamma must be true or false, got 1"),
        (models.SmallCNN, {"width": 0}, "SmallCNN.width must be a whole number >= 1, got 0"),
        (models.SmallCNN, {"width": 16.0}, "SmallCNN.width must be a whole number >= 1, got 16.0"),
        (models.SmallCNN, {"dropout": 1.0}, "SmallCNN.dropout must be < 1, got 1.0"),
        (models.SmallCNN, {"dropout": "0.1"}, "SmallCNN.dropout must be a finite number, got '0.1'"),
        (models.SmallResNet, {"width": True}, "SmallResNet.width must be a whole number >= 1, got True"),
        (models.SmallResNet, {"blocks": ()}, "SmallResNet.blocks must be a tuple of at least one number"),
        (models.SmallResNet, {"blocks": [1]}, "SmallResNet.blocks must be a tuple of at least one number"),
        (models.SmallResNet, {"blocks": (1, 0)}, "SmallResNet.blocks must be a whole number >= 1, got 0"),
        (models.SmallResNet, {"zero_last_gamma": None}, "SmallResNet.zero_last_gamma must be true or false"),
    ],
)
def test_wrong_arguments_are_refused(make, arguments, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        make(**arguments)
    assert message in str(refusal.value)
