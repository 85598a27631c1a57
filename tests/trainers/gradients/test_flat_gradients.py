"""Gradients in one array are Chainer's own, bit for bit, and lie in the order in which backward finishes them.

Hooks deliver each as soon as backward has computed it, and leave nothing behind.
"""

import math

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from chainer.link_hooks import TimerHook, WeightStandardization

from trainers.gradients.flat_gradients import FlatGradients, GradientHooks, backward_order
from trainers.gradients.mixed_precision import weights_in
from trainers.models import CifarResNet, SmallCNN, SmallResNet, WideResNet


class Two(chainer.Chain):
    """Two layers, `between` them whatever a test puts there."""

    def __init__(self, between=F.relu):
        super().__init__()
        self.between = between
        with self.init_scope():
            self.first = L.Linear(6, 4)
            self.second = L.Linear(4, 3)

    def forward(self, x):
        return self.second(self.between(self.first(F.reshape(x, (len(x), -1)))))


class ThreeTimes(Two):
    """The second layer's neighbour is used three times, as a recurrent layer is."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.again = L.Linear(4, 4)

    def forward(self, x):
        h = self.first(F.reshape(x, (len(x), -1)))
        for _ in range(3):
            h = F.tanh(self.again(h))
        return self.second(h)


class Tied(Two):
    """The first layer's weight is used past its link too."""

    def forward(self, x):
        h = super().forward(x)
        return F.matmul(F.concat([h, h[:, :1]]), self.first.W)


class Own(Two):
    """A weight of the model's own beside those of its layers."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.mix = chainer.Parameter(np.eye(3, dtype=np.float32))

    def forward(self, x):
        return F.matmul(super().forward(x), self.mix)


class OnlyPast(Two):
    """A layer that is never called, but whose weight is used."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.held = L.Linear(3, 3, nobias=True)

    def forward(self, x):
        return F.matmul(super().forward(x), self.held.W)


class Unused(Two):
    """A layer that is never called, and one whose output nobody takes."""

    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.never = L.Linear(4, 4)
            self.in_vain = L.Linear(3, 2)

    def forward(self, x):
        y = super().forward(x)
        self.in_vain(y)
        return y


class HalfUsed(Two):
    """A layer used twice, once in vain."""

    def forward(self, x):
        y = super().forward(x)
        self.second(F.relu(self.first(F.reshape(x, (len(x), -1)))) * 2)
        return y


class Standardized(ThreeTimes):
    """A layer used three times, each time with a weight that its own hook computes."""

    def __init__(self):
        super().__init__()
        self.again.add_hook(WeightStandardization())


def built(component):
    return lambda: component.build(num_classes=3, channels=3, image_size=8)


MODELS = {
    "SmallCNN": (built(SmallCNN(width=2)), (3, 8, 8)),
    "SmallResNet": (built(SmallResNet(width=2)), (3, 8, 8)),
    "CifarResNet": (built(CifarResNet(depth=20)), (3, 8, 8)),
    "WideResNet": (built(WideResNet(depth=10, widen=1)), (3, 8, 8)),
    **{own.__name__: (own, (6,)) for own in (Two, ThreeTimes, Standardized, Tied, Own, OnlyPast, Unused, HalfUsed)},
}


@pytest.fixture(params=MODELS)
def made(request):
    """A model, and what images it takes."""
    make, shape = MODELS[request.param]
    return make(), shape


def micro_batches(shape, sizes=(5, 2, 3)):
    random = np.random.RandomState(0)
    return [random.normal(size=(size, *shape)).astype(np.float32) for size in sizes]


def backward(model, x):
    """Of a loss in which every output counts otherwise."""
    with chainer.using_config("train", True):
        y = model(x)
        weights = np.arange(1.0, y.size + 1).reshape(y.shape).astype(np.float32) / y.size
        F.sum(F.tanh(y) * weights).backward()


def of_chainer(model, batches):
    """The gradients that Chainer accumulates, by path; None for what was not used."""
    model = model.copy(mode="copy")
    model.cleargrads()
    for x in batches:
        backward(model, x)
    return {path: None if p.grad is None else p.grad.copy() for path, p in model.namedparams()}


def flat_of(model, shape):
    return FlatGradients(backward_order(model, np.ones((2, *shape), np.float32)))


