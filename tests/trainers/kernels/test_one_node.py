"""Normalisation, sum and ReLU in one node, and gradients without nodes, have the bits of Chainer's many nodes."""

import chainer
import chainer.functions as F
import numpy as np
import pytest

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.models import SmallCNN, SmallResNet, WideResNet, batch_norm
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights

DIVISION = divide(global_batch_size=12, norm_span=4, workers=1, micro_batch_size=12)

pytestmark = pytest.mark.usefixtures("each_kind")


def one_update(component, *, dtype, second=False):
    """Every gradient and statistic of an update of three norm groups, and the nodes that forward made."""
    random = np.random.RandomState(0)
    model = component.build(num_classes=5, channels=3, image_size=12)
    draw_initial_weights(model, seed=0)
    for parameter in model.params():
        parameter.array = parameter.array.astype(dtype)
    groups = NormGroups(Evaluation())
    groups.install(model)
    groups.begin_update(DIVISION)
    groups.begin_micro_batch(DIVISION.micro_batches(0)[0])
    images = chainer.Variable(random.normal(2.0, 1.0, (12, 3, 12, 12)).astype(dtype))
    with chainer.using_config("train", True), Names() as names:
        loss = F.softmax_cross_entropy(model(images), random.randint(0, 5, 12).astype(np.int32))
    model.cleargrads()
    with Names() as backward_names:
        loss.backward(enable_double_backprop=second)
    found = {path: parameter.grad for path, parameter in model.namedparams()}
    found |= {"statistics": groups.take_statistics(), "loss": loss.array, "images": images.grad}
    return found, names.seen, backward_names.seen


class Names(chainer.FunctionHook):
    """The labels of the nodes that are computed."""

    def __init__(self):
        self.seen = []

    def forward_preprocess(self, function, in_data):
        self.seen.append(type(function).__name__)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("component", [SmallResNet(width=8), SmallCNN(width=8), WideResNet(depth=10, widen=1)])
def test_one_node_has_the_bits_of_many(monkeypatch, component, dtype, assert_as_exact):
    found, names, backward = one_update(component, dtype=dtype)
    assert "Normalization" in names
    assert not {"BatchNormalization", "ReLU"} & {*names}
    assert not {"Deconvolution2DFunction", "Convolution2DGradW"} & {*backward}
    monkeypatch.setattr(batch_norm, "covers", lambda *arrays: False)
    expected, names, backward = one_update(component, dtype=dtype, second=True)
    assert "BatchNormalization" in names
    assert "Normalization" not in names
    assert {"Deconvolution2DFunction", "Convolution2DGradW"} <= {*backward}
    assert found.keys() == expected.keys()
    for path, values in expected.items():
        assert_as_exact(found[path], values, dtype=dtype, path=path)


@pytest.mark.parametrize("wanted", [(0, 1, 2), (0,), (1,), (2,), (0, 2), (1, 2)])
def test_a_convolution_computes_the_gradients_that_are_wanted(wanted):
    random = np.random.RandomState(0)
    arrays = [random.normal(size=shape) for shape in ((3, 4, 7, 6), (5, 4, 3, 2), (5,))]

    def gradients(second):
        variables = [chainer.Variable(a) if i in wanted else a for i, a in enumerate(arrays)]
        F.sum(F.convolution_2d(*variables, stride=2, pad=1) ** 2).backward(enable_double_backprop=second)
        return [variables[i].grad for i in wanted]

    for one, other in zip(gradients(False), gradients(True), strict=True):
        np.testing.assert_array_equal(one, other)
