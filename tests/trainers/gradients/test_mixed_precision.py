"""Mixed precision is Chainer's own mixed16, with the float32 weights in the model; and how the loss scale moves."""

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L

from recipes.planning.division import divide
from recipes.schema import Evaluation, Precision
from trainers.gradients.mixed_precision import (
    HALVES,
    LossScale,
    computing,
    forward_in,
    half_type,
    overflow_expected,
    weights_in,
)
from trainers.models import ResNet18, SmallCNN, SmallResNet
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import KeyedDropout, draw_initial_weights

CHANNELS, CLASSES, SIZE = 3, 5, 8


def division(norm_span):
    return divide(global_batch_size=norm_span, norm_span=norm_span, workers=1, micro_batch_size=norm_span)


def images_and_labels(count=16, seed=0):
    random = np.random.RandomState(seed)
    images = random.normal(size=(count, CHANNELS, SIZE, SIZE)).astype(np.float32)
    return images, random.randint(0, CLASSES, count).astype(np.int32)


def built(component, dtype):
    with chainer.using_config("dtype", dtype):
        return component.build(num_classes=CLASSES, channels=CHANNELS, image_size=SIZE)


@pytest.mark.parametrize("component", [SmallCNN(width=4), SmallResNet(width=4)])
def test_three_updates_are_bit_for_bit_those_of_chainers_mixed16_with_float32_updates(component):
    scale, rate = 1024.0, 0.125
    theirs, ours = built(component, chainer.mixed16), built(component, np.dtype(np.float32))
    for (_, source), (_, target) in zip(sorted(theirs.namedparams()), sorted(ours.namedparams()), strict=True):
        target.array[...] = source.array  # float16 values, which Chainer's float32 copies begin with
    half = {path for path, parameter in theirs.namedparams() if parameter.dtype == np.float16}
    assert "/fc/W" in half
    assert "/bn1/gamma" not in half
    optimizers = [chainer.optimizers.MomentumSGD(lr=rate).setup(model) for model in (theirs, ours)]
    optimizers[0].use_fp32_update()
    forward = forward_in(ours, "mixed16")
    for seed in range(3):
        images, labels = images_and_labels(seed=seed)
        with chainer.using_config("train", True):
            their_loss = F.softmax_cross_entropy(F.cast(theirs(images.astype(np.float16)), np.float32), labels)
            loss = F.softmax_cross_entropy(forward(images), labels)
        theirs.cleargrads()
        their_loss.backward(loss_scale=scale)
        optimizers[0].update()
        ours.cleargrads()
        (loss * scale).backward()
        for parameter in ours.params():
            parameter.grad *= np.float32(1 / scale)
        optimizers[1].update()
        assert loss.array == their_loss.array
    for (path, one), (_, other) in zip(sorted(theirs.namedparams()), sorted(ours.namedparams()), strict=True):
        kept = one.update_rule._fp32_param.array if path in half else one.array
        np.testing.assert_array_equal(kept, other.array, err_msg=path)
        assert kept.dtype == other.dtype == np.float32


def test_forward_is_float16_inside_and_the_weights_are_float32_again_behind_it():
    model = built(SmallCNN(width=4), np.dtype(np.float32))
    parameters = {path: id(parameter) for path, parameter in model.namedparams()}
    seen = {}

    class Spy(chainer.LinkHook):
        def forward_postprocess(self, args):
            seen[args.link.name] = (args.args[0].dtype, args.out.dtype)

    with Spy():
        logits = forward_in(model, "mixed16")(images_and_labels()[0])
    assert logits.dtype == np.float32
    assert {name for name, dtypes in seen.items() if dtypes == (np.float16, np.float16)} >= {"conv1", "bn1", "fc"}
    assert {path: id(parameter) for path, parameter in model.namedparams()} == parameters
    assert {parameter.dtype for parameter in model.params()} == {np.dtype(np.float32)}


def test_weights_come_back_when_the_forward_fails_and_where_a_link_stands_in_two_places():
    shared = L.Linear(3, 3)
    model = chainer.Sequential(shared, shared, L.BatchNormalization(3))
    weight, seen = shared.W, []

    def forward():
        with weights_in(model, np.float16):
            seen.append((shared.W.dtype, model[2].gamma.dtype))
            raise RuntimeError("in the forward")

    with pytest.raises(RuntimeError, match="in the forward"):
        forward()
    assert seen == [(np.float16, np.float32)]
    assert shared.W is weight


@pytest.mark.parametrize("half", HALVES)
def test_layer_normalisation_computes_in_float32_between_values_of_16_bits(half):
    layer = L.LayerNormalization(6)
    model = chainer.Sequential(L.Linear(5, 6), layer, L.Linear(6, 4))
    x = np.random.RandomState(0).normal(size=(7, 5)).astype(np.float32)
    seen, gradients = [], []

    class Spy(chainer.LinkHook):
        def forward_postprocess(self, args):
            seen.append((args.link.gamma.dtype, args.args[0].dtype == args.out.dtype == half_type(half)))

    layer.add_hook(Spy())
    for compute in (half, "float32"):
        model.cleargrads()
        with computing(compute, model.device):
            y = forward_in(model, compute)(x)
            F.sum(y**2 * np.arange(28, dtype=np.float32).reshape(7, 4)).backward()
        gradients.append([parameter.grad for _, parameter in sorted(model.namedparams())])
    assert seen == [(np.float32, True), (np.float32, False)]
    assert "forward" not in vars(layer)
    for one, other in zip(*gradients, strict=True):
        assert one.dtype == np.float32
        np.testing.assert_allclose(
            one, other, rtol=0, atol=np.abs(other).max() * (0.05 if half == "bfloat16" else 0.01)
        )