def collect(flat, model, batches, finished=None):
    flat.begin_update()
    for x in batches[:-1]:
        with flat.collect():
            backward(model, x)
    with flat.collect(finished):
        backward(model, batches[-1])
    flat.zero_unwritten()
    flat.assign_to_parameters(flat.values)


def assert_equal_bits(model, expected):
    for path, parameter in model.namedparams():
        known = np.zeros_like(parameter.array) if expected[path] is None else expected[path]
        assert parameter.grad.tobytes() == known.tobytes(), path


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"Tied"}))
@pytest.mark.parametrize("sizes", [(4,), (5, 2, 3)], ids=["one micro-batch", "three"])
def test_gradients_are_chainers_bit_for_bit(name, sizes):
    make, shape = MODELS[name]
    model = make()
    batches = micro_batches(shape, sizes)
    expected = of_chainer(model, batches)
    flat = flat_of(model, shape)
    for _ in range(2):  # the second update finds what the first has left
        collect(flat, model, batches)
        assert_equal_bits(model, expected)
    assert all(np.shares_memory(parameter.grad, flat.values) for parameter in model.params())


def test_the_slots_are_all_parameters_one_after_the_other(made):
    model, shape = made
    flat = flat_of(model, shape)
    assert sorted(slot.path for slot in flat.slots) == sorted(path for path, _ in model.namedparams())
    ends = [slot.span.stop for slot in flat.slots]
    assert [slot.span.start for slot in flat.slots] == [0, *ends[:-1]]
    assert ends[-1] == len(flat.values) == sum(parameter.size for parameter in model.params())
    assert all(parameter.grad is None for parameter in model.params()), "looking at the order leaves no gradient"
    by_path = dict(model.namedparams())
    assert all(slot.parameter is by_path[slot.path] for slot in flat.slots)


def order_of(model):
    return [path for path, _, _ in backward_order(model, np.ones((1, 6), np.float32))]


def test_the_order_by_hand():
    assert set(order_of(Two())[:2]) == {"/second/W", "/second/b"}
    assert set(order_of(Two())[2:]) == {"/first/W", "/first/b"}
    assert set(order_of(Unused())[4:]) == {"/in_vain/W", "/in_vain/b", "/never/W", "/never/b"}
    assert [path.split("/")[1] for path in order_of(ThreeTimes())[::2]] == ["second", "again", "first"]


@pytest.mark.parametrize(("model", "late"), [(Tied, "/first/W"), (OnlyPast, "/held/W")])
def test_what_is_used_past_its_link_comes_late(model, late):
    order = backward_order(model(), np.ones((1, 6), np.float32))
    assert [is_late for _, _, is_late in order] == [False] * (len(order) - 1) + [True]
    assert order[-1][0] == late


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"Tied"}))
def test_backward_finishes_them_in_the_order_of_the_array_and_they_change_no_more_in_this_micro_batch(name):
    make, shape = MODELS[name]
    model = make()
    flat = flat_of(model, shape)
    seen = {}
    collect(flat, model, micro_batches(shape), lambda number: seen.update({number: slot_bytes(flat, number)}))
    if name not in ("Unused", "HalfUsed"):  # of a use in vain nothing is known
        assert list(seen) == list(range(len(flat.slots)))
    assert seen == {number: slot_bytes(flat, number) for number in seen}


def slot_bytes(flat, number):
    return flat.values[flat.slots[number].span].tobytes()


def test_a_weight_used_past_its_link_too_is_refused_only_where_it_would_be_sent_too_early():
    model, batches = Tied(), micro_batches((6,))
    flat = flat_of(model, (6,))
    with pytest.raises(RuntimeError, match=r"^/first/W is used past its link as well, .* exchange\.overlap to false"):
        collect(flat, model, batches, lambda number: None)
    collect(flat, model, batches[:1])
    assert_equal_bits(model, of_chainer(model, batches[:1]))
    collect(flat, model, batches)  # added in another order than Chainer does
    for path, gradient in of_chainer(model, batches).items():
        np.testing.assert_allclose(flat.by_path(flat.values)[path], gradient, rtol=1e-5, atol=1e-6)


