from dataclasses import dataclass
from typing import ClassVar

import chainer
import chainer.links as L
import numpy as np
import pytest

from trainers import optimizers
from trainers.models import ResNet50
from trainers.optimizers import SGD, MomentumSGD
from trainers.optimizers.weight_decay import decay_parameters, parameters_without_decay


class Derived(L.BatchNormalization):
    """Stands for the batch normalisation of an updater."""


def network():
    """One link of every kind that the rules tell apart."""
    inner = chainer.Chain(conv=L.Convolution2D(2, 3, 3), bn=Derived(3), upwards=L.Deconvolution2D(3, 2, 2))
    last = chainer.Chain(norm=L.LayerNormalization(4), fc=L.Linear(4, 2), swish=L.Swish((4,)))
    return chainer.Chain(bn=L.BatchNormalization(2), inner=inner, groups=L.GroupNormalization(2, 4), last=last)


NORM = {f"/{path}/{name}" for path in ("bn", "inner/bn", "groups", "last/norm") for name in ("gamma", "beta")}
BIAS = {"/inner/conv/b", "/inner/upwards/b", "/last/fc/b"}


def initialised_network():
    model = network()
    model.groups(np.zeros((1, 4, 2, 2), np.float32))
    for parameter in model.params():
        parameter.array[...] = 1
        parameter.grad = np.zeros_like(parameter.array)
    return model


def setup(component, model):
    optimizer = component.build().setup(model)
    decay_parameters(optimizer, component)
    return optimizer


@pytest.mark.parametrize(
    ("no_decay", "expected"),
    [((), set()), (("norm",), NORM), (("bias",), BIAS), (("norm", "bias"), NORM | BIAS)],
)
def test_named_parameters_are_the_ones_exempt(no_decay, expected):
    assert parameters_without_decay(network(), no_decay) == expected


def test_a_parameter_of_another_link_called_beta_decays():
    paths = {path for path, _ in network().namedparams()}
    assert "/last/swish/beta" in paths - parameters_without_decay(network(), ("norm", "bias"))


@pytest.mark.parametrize("no_decay", [(), ("norm",), ("bias",), ("norm", "bias")])
def test_one_update_without_gradient_shrinks_exactly_the_others(no_decay):
    model = initialised_network()
    optimizer = setup(SGD(weight_decay=0.5, no_decay=no_decay), model)
    optimizer.lr = 0.25
    optimizer.update()
    exempt = parameters_without_decay(model, no_decay)
    for path, parameter in model.namedparams():
        assert (parameter.array == (1 if path in exempt else 1 - 0.25 * 0.5)).all(), path


@dataclass(frozen=True, kw_only=True)
class Own:
    """An optimizer whose `decay` is that of an average."""

    decay: float = 0.9
    weight_decay: float | None = 0.5
    rate_attribute: ClassVar[str] = "lr"

    def build(self):
        return chainer.optimizers.SGD(0.25)


@pytest.mark.parametrize(("weight_decay", "left"), [(0.5, 1 - 0.25 * 0.5), (0.0, 1), (None, 1)])
def test_a_number_as_decay_is_no_form_of_weight_decay(weight_decay, left):
    model = initialised_network()
    setup(Own(weight_decay=weight_decay), model).update()
    assert all((parameter.array == left).all() for parameter in model.params())


def test_no_weight_decay_leaves_no_hook_behind():
    model = initialised_network()
    optimizer = setup(MomentumSGD(), model)
    optimizer.lr = 1.0
    optimizer.update()
    assert all((parameter.array == 1).all() for parameter in model.params())


def test_decay_goes_through_the_momentum():
    model = initialised_network()
    optimizer = setup(MomentumSGD(momentum=0.5, weight_decay=0.1), model)
    optimizer.lr = 1.0
    optimizer.update()
    model.last.fc.W.grad[...] = 0  # the decay is added to the gradient in place
    optimizer.update()
    # w: 1, then 0.9; v: -0.1, then -0.05 - 0.09
    np.testing.assert_allclose(model.last.fc.W.array, 0.9 - 0.14, rtol=1e-6)


