"""A normalisation that waits for its ReLU: plain Chainer code gets one node, and every other use the values it had."""

import copy
import pickle

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.kernels.fused_normalization import Pending
from trainers.models.batch_norm import NormGroups

DIVISION = divide(global_batch_size=12, norm_span=4, workers=1, micro_batch_size=12)

pytestmark = pytest.mark.usefixtures("each_kind")


class Network(chainer.Chain):
    """Two convolutions with normalisation; `NormGroups` is installed."""

    def __init__(self):
        super().__init__()
        random = np.random.RandomState(1)
        with self.init_scope():
            for name in ("conv", "other_conv"):
                weights = random.normal(size=(4, 3, 3, 3)).astype(np.float32)
                setattr(self, name, L.Convolution2D(3, 4, 3, pad=1, nobias=True, initialW=weights))
            self.bn, self.other_bn = L.BatchNormalization(4), L.BatchNormalization(4)
        self.bn.gamma.array[...] = [0.5, 1.0, -2.0, 1.5]
        self.groups = NormGroups(Evaluation())
        self.groups.install(self)
        self.groups.begin_update(DIVISION)
        self.groups.begin_micro_batch(DIVISION.micro_batches(0)[0])


def computed(h):
    """The same variable, computed now: what follows makes nodes of its own."""
    assert h.array is not None
    assert type(h) is chainer.Variable
    return h


def results(expression, *, at_once):
    """Value, gradients and statistics of expression(network, x, of), where `of` is given each normalisation."""
    network, x = Network(), chainer.Variable(np.random.RandomState(2).normal(size=(12, 3, 6, 7)).astype(np.float32))
    with chainer.using_config("train", True):
        y = expression(network, x, computed if at_once else lambda h: h)
    F.sum(y**2).backward()
    return [y.array, x.grad, *(p.grad for _, p in sorted(network.namedparams())), network.groups.take_statistics()], y


def nodes(y):
    """Names of the nodes that y was computed by, without what is common to all cases."""
    actual, waiting = [], [y.creator_node]
    while waiting:
        node = waiting.pop()
        if node is not None:
            actual.append(type(node).__name__)
            waiting += [each.creator_node for each in node.inputs]
    return sorted(actual)


def in_steps(net, x, of):
    """As ChainerCV's blocks are written: names are bound again."""
    h = net.conv(x)
    h = of(net.bn(h))
    shortcut = of(net.other_bn(net.other_conv(x)))
    h += shortcut
    return F.relu(h)


ONE = {
    "relu": (lambda net, x, of: F.relu(of(net.bn(net.conv(x)))), 1),
    "no relu": (lambda net, x, of: of(net.bn(net.conv(x))), 1),
    "sum": (lambda net, x, of: F.relu(of(net.bn(net.conv(x))) + of(net.other_bn(net.other_conv(x)))), 2),
    "in steps": (in_steps, 2),
}


@pytest.mark.parametrize("case", ONE)
def test_plain_code_is_one_node_with_the_bits_of_many(case):
    expression, count = ONE[case]
    actual, y = results(expression, at_once=False)
    assert nodes(y) == ["ConvolutionNormalization"] * count
    expected, _ = results(expression, at_once=True)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def with_convolution(net, x, of):
    h = net.conv(x)
    return F.relu(of(net.bn(h))) * F.sigmoid(h)


def with_convolution_before(net, x, of):
    h = net.conv(x)
    z = F.sigmoid(h)
    h = of(net.bn(h))
    return F.relu(h) * z


def normalised_twice(net, x, of):
    h = net.conv(x)
    return F.relu(of(net.bn(h))) + F.relu(of(net.other_bn(h)))


def summand_added_again(net, x, of):
    h = of(net.bn(net.conv(x)))
    y = h + net.other_conv(x)
    return F.relu(h + y) + F.relu(y + h)