def test_squared_norms_are_those_of_each_micro_batch(made):
    model, shape = made
    batches = micro_batches(shape)
    flat = flat_of(model, shape)
    flat.begin_update()
    norms = []
    for x in batches:
        with flat.collect(measure=True) as norm:
            backward(model, x)
        norms.append(math.fsum(norm.terms))
    for x, norm in zip(batches, norms, strict=True):
        squares = [np.square(g, dtype=np.float64).sum() for g in of_chainer(model, [x]).values() if g is not None]
        assert norm == pytest.approx(sum(squares), rel=1e-6)
    flat.zero_unwritten()
    measured = flat.values.copy()
    collect(flat, model, batches)
    assert (flat.values == measured).all(), "measured or not, the gradients are the same"
    with flat.collect() as norm:
        backward(model, batches[0])
    assert not norm.squares, "nobody asked for it"


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_an_exception_the_parameters_are_in_their_links_again(where):
    fail = {"now": False}

    def between(h):
        if fail["now"]:
            raise FloatingPointError("stop here")
        return F.relu(h)

    model = Two(between)
    flat = FlatGradients(backward_order(model, np.ones((1, 6), np.float32)))
    before = dict(model.namedparams())
    batches = micro_batches((6,))
    flat.begin_update()
    with pytest.raises(FloatingPointError, match="stop here"), flat.collect():  # noqa: PT012
        fail["now"] = where == "forward"
        backward(model, batches[0])
        raise FloatingPointError("stop here")
    fail["now"] = False
    assert all(parameter is before[path] for path, parameter in model.namedparams())
    assert type(model.first.W) is chainer.Parameter
    collect(flat, model, batches)
    assert_equal_bits(model, of_chainer(model, batches))


def test_an_update_without_samples_is_zero():
    model = Two()
    flat = FlatGradients(backward_order(model, np.ones((1, 6), np.float32)))
    collect(flat, model, micro_batches((6,)))
    assert flat.values.any()
    flat.begin_update()
    flat.zero_unwritten()
    assert not flat.values.any()


def test_arrays_are_written_in_turn_and_a_full_one_stays():
    model, asked = Two(), []

    def allocate(num_values, dtype):
        asked.append((num_values, np.dtype(dtype)))
        return np.zeros(num_values, dtype)

    flat = FlatGradients(backward_order(model, np.ones((1, 6), np.float32)), allocate, copies=2)
    assert asked == [(2 * (6 * 4 + 4 + 4 * 3 + 3), np.dtype(np.float32))]
    first, batches = flat.values, micro_batches((6,))
    collect(flat, model, batches)
    kept = first.copy()
    flat.next_array()
    second = flat.values
    assert len(second) == len(first)
    assert not np.shares_memory(second, first)
    collect(flat, model, batches[:1])
    assert (first == kept).all()
    assert_equal_bits(model, of_chainer(model, batches[:1]))
    flat.assign_to_parameters(first)
    assert_equal_bits(model, of_chainer(model, batches))
    flat.begin_update()
    assert all(parameter.grad is None for parameter in model.params())
    flat.assign_to_parameters(first)
    assert all(np.shares_memory(parameter.grad, first) for parameter in model.params())
    flat.next_array()
    assert flat.values is first


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
    """Backward under hooks for the parameters below a path; the paths of their gradients become events."""
    paths = [path for path, _ in sorted(model.namedparams()) if path.startswith(only)]
    numbers = {id(parameter): paths.index(path) for path, parameter in model.namedparams() if path in paths}
    model.cleargrads()
    with GradientHooks(lambda variable: numbers.get(id(variable)), lambda number, _: events.append(paths[number])):
        model(x).backward()


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


def test_what_has_no_number_is_left_alone(events):
    model = Layers(events)
    with_hooks(model, X, events, only="/layers/1")
    assert {event for event in events if event.startswith("/")} == {"/layers/1/W", "/layers/1/b"}
    for path, parameter in model.namedparams():
        assert (parameter.grad is None) == path.startswith("/layers/1"), path


def test_the_gradient_of_the_input_is_chainers(events):
    model, x = Layers(events), chainer.Variable(X)
    with_hooks(model, x, events)
    expected = chainer.Variable(X)
    model(expected).backward()
    assert x.grad.tobytes() == expected.grad.tobytes()


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


def test_a_link_with_a_hook_of_its_own_is_left_as_another_context_has_left_it():
    layer = L.Linear(3, 3)
    layer.add_hook(TimerHook())
    weight = layer.W
    with GradientHooks(lambda variable: 0, lambda number, gradient: None):
        with weights_in(layer, np.float16):
            layer(X.astype(np.float16))
        assert layer.W is weight
    assert layer.W is weight


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
