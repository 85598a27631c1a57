"""Chainer's nodes over our CUDA kernels, compiled for the CPU, give what they give over NumPy's."""

import chainer
import chainer.functions as F
import numpy as np
import pytest
from chainer.functions.pooling.average_pooling_2d import AveragePooling2D, AveragePooling2DGrad
from mpi4py import MPI

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers import kernels
from trainers.kernels.chainer_nodes import variable_of
from trainers.kernels.fused_normalization import Normalization, covers
from trainers.losses import SoftmaxCrossEntropy
from trainers.models import ResNet50, SmallResNet
from trainers.models.batch_norm import NormGroupBatchNormalization, NormGroups
from trainers.models.keyed_random import draw_initial_weights

DIVISION = divide(global_batch_size=12, norm_span=4, workers=1, micro_batch_size=12)


@pytest.fixture(autouse=True)
def _numpys_kernels():
    before = kernels.in_use()
    kernels.use("numpy")
    yield
    kernels.use(before)


def one_update(component, *, size, dtype, second=False, division=DIVISION, team=None):
    """Loss, gradients and statistics of an update; with `second` of the gradient's own norm."""
    random = np.random.RandomState(0)
    model = component.build(num_classes=5, channels=3, image_size=size)
    draw_initial_weights(model, seed=0)
    for parameter in model.params():
        parameter.array = parameter.array.astype(dtype)
    groups = NormGroups(Evaluation(norm_statistics="pooled"))
    groups.install(model)
    groups.begin_update(division, team)
    groups.begin_micro_batch(division.micro_batches(0)[0])
    images = chainer.Variable(random.normal(2.0, 1.0, (12, 3, size, size)).astype(dtype))
    with chainer.using_config("train", True):
        labels = random.randint(0, 5, 12).astype(np.int32)
        loss = SoftmaxCrossEntropy(label_smoothing=0.1).build()(model(images), labels)
        if second:
            (slope,) = chainer.grad([loss], [images], enable_double_backprop=True)
            loss = F.sum(slope**2)
        model.cleargrads()
        loss.backward()
    actual = {path: parameter.grad for path, parameter in model.namedparams() if parameter.grad is not None}
    actual["layers"] = np.zeros(sum(isinstance(link, NormGroupBatchNormalization) for link in model.links()))
    return {"loss": loss.array, **actual, "statistics": groups.take_statistics()}


def assert_alike(actual, expected, *, bound):
    assert actual.keys() == expected.keys()
    for path, values in expected.items():
        np.testing.assert_allclose(actual[path], values, rtol=0, atol=bound * np.abs(values).max(), err_msg=path)


@pytest.mark.parametrize(
    ("component", "size", "second"),
    [
        (SmallResNet(width=8), 8, False),
        (SmallResNet(width=8), 8, True),
        pytest.param(ResNet50(), 16, False, marks=pytest.mark.slow),
    ],
)
def test_an_update_and_the_gradient_of_a_gradient(cuda_on_cpu, monkeypatch, component, size, second):
    expected = one_update(component, size=size, dtype=np.float64, second=second)
    launched, applied = cuda_on_cpu(), []
    original = Normalization.forward
    monkeypatch.setattr(Normalization, "forward", lambda *given: applied.append(0) or original(*given))
    actual = one_update(component, size=size, dtype=np.float64, second=second)
    assert len(applied) == len(actual["layers"])
    assert "cross_entropy" in launched
    if not second:
        assert launched.count("totals") == launched.count("slopes") == len(actual["layers"])
    assert_alike(actual, expected, bound=1e-9)


def test_a_group_whose_statistics_a_team_puts_together(cuda_on_cpu):
    division = divide(global_batch_size=12, norm_span=12, workers=1, micro_batch_size=12)
    given = {"size": 8, "dtype": np.float64, "division": division}
    expected = one_update(SmallResNet(width=8), **given)
    assert_alike(one_update(SmallResNet(width=8), **given, team=MPI.COMM_SELF), expected, bound=1e-9)
    cuda_on_cpu()
    assert_alike(one_update(SmallResNet(width=8), **given, team=MPI.COMM_SELF), expected, bound=1e-9)


def test_average_pooling_and_relu_alone(cuda_on_cpu):
    random = np.random.RandomState(0)
    x = random.normal(size=(3, 7, 9, 8))

    def derivatives():
        variable = chainer.Variable(x)
        y = F.relu(F.average_pooling_2d(F.max_pooling_2d(variable, 2, 1, 1), 3, 2, 1))
        first = chainer.grad([y], [variable], enable_double_backprop=True)
        return [y.array, first[0].array, chainer.grad([F.sum(first[0] ** 2)], [variable])]

    expected = derivatives()
    cuda_on_cpu()
    for one, other in zip(derivatives()[:2], expected[:2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


def test_the_node_of_average_pooling_on_a_gpu_is_given_our_kernels(cuda_on_cpu, monkeypatch):
    x = np.random.RandomState(0).normal(size=(3, 7, 9, 8))

    def derivatives():
        variable = chainer.Variable(x)
        y = F.average_pooling_2d(variable, 3, 2, 1)
        y.grad = y.array**2
        y.backward()
        return y.array, variable.grad

    expected, launched = derivatives(), cuda_on_cpu()
    for node in (AveragePooling2D, AveragePooling2DGrad):
        monkeypatch.setattr(node, "forward_cpu", node.forward_gpu)
    for one, other in zip(derivatives(), expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    assert launched == ["average_pooled", "pooling_gradient"]


def test_one_node_takes_no_array_that_lies_in_another_order(cuda_on_cpu):
    cuda_on_cpu()
    x, gamma = np.ones((4, 8, 3, 3), np.float32), np.ones(8, np.float32)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert covers(last, gamma)
    assert covers(x[:, :, 0, 0].copy(), gamma)
    for refused in (x, x[:, :, 0, 0].T.copy().T, last.astype(np.float64), last[:, :, 0]):
        assert not covers(refused, gamma)


def test_a_score_is_that_over_numpys_kernels(cuda_on_cpu):
    model = SmallResNet(width=8).build(num_classes=5, channels=3, image_size=8)
    draw_initial_weights(model, seed=0)
    NormGroups(Evaluation()).install(model)
    images = np.random.RandomState(0).normal(2.0, 1.0, (7, 3, 8, 8)).astype(np.float32)
    with chainer.using_config("train", False):
        expected = model(images).array
        launched = cuda_on_cpu()
        with chainer.no_backprop_mode():
            actual = model(images).array
    layers = sum(isinstance(link, NormGroupBatchNormalization) for link in model.links())
    assert launched.count("normalized") == layers > 5
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_variable_made_in_one_call_is_that_of_chainer(requires_grad):
    array = np.ones((2, 3), "f")
    ours = variable_of(array, requires_grad=requires_grad)
    theirs = chainer.Variable._init_unchecked(array, requires_grad=requires_grad, is_chainerx_array=False)
    for one, other, own in ((ours, theirs, {"_data", "_node"}), (ours.node, theirs.node, {"_variable", "shape"})):
        assert vars(one).keys() == vars(other).keys()
        assert {name for name, value in vars(one).items() if value is not vars(other)[name]} == own
    assert ours.array is array
    assert ours.node.shape == (2, 3)
    assert ours.node.get_variable_or_none() is ours
