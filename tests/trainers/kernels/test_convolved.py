"""A convolution and its normalisation in one node have the bits of two, and of Chainer's many."""

import contextlib
from types import SimpleNamespace

import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np
import pytest

from recipes.planning.division import divide
from recipes.schema import Evaluation
from trainers.gradients.flat_gradients import GradientHooks
from trainers.kernels import chainer_hooks
from trainers.models import ResNet18, SmallCNN, SmallResNet, WideResNet, batch_norm
from trainers.models.batch_norm import NormGroups
from trainers.models.keyed_random import draw_initial_weights

DIVISION = divide(global_batch_size=12, norm_span=4, workers=1, micro_batch_size=12)

pytestmark = pytest.mark.usefixtures("each_kind")


def looked_on():
    """Someone looks on, so that Chainer goes its long way and convolution and normalisation are two nodes."""
    return chainer.FunctionHook()


def nodes_behind(*variables):
    """The kinds of all nodes that these were computed by."""
    seen, waiting = {}, [variable.creator_node for variable in variables]
    while waiting:
        node = waiting.pop()
        if node is not None and id(node) not in seen:
            seen[id(node)] = node
            waiting += [each.creator_node for each in node.inputs]
    return [type(node).__name__ for node in seen.values()]


def install(model):
    groups = NormGroups(Evaluation())
    groups.install(model)
    groups.begin_update(DIVISION)
    groups.begin_micro_batch(DIVISION.micro_batches(0)[0])
    return groups


def one_update(component, *, dtype, watch=contextlib.nullcontext, second=False):
    """Every gradient and statistic of an update of three norm groups, and the nodes of its graph."""
    random = np.random.RandomState(0)
    model = component.build(num_classes=5, channels=3, image_size=32)
    draw_initial_weights(model, seed=0)
    for parameter in model.params():
        parameter.array = parameter.array.astype(dtype)
    groups = install(model)
    images = chainer.Variable(random.normal(2.0, 1.0, (12, 3, 32, 32)).astype(dtype))
    with chainer.using_config("train", True), watch():
        loss = F.softmax_cross_entropy(model(images), random.randint(0, 5, 12).astype(np.int32))
        model.cleargrads()
        loss.backward(enable_double_backprop=second)
    found = {path: parameter.grad for path, parameter in model.namedparams()}
    return found | {"seen": groups.take_statistics(), "loss": loss.array, "images": images.grad}, nodes_behind(loss)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("component", [SmallResNet(width=8), SmallCNN(width=8), WideResNet(depth=10, widen=1)])
def test_one_node_has_the_bits_of_two(component, dtype, assert_as_exact):
    found, nodes = one_update(component, dtype=dtype)
    assert "ConvolutionNormalization" in nodes
    for second in (False, True):
        expected, separate = one_update(component, dtype=dtype, watch=looked_on, second=second)
        assert "ConvolutionNormalization" not in separate
        assert len(separate) == len(nodes) + nodes.count("ConvolutionNormalization")
        assert found.keys() == expected.keys()
        for path, values in expected.items():
            if second:  # gradients by nodes, whose normalisation is not compiled
                assert_as_exact(found[path], values, dtype=dtype, path=path)
            else:
                np.testing.assert_array_equal(found[path], values, err_msg=path)


class Names(chainer.FunctionHook):
    """The kinds of nodes that are computed, forward and backward."""

    def __init__(self):
        self.seen = []

    def forward_preprocess(self, function, in_data):
        self.seen.append(type(function).__name__)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("component", [SmallResNet(width=8), SmallCNN(width=8), WideResNet(depth=10, widen=1)])
def test_a_normalisation_has_the_bits_of_chainers_nodes(monkeypatch, component, dtype, assert_as_exact):
    ours, chainers = Names(), Names()
    actual, nodes = one_update(component, dtype=dtype, watch=lambda: ours)
    assert "Normalization" in nodes
    assert not {"BatchNormalization", "ReLU"} & {*nodes}
    assert not {"Deconvolution2DFunction", "Convolution2DGradW"} & {*ours.seen}
    monkeypatch.setattr(batch_norm, "covers", lambda *arrays: False)
    expected, nodes = one_update(component, dtype=dtype, watch=lambda: chainers, second=True)
    assert "BatchNormalization" in nodes
    assert "Normalization" not in nodes
    assert {"Deconvolution2DFunction", "Convolution2DGradW"} <= {*chainers.seen}
    assert actual.keys() == expected.keys()
    for path, values in expected.items():
        assert_as_exact(actual[path], values, dtype=dtype, path=path)


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


def test_backward_again_has_the_same_bits_though_the_convolutions_output_was_freed():
    random, model = np.random.RandomState(0), SmallResNet(width=8).build(num_classes=5, channels=3, image_size=32)
    install(model)
    with chainer.using_config("train", True):
        loss = F.softmax_cross_entropy(
            model(random.normal(2.0, 1.0, (12, 3, 32, 32)).astype(np.float32)), random.randint(0, 5, 12).astype("i")
        )
    assert "ConvolutionNormalization" in nodes_behind(loss)
    found = []
    for _ in range(2):
        model.cleargrads()
        loss.backward()
        found.append({path: parameter.grad for path, parameter in model.namedparams()})
    for path, values in found[0].items():
        np.testing.assert_array_equal(found[1][path], values, err_msg=path)


