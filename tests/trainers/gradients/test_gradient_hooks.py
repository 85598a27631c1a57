"""Hooks deliver a gradient as soon as backward has computed it, and leave nothing behind."""

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L

from trainers.gradients.flat_gradients import GradientHooks

X = np.arange(6, dtype=np.float32).reshape(2, 3) / 6


class Marked(chainer.FunctionNode):
    """Identity that calls `passed` in backward."""

    def __init__(self, passed):
        super().__init__()
        self.passed = passed

    def forward(self, inputs):
        return inputs

    def backward(self, indexes, grads):
        self.passed()
        return grads


class Layers(chainer.Chain):
    """Three linear layers of the same shape, each followed by a mark."""

    def __init__(self, events, order=(0, 1, 2)):
        super().__init__()
        self.events, self.order = events, order
        with self.init_scope():
            self.layers = chainer.ChainList(*(L.Linear(3, 3) for _ in range(3)))

    def forward(self, x):
        for number in self.order:
            mark = Marked(lambda number=number: self.events.append(f"through {number}"))
            (x,) = mark.apply((self.layers[number](x),))
        return F.sum(x * x)


@pytest.fixture
def events():
    return []


def with_hooks(model, x, events, only=""):
    """The gradients by path, a list each, and the paths used; numbers are positions among the sorted paths."""
    paths = {id(parameter): path for path, parameter in sorted(model.namedparams()) if path.startswith(only)}
    gradients = {path: [] for path in paths.values()}
    numbers = list(paths.values())

    def number_of(variable):
        path = paths.get(id(variable))
        return None if path is None else numbers.index(path)

    def deliver(number, gradient):
        events.append(numbers[number])
        gradients[numbers[number]].append(gradient.copy())

    model.cleargrads()
    hooks = GradientHooks(number_of, deliver)
    with hooks:
        model(x).backward()
    return gradients, [numbers[number] for number in hooks.uses.elements()]


def test_a_layers_gradients_come_before_backward_goes_on_to_the_layer_below(events):
    with_hooks(Layers(events), X, events)
    assert [event if event.startswith("through") else event.split("/")[2] for event in events] == [
        *("through 2", "2", "2", "through 1", "1", "1", "through 0", "0", "0")
    ]


def test_without_hooks_chainer_gives_them_all_at_the_end(events):
    """Why the hooks have the rank of the layer's input: this is what an identity before a parameter would do."""
    model = Layers(events)
    for layer in model.layers:
        weight = layer.W
        (layer.__dict__["W"],) = Marked(lambda: events.append("a weight")).apply((weight,))
    model(X).backward()
    assert events == ["through 2", "through 1", "through 0", *["a weight"] * 3]


def test_gradients_are_chainers_and_the_parameters_get_none(events):
    model = Layers(events)
    gradients, uses = with_hooks(model, X, events)
    assert all(parameter.grad is None for parameter in model.params())
    assert sorted(uses) == sorted(gradients)
    model.cleargrads()
    model(X).backward()
    for path, parameter in model.namedparams():
        assert [gradient.tobytes() for gradient in gradients[path]] == [parameter.grad.tobytes()], path


def test_a_layer_used_twice_gives_two_gradients_whose_sum_is_chainers(events):
    model = Layers(events, order=(0, 1, 0))
    gradients, uses = with_hooks(model, X, events)
    assert uses.count("/layers/0/W") == len(gradients["/layers/0/W"]) == 2
    assert (len(gradients["/layers/1/W"]), len(gradients["/layers/2/W"])) == (1, 0)
    model.cleargrads()
    model(X).backward()
    for path in ("/layers/0/W", "/layers/0/b"):
        parameter = dict(model.namedparams())[path]
        assert sum(gradients[path]).tobytes() == parameter.grad.tobytes()


def test_what_has_no_number_is_left_alone(events):
    model = Layers(events)
    gradients, _ = with_hooks(model, X, events, only="/layers/1")
    assert gradients.keys() == {"/layers/1/W", "/layers/1/b"}
    for path, parameter in model.namedparams():
        assert (parameter.grad is None) == path.startswith("/layers/1"), path


def test_the_gradient_of_the_input_is_chainers(events):
    model, x = Layers(events), chainer.Variable(X)
    with_hooks(model, x, events)
    expected = chainer.Variable(X)
    model(expected).backward()
    assert x.grad.tobytes() == expected.grad.tobytes()


def test_the_output_is_the_same_with_hooks_active(events):
    model = Layers(events)
    with GradientHooks(lambda variable: 0, lambda number, gradient: None):
        inside = model(X)
    assert inside.array.tobytes() == model(X).array.tobytes()


@pytest.mark.parametrize("fails_in", ["layer", "model"])
def test_links_have_their_parameters_back_after_a_call_and_after_one_that_raised(events, fails_in):
    model = Layers(events)
    before = [(path, id(parameter)) for path, parameter in sorted(model.namedparams())]
    wrong = X[:, :2] if fails_in == "layer" else X
    model.order = (0, 1, 7) if fails_in == "model" else (0, 1, 2)
    hooks = GradientHooks(lambda variable: 0, lambda number, gradient: None)
    with pytest.raises((IndexError, chainer.utils.type_check.InvalidType)), hooks:
        model(wrong)
    assert [(path, id(parameter)) for path, parameter in sorted(model.namedparams())] == before
    assert all(type(layer.__dict__[name]) is chainer.Parameter for layer in model.layers for name in "Wb")


def test_during_a_call_other_links_have_their_own_parameters(events):
    seen = []

    class Looking(Layers):
        def forward(self, x):
            y = self.layers[0](x)
            seen.extend(type(self.layers[0].__dict__[name]) for name in "Wb")
            return F.sum(self.layers[1](y))

    with GradientHooks(lambda variable: 0, lambda number, gradient: None):
        Looking(events)(X)
    assert seen == [chainer.Parameter] * 2


def test_a_link_gets_its_parameters_back_before_the_link_around_it_ends(events):
    class Outer(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.factor, self.inner = chainer.Parameter(np.ones((2, 3), np.float32)), L.Linear(3, 3)

        def forward(self, x):
            y = self.inner(x)
            events.append(type(self.inner.__dict__["W"]))
            return F.sum(y * self.factor)

    with GradientHooks(lambda variable: 0, lambda number, gradient: None):
        Outer()(X)
    assert events == [chainer.Parameter]


def test_a_layer_without_a_bias_has_one_hook(events):
    layer = L.Linear(3, 2, nobias=True)
    hooks = GradientHooks(lambda variable: 0, lambda number, gradient: events.append(gradient.shape))
    with hooks:
        F.sum(layer(X)).backward()
    assert hooks.uses == {0: 1}
    assert events == [(2, 3)]