OTHERS = {
    "sigmoid": lambda net, x, of: F.sigmoid(of(net.bn(net.conv(x)))),
    "number": lambda net, x, of: of(net.bn(net.conv(x))) + 1.0,
    "pixel": lambda net, x, of: F.relu(of(net.bn(net.conv(x)))[:, :, 1:, ::2]),
    "itself": lambda net, x, of: (lambda h: F.relu(h + h))(of(net.bn(net.conv(x)))),
    "broadcast": lambda net, x, of: F.relu(of(net.bn(net.conv(x))) + np.ones((12, 4, 1, 1), "f")),
    "three": lambda net, x, of: F.relu(of(net.bn(net.conv(x))) + of(net.other_bn(net.other_conv(x))) + x.array[:, :1]),
    "array": lambda net, x, of: F.relu(x.array.sum(axis=1, keepdims=True).repeat(4, axis=1) + of(net.bn(net.conv(x)))),
    "sum alone": lambda net, x, of: of(net.bn(net.conv(x))) + of(net.other_bn(net.other_conv(x))),
    "convolution used": with_convolution,
    "convolution used before": with_convolution_before,
    "normalised twice": normalised_twice,
    "summand added again": summand_added_again,
    "used before relu": lambda net, x, of: (lambda h: F.sigmoid(h) * F.relu(h))(of(net.bn(net.conv(x)))),
}


@pytest.mark.parametrize("case", OTHERS)
def test_any_other_use_has_the_bits_that_it_had(case):
    actual, expected = (results(OTHERS[case], at_once=at_once)[0] for at_once in (False, True))
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(one, other)


AGAIN = {
    "used after relu": lambda net, x, of: (lambda h: F.relu(h) * F.sigmoid(h))(of(net.bn(net.conv(x)))),
    "relu twice": lambda net, x, of: (lambda h: F.relu(h) * F.sigmoid(F.relu(h)))(of(net.bn(net.conv(x)))),
    "summand used": lambda net, x, of: (lambda h: F.relu(h + x.array[:, :1].repeat(4, 1)) * h)(of(net.bn(net.conv(x)))),
}


@pytest.mark.parametrize("case", AGAIN)
def test_a_use_after_relu_is_computed_again_and_counted_once(case):
    (*actual, seen), (*expected, once) = (results(AGAIN[case], at_once=at_once)[0] for at_once in (False, True))
    np.testing.assert_array_equal(seen, once)
    for one, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def test_gradients_of_gradients_pass_it():
    def second(at_once):
        def expression(net, x, of):
            y = F.relu(of(net.bn(net.conv(x))) + x[:, :1] * np.ones((1, 4, 1, 1), "f"))
            (slope,) = chainer.grad([F.sum(y**3)], [x], enable_double_backprop=True)
            return slope

        return results(expression, at_once=at_once)[0]

    for one, other in zip(second(False), second(True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())


def test_a_normalisation_that_nothing_uses_is_in_the_statistics():
    network, x = Network(), np.random.RandomState(2).normal(size=(12, 3, 6, 7)).astype(np.float32)
    with chainer.using_config("train", True):
        unused = network.bn(network.conv(x))
    assert type(unused) is Pending
    assert network.groups.take_statistics().any()


@pytest.mark.parametrize("first", [True, False])
def test_it_keeps_the_graph_that_it_was_made_for(first):
    network, x = Network(), chainer.Variable(np.random.RandomState(2).normal(size=(12, 3, 6, 7)).astype(np.float32))
    with chainer.using_config("train", True):
        with chainer.using_config("enable_backprop", first):
            h = network.bn(network.conv(x))
        with chainer.using_config("enable_backprop", not first):
            y = F.relu(h)
    assert (h.creator_node is not None, y.creator_node is not None) == (first, not first)
    np.testing.assert_array_equal(y.array, np.maximum(h.array, 0))


@pytest.mark.parametrize("mode", [False, True])
def test_it_is_a_variable_to_everyone(mode):
    network, x = Network(), np.random.RandomState(2).normal(size=(12, 3, 6, 7)).astype(np.float32)

    def pending():
        with chainer.using_config("train", mode), chainer.using_config("enable_backprop", mode):
            h = network.bn(network.conv(x))
        assert type(h) is Pending
        assert isinstance(h, chainer.Variable)
        return h

    expected = pending().array
    for same in (copy.copy(pending()), pickle.loads(pickle.dumps(pending())), chainer.as_variable(pending())):
        np.testing.assert_array_equal(same.array, expected)
    assert (pending().shape, pending().dtype, len(pending()), pending().xp) == (expected.shape, "f", 12, np)
    h = pending()
    h.name = "h"
    assert (type(h), h.name, h.node.name, h.node.get_variable_or_none() is h) == (chainer.Variable, "h", "h", True)
    h = pending()
    h.grad = expected
    assert h.grad is expected
    assert repr(pending()).startswith("variable(")
    with pytest.raises(AttributeError, match="Variable"):
        pending().nothing()