def test_a_residual_network_has_no_convolution_of_its_own():
    nodes = one_update(ResNet18(), dtype=np.float32)[1]
    assert nodes.count("ConvolutionNormalization") == 20
    assert not {"Convolution2DFunction", "Normalization", "ReLU", "Add"} & {*nodes}


class Layer(chainer.Chain):
    """max(0, norm(convolution) + plus), or without both."""

    def __init__(self, *, relu=True, dtype=np.float32, **options):
        super().__init__()
        options = {"stride": 2, "pad": 1, "nobias": True} | options
        random = np.random.RandomState(1)
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3, initialW=random.normal(size=(4, 3, 3, 3)).astype(dtype), **options)
            self.bn = L.BatchNormalization(4, dtype=dtype)
        self.bn.gamma.array[...] = [0.5, 1.0, -2.0, 1.5]
        for parameter in self.params():
            parameter.array = parameter.array.astype(dtype)
        self.cleargrads()
        self.relu, self.groups = relu, install(self)

    def forward(self, x, plus=None):
        with chainer.using_config("train", True):
            h = self.bn(self.conv(x))
            h = h if plus is None else h + plus
            return F.relu(h) if self.relu else h


def arrays(dtype=np.float32):
    random = np.random.RandomState(2)
    return [random.normal(size=shape).astype(dtype) for shape in ((12, 3, 6, 7), (12, 4, 3, 4))]


@pytest.mark.parametrize("given", [(True, True), (True, False), (False, False)])
def test_gradients_of_gradients_are_those_of_two_nodes(given):
    relu, with_plus = given

    def derivatives(watch):
        layer, (x, plus) = Layer(relu=relu, dtype=np.float64), map(chainer.Variable, arrays(np.float64))
        inputs = [x, *([plus] if with_plus else [])]
        with watch():
            y = layer(*inputs)
        inputs += [layer.conv.W, layer.bn.gamma, layer.bn.beta]
        first = chainer.grad([F.sum(y**3)], inputs, enable_double_backprop=True)
        second = chainer.grad([sum(F.sum(each**2) for each in first)], [x, layer.conv.W, layer.bn.gamma])
        return nodes_behind(y), [each.array for each in (y, *first)], [each.array for each in second]

    one, found, found_second = derivatives(contextlib.nullcontext)
    two, expected, expected_second = derivatives(looked_on)
    assert one == ["ConvolutionNormalization"]
    assert sorted(two) == ["Convolution2DFunction", "Normalization"]
    for array, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(array, other)
    for array, other in zip(found_second, expected_second, strict=True):  # sums of the same in another order
        np.testing.assert_allclose(array, other, rtol=1e-10, atol=1e-12 * np.abs(other).max())


@pytest.mark.parametrize("wanted", ["x", "W", "gamma", "plus", "x plus", "W gamma beta"])
def test_only_the_gradients_that_are_wanted_are_computed(wanted):
    def gradients(watch, wanted):
        layer, (x, plus) = Layer(), map(chainer.Variable, arrays())
        all_of_them = {"x": x, "plus": plus, "W": layer.conv.W, "gamma": layer.bn.gamma, "beta": layer.bn.beta}
        for name, variable in all_of_them.items():
            variable._requires_grad = variable.node._requires_grad = name in wanted
        with watch():
            F.sum(layer(x, plus) ** 2).backward()
        return {name: variable.grad for name, variable in all_of_them.items()}

    found, expected = (gradients(watch, wanted.split()) for watch in (contextlib.nullcontext, looked_on))
    assert {name for name, grad in found.items() if grad is not None} == {*wanted.split()}
    for name in wanted.split():
        np.testing.assert_array_equal(found[name], expected[name])


