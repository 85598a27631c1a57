"""Flat gradients from one update to the next: after an exception, without samples, in several arrays."""

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L

from trainers.gradients.flat_gradients import FlatGradients


class Two(chainer.Chain):
    """Two layers, `between` them whatever a test puts there."""

    def __init__(self, between=F.relu):
        super().__init__()
        self.between = between
        with self.init_scope():
            self.first = L.Linear(6, 4)
            self.second = L.Linear(4, 3)

    def forward(self, x):
        return self.second(self.between(self.first(x)))


def micro_batches():
    random = np.random.RandomState(0)
    return [random.normal(size=(size, 6)).astype(np.float32) for size in (5, 2, 3)]


def backward(model, x):
    F.sum(F.tanh(model(x))).backward()


def collect(flat, model, batches):
    flat.begin_update()
    for x in batches:
        with flat.collect():
            backward(model, x)
    flat.zero_unwritten()
    flat.assign_to_parameters(flat.values)


def assert_chainers(model, batches):
    """The parameters' gradients are those that Chainer accumulates, bit for bit."""
    alone = model.copy(mode="copy")
    alone.cleargrads()
    for x in batches:
        backward(alone, x)
    expected = dict(alone.namedparams())
    for path, parameter in model.namedparams():
        assert parameter.grad.tobytes() == expected[path].grad.tobytes(), path


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_after_an_exception_the_parameters_are_in_their_links_again(where):
    fail = {"now": False}

    def between(h):
        if fail["now"]:
            raise FloatingPointError("stop here")
        return F.relu(h)

    model = Two(between)
    flat = FlatGradients(model, np.ones((1, 6), np.float32))
    before = dict(model.namedparams())
    batches = micro_batches()
    flat.begin_update()
    with pytest.raises(FloatingPointError, match="stop here"), flat.collect():  # noqa: PT012
        fail["now"] = where == "forward"
        backward(model, batches[0])
        raise FloatingPointError("stop here")
    fail["now"] = False
    assert all(parameter is before[path] for path, parameter in model.namedparams())
    assert type(model.first.W) is chainer.Parameter
    collect(flat, model, batches)
    assert_chainers(model, batches)


def test_an_update_without_samples_is_zero():
    model = Two()
    flat = FlatGradients(model, np.ones((1, 6), np.float32))
    collect(flat, model, micro_batches())
    assert flat.values.any()
    flat.begin_update()
    flat.zero_unwritten()
    assert not flat.values.any()


def test_arrays_are_written_in_turn_and_a_full_one_stays():
    model, asked = Two(), []

    def allocate(num_values, dtype):
        asked.append((num_values, np.dtype(dtype)))
        return np.zeros(num_values, dtype)

    flat = FlatGradients(model, np.ones((1, 6), np.float32), allocate, copies=2)
    assert asked == [(2 * (6 * 4 + 4 + 4 * 3 + 3), np.dtype(np.float32))]
    first, batches = flat.values, micro_batches()
    collect(flat, model, batches)
    kept = first.copy()
    flat.next_array()
    second = flat.values
    assert len(second) == len(first)
    assert not np.shares_memory(second, first)
    collect(flat, model, batches[:1])
    assert (first == kept).all()
    assert_chainers(model, batches[:1])
    flat.assign_to_parameters(first)
    assert_chainers(model, batches)
    flat.begin_update()
    assert all(parameter.grad is None for parameter in model.params())
    flat.assign_to_parameters(first)
    assert all(np.shares_memory(parameter.grad, first) for parameter in model.params())
    flat.next_array()
    assert flat.values is first