def test_resnet50_decays_its_54_weights_and_its_bias():
    model = ResNet50().build(num_classes=10, channels=3, image_size=224)
    exempt = parameters_without_decay(model, ("norm",))
    decayed = {path for path, _ in model.namedparams()} - exempt
    assert len(exempt) == 106
    assert len(decayed) == 55
    assert "/fc6/b" in decayed
    assert {path.rpartition("/")[2] for path in decayed} == {"W", "b"}


@pytest.mark.parametrize("name", optimizers.__all__)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight_decay": -1e-4}, "weight_decay must be >= 0, got -0.0001"),
        ({"weight_decay": "1e-4"}, "weight_decay must be a finite number, got '1e-4'"),
        ({"weight_decay": float("inf")}, "weight_decay must be a finite number, got inf"),
        ({"no_decay": ["norm"]}, "no_decay must be a tuple of 'norm' and 'bias', each at most once, got ['norm']"),
        ({"no_decay": "norm"}, "no_decay must be a tuple of 'norm' and 'bias', each at most once, got 'norm'"),
        ({"no_decay": ("bn",)}, "no_decay must be a tuple of 'norm' and 'bias', each at most once, got ('bn',)"),
        ({"no_decay": ("norm", "norm")}, "no_decay must be a tuple of 'norm' and 'bias', each at most once"),
    ],
)
def test_wrong_decay_is_refused_by_every_optimizer(name, fields, message):
    with pytest.raises(ValueError, match="must be") as refusal:
        getattr(optimizers, name)(**fields)
    assert f"{name}.{message}" in str(refusal.value)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (getattr(optimizers, name), field)
        for name in optimizers.__all__
        for field in ("momentum", "beta1", "beta2", "mu1", "mu2")
        if field in getattr(optimizers, name).__dataclass_fields__
    ],
)
@pytest.mark.parametrize("value", [-0.1, 1, "0.9", float("nan")])
def test_coefficients_outside_0_to_1_are_refused(make, field, value):
    with pytest.raises(ValueError, match=rf"{make.__name__}\.{field} must be"):
        make(**{field: value})


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("Adam", "eps", 0, "> 0"),
        ("Lamb", "eps", 0, "> 0"),
        ("Lamb", "bias_correction", 1, "true or false"),
        ("Lars", "eps", -1e-9, ">= 0"),
        ("Lars", "trust_coefficient", 0, "> 0"),
        ("Lars", "decay_in_trust", 1, "true or false"),
        ("Lars", "rate", "beside", "inside or outside"),
        ("Lars", "nesterov", 0, "true or false"),
        ("Lars", "clip", 1, "true or false"),
        ("Muon", "iterations", 0, "a whole number >= 1"),
        ("Muon", "iterations", 101, "at most 100"),
        ("RmspropWarmup", "eps", 0, "> 0"),
        ("RmspropWarmup", "rmsprop_learning_rate", -1e-9, ">= 0"),
        ("RmspropWarmup", "beta_center", float("nan"), "a finite number"),
        ("RmspropWarmup", "beta_period", 0, "> 0"),
        ("RmspropWarmup", "transition", "smooth", "continuous or printed"),
    ],
)
def test_other_fields_outside_their_range_are_refused(name, field, value, message):
    with pytest.raises(ValueError, match=rf"^{name}\.{field} must be {message}, got {value!r}"):
        getattr(optimizers, name)(**{field: value})


def test_scale_and_shift_of_a_normalisation_that_is_no_class_of_chainer_are_exempt():
    """As of `chainermn.links.MultiNodeBatchNormalization`: it keeps running statistics."""
    own = chainer.Link()
    with own.init_scope():
        own.gamma, own.beta = chainer.Parameter(np.ones(2)), chainer.Parameter(np.zeros(2))
    own.avg_mean = np.zeros(2)
    assert parameters_without_decay(chainer.Chain(bn=own), ("norm",)) == {"/bn/gamma", "/bn/beta"}