def test_gradients_of_several_uses_are_added_and_none_is_written_over():
    layer, (x, _) = Layer(stride=1), map(chainer.Variable, arrays())
    layer.conv.W.array = layer.conv.W.array[:3]
    layer.bn = L.BatchNormalization(3)
    install(layer)
    once, kept = [], []
    for expression in (lambda: layer(x, x), lambda: layer(x), lambda: F.sum(layer(x) + layer(x, x))):
        layer.cleargrads()
        x.cleargrad()
        F.sum(expression()).backward()
        once.append([each.grad for each in (x, layer.conv.W, layer.bn.gamma)])
        kept.append([each.copy() for each in once[-1]])
    np.testing.assert_allclose(once[2][0], once[0][0] + once[1][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(once[2][1], once[0][1] + once[1][1], rtol=1e-4, atol=1e-5)
    F.sum(layer(x)).backward()  # without cleargrads: added to what is there
    np.testing.assert_allclose(layer.conv.W.grad, once[2][1] + once[1][1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(layer.bn.gamma.grad, once[2][2] + once[1][2], rtol=1e-4, atol=1e-5)
    for before, now in zip(kept, once, strict=True):
        for array, same in zip(before, now, strict=True):
            np.testing.assert_array_equal(array, same)


@pytest.mark.parametrize("size", [6, 300])
def test_two_convolutions_of_one_input_add_their_gradients_as_chainer_does(size):
    random = np.random.RandomState(0)
    image, W, V = (random.normal(size=s).astype(np.float32) for s in ((1, 3, size, size), (4, 3, 3, 3), (4, 3, 1, 1)))

    def gradient(second):
        x = chainer.Variable(image)
        y = F.sum(F.convolution_2d(x, W) ** 2) + F.sum(F.convolution_2d(x, V) ** 2) + F.sum(x * x)
        y.backward(enable_double_backprop=second)
        return x.grad

    np.testing.assert_array_equal(gradient(False), gradient(True))


def test_taps_take_every_gradient_right_behind_its_layer():
    def found(tapped):
        model = SmallResNet(width=8).build(num_classes=5, channels=3, image_size=32)
        draw_initial_weights(model, seed=0)
        install(model)
        paths = {id(parameter): path for path, parameter in sorted(model.namedparams())}
        numbers, taken = [*paths.values()], {}
        taps = GradientHooks(
            lambda one: numbers.index(paths[id(one)]), lambda n, g: taken.update({numbers[n]: g.copy()})
        )
        images = np.random.RandomState(3).normal(size=(12, 3, 32, 32)).astype(np.float32)
        with chainer.using_config("train", True), taps if tapped else contextlib.nullcontext():
            loss = F.sum(model(images) ** 2)
            model.cleargrads()
            loss.backward()
        assert "ConvolutionNormalization" in nodes_behind(loss)
        return taken or {path: parameter.grad for path, parameter in model.namedparams()}

    one, other = found(True), found(False)
    assert one.keys() == other.keys()
    order = [*one]
    assert order.index("/blocks/2/conv1/W") < order.index("/blocks/1/conv2/W") < order.index("/conv1/W")
    for path, gradient in other.items():
        np.testing.assert_array_equal(one[path], gradient, err_msg=path)


@pytest.mark.parametrize("case", ["bias", "dilated", "half"])
def test_what_one_node_does_not_cover_is_computed_as_before(case):
    options = {"bias": {"nobias": False}, "dilated": {"dilate": 2, "pad": 2}}.get(case, {})
    dtype = np.float16 if case == "half" else np.float32
    results = []
    for watch in (contextlib.nullcontext, looked_on):
        layer, (x, plus) = Layer(dtype=dtype, **options), arrays(dtype)
        with watch():
            y = layer(x, plus)
        results.append(y.array)
        assert "ConvolutionNormalization" not in nodes_behind(y)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("shape", [(12, 2, 6, 7), (12, 3, 2, 7), (3, 6, 7)])
def test_wrong_inputs_are_refused_in_chainers_words(shape):
    layer = Layer(pad=0)
    with pytest.raises((chainer.utils.type_check.InvalidType, RuntimeError)) as refused:
        layer(np.ones(shape, np.float32))
    with looked_on(), pytest.raises(refused.type) as expected:
        layer(np.ones(shape, np.float32))
    assert str(refused.value) == str(expected.value)
    assert layer(arrays()[0]).shape == (12, 4, 2, 3)


def test_test_mode_and_no_graph():
    layer, (x, plus) = Layer(), arrays()
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        found = F.relu(layer.bn(layer.conv(x)) + plus)
    assert found.creator_node is None
    with chainer.using_config("train", False):
        expected = F.relu(layer.bn(layer.conv(x)) + plus)
    assert expected.creator_node is not None
    np.testing.assert_allclose(found.array, expected.array, rtol=1e-5, atol=1e-6)
    with chainer.no_backprop_mode():
        y = layer(x, plus)
    assert y.creator_node is None
    np.testing.assert_array_equal(y.array, layer(x, plus).array)


def test_where_kernels_lack_a_gradient_chainers_nodes_give_it(monkeypatch):
    """As cuDNN may lack a plan for one."""

    def gradients():
        layer, (x, plus) = Layer(), map(chainer.Variable, arrays())
        y = layer(x, plus)
        assert nodes_behind(y) == ["ConvolutionNormalization"]
        F.sum(y**2).backward()
        return [x.grad, plus.grad, layer.conv.W.grad, layer.bn.gamma.grad]

    expected, ours = gradients(), dict(vars(chainer_hooks.operators))
    ours["convolution_data"] = lambda *_, **__: None
    monkeypatch.setattr(chainer_hooks, "operators", SimpleNamespace(**ours))
    for actual, other in zip(gradients(), expected, strict=True):
        np.testing.assert_allclose(actual, other, rtol=1e-4, atol=1e-5)