def test_float32_and_tf32_are_the_model_itself():
    model = built(SmallCNN(width=4), np.dtype(np.float32))
    assert forward_in(model, "float32") is forward_in(model, "tf32") is model


def test_tf32_changes_nothing_on_a_cpu():
    before = chainer.config.use_cudnn_tensor_core
    with computing("tf32", chainer.get_device("@numpy")):
        assert chainer.config.use_cudnn_tensor_core == before


def with_pooling_and_dropout():
    first, last = L.Convolution2D(CHANNELS, 8, 3, pad=1), L.Linear(128, CLASSES)
    return chainer.Sequential(first, F.relu, lambda h: F.max_pooling_2d(h, 2), F.dropout, last)


@pytest.mark.parametrize("component", [SmallCNN(width=4), SmallResNet(width=4), None])
def test_gradients_in_bfloat16_are_those_of_float32_up_to_8_bits(component):
    pytest.importorskip("ml_dtypes")
    model = built(component, np.dtype(np.float32)) if component else with_pooling_and_dropout()
    draw_initial_weights(model, seed=0)
    (images, labels), results = images_and_labels(64), []
    for compute in ("float32", "bfloat16"):
        keyed = KeyedDropout(model, seed=0, epochs=[0] * len(images), indices=range(len(images)))
        with chainer.using_config("train", True), computing(compute, model.device), keyed:
            loss = F.softmax_cross_entropy(forward_in(model, compute)(images), labels)
            model.cleargrads()
            loss.backward()
        assert {parameter.grad.dtype for parameter in model.params()} == {np.dtype(np.float32)}
        gradients = np.concatenate([parameter.grad.ravel() for _, parameter in sorted(model.namedparams())])
        results.append((float(loss.array), gradients))
    assert chainer.config.type_check
    (expected_loss, expected), (loss, gradient) = results
    assert loss == pytest.approx(expected_loss, rel=1e-2)
    assert 0 < np.linalg.norm(gradient - expected) < 0.2 * np.linalg.norm(expected)


@pytest.mark.parametrize("component", [SmallCNN(width=4), SmallResNet(width=4), ResNet18(blur_pool=True)])
@pytest.mark.parametrize("half", HALVES)
def test_norm_groups_in_16_bits_are_those_of_float32_up_to_rounding(component, half):
    if half == "bfloat16":
        pytest.importorskip("ml_dtypes")
    images, labels = images_and_labels()
    losses = []
    for compute in ("float32", half):
        model = component.build(num_classes=CLASSES, channels=CHANNELS, image_size=None)
        for path, parameter in sorted(model.namedparams()):
            parameter.array[...] = np.random.RandomState(len(path)).normal(0.05, 0.05, parameter.shape)
        groups = NormGroups(Evaluation())
        groups.install(model)
        groups.num_groups = 2
        forward = forward_in(model, compute)
        with chainer.using_config("train", True), computing(compute, model.device):
            losses.append(float(F.softmax_cross_entropy(forward(images), labels).array))
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]


def test_the_scale_multiplies_the_mean_loss_of_a_norm_group_by_a_power_of_two():
    mixed = LossScale(Precision(compute="mixed16", loss_scale=4096))
    assert mixed.factor(division(64)) == 64.0
    assert mixed.factor(division(96)) == 64.0, "of 64, the largest power of two up to the span"
    assert mixed.factor(division(1)) == 4096.0


def test_the_scale_is_halved_by_an_overflow_and_doubled_after_good_updates():
    mixed = LossScale(Precision(compute="mixed16", loss_scale=8, double_after=3))
    scales = []
    for good in (True, True, False, True, True, True, True, True, False, False, True):
        if good:
            mixed.updated()
        else:
            mixed.overflowed()
        scales.append(mixed.scale)
    assert scales == [8, 8, 4, 4, 4, 8, 8, 8, 4, 2, 2]


def test_a_restored_scale_goes_on_where_it_was():
    settings = Precision(compute="mixed16", loss_scale=8, double_after=3)
    first, second = (LossScale(settings) for _ in range(2))
    for _ in range(5):
        first.updated()
    second.state = first.state
    for mixed in (first, second):
        mixed.updated()
        assert (mixed.scale, mixed.halvings) == (32.0, 0)


def test_an_overflow_is_an_infinity_and_not_a_warning():
    model = built(SmallCNN(width=2), np.dtype(np.float32))
    images, labels = images_and_labels()
    forward = forward_in(model, "mixed16")
    with chainer.using_config("train", True), overflow_expected():
        model.cleargrads()
        (F.softmax_cross_entropy(forward(images), labels) * 2.0**30).backward()
    assert not np.isfinite(model.fc.W.grad).all()


@pytest.mark.parametrize("wrong", [0, 3, 65535, -2])
def test_a_scale_that_is_no_power_of_two_is_refused(wrong):
    with pytest.raises(ValueError, match=r"Precision.loss_scale must be a power of two such as 65536"):
        Precision(compute="mixed16", loss_scale=wrong)


def test_parameters_of_group_normalisation_stay_float32():
    model = chainer.Sequential(L.Linear(4, 4), L.GroupNormalization(2, 4))
    model[1](np.zeros((1, 4, 2, 2), np.float32))  # its parameters get their shapes
    with weights_in(model, np.float16):
        assert [each.dtype for each in (model[0].W, model[1].gamma, model[1].beta)] == [np.float16, *[np.float32] * 2]
