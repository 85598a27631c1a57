"""Initial weights and dropout: functions of seed and place, of nothing else."""

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L

from recipes.planning.random_bits import draws, word
from trainers.models.keyed_random import KeyedDropout, draw_initial_weights


def own_initializer(array):
    array[...] = np.random.standard_normal(array.shape)


class Net(chainer.Chain):
    def __init__(self, reverse=False):
        super().__init__()
        layers = {
            "conv": lambda: L.Convolution2D(3, 8, 3, initialW=chainer.initializers.HeNormal()),
            "fc": lambda: L.Linear(72, 10),
            "own": lambda: L.Linear(4, 4, initialW=own_initializer),
            "odd": lambda: L.Linear(6, 6, initialW=chainer.initializers.Orthogonal()),
        }
        with self.init_scope():
            for name in reversed(layers) if reverse else layers:
                setattr(self, name, layers[name]())

    def __call__(self, x):
        h = F.dropout(F.relu(self.conv(x)), 0.25)
        return self.fc(F.dropout(h, 0.5))


def weights(model):
    return {path: parameter.array.copy() for path, parameter in model.namedparams()}


def drawn(seed, **options):
    model = Net(**options)
    draw_initial_weights(model, seed=seed)
    return weights(model)


def test_weights_depend_on_seed_and_path_only():
    first = drawn(0)
    np.random.seed(99)
    second = drawn(0, reverse=True)
    assert all((first[path] == second[path]).all() for path in first)
    assert (drawn(1)["/conv/W"] != first["/conv/W"]).any()


def test_weights_of_a_seed_stay_what_they_are():
    """An initializer with a generator gets the keyed draws; one without starts NumPy's global one from eight words."""
    actual, keys = drawn(3), {path: word(path) for path in ("/conv/W", "/own/W")}
    normals = draws(3, "weights", keys["/conv/W"]).normals(216)
    np.testing.assert_allclose(actual["/conv/W"].ravel(), np.sqrt(2 / 27) * normals, rtol=1e-6)
    seeded = np.random.RandomState(draws(3, "weights", keys["/own/W"]).bits(4).view(np.uint32))
    np.testing.assert_array_equal(actual["/own/W"], seeded.standard_normal((4, 4)).astype(np.float32))


def test_two_layers_of_one_shape_differ():
    class Twins(chainer.Chain):
        def __init__(self):
            super().__init__()
            with self.init_scope():
                self.a, self.b = L.Linear(5, 5), L.Linear(5, 5)

    model = Twins()
    draw_initial_weights(model, seed=0)
    assert (model.a.W.array != model.b.W.array).any()


def test_each_initializer_keeps_its_own_distribution():
    actual = drawn(0)
    fan_in = 3 * 3 * 3
    assert abs(actual["/conv/W"].std() - np.sqrt(2 / fan_in)) < 4 * np.sqrt(2 / fan_in) / np.sqrt(2 * 216)
    assert (actual["/conv/b"] == 0).all()
    np.testing.assert_allclose(actual["/odd/W"] @ actual["/odd/W"].T, 1.1**2 * np.eye(6), atol=1e-5)


def test_numpys_global_generator_is_left_as_it_was():
    np.random.seed(5)
    expected = np.random.rand()
    np.random.seed(5)
    model = Net()
    np.random.seed(5)
    draw_initial_weights(model, seed=0)
    assert np.random.rand() == expected


def test_a_parameter_that_was_given_an_array_begins_with_it():
    model = chainer.Chain()
    with model.init_scope():
        model.scale = chainer.Parameter(np.array([1.0, 2.0], np.float32))
        model.zero = chainer.Parameter(0, (2,))
    draw_initial_weights(model, seed=0)
    np.testing.assert_array_equal(model.scale.array, [1, 2])
    np.testing.assert_array_equal(model.zero.array, [0, 0])


def test_a_parameter_without_a_shape_is_refused():
    with pytest.raises(ValueError, match=r"parameter /W has no shape yet"):
        draw_initial_weights(L.Linear(None, 3), seed=0)


def outputs(model, x, indices, epoch=0, seed=0):
    epochs = np.full(len(indices), epoch)
    with chainer.using_config("train", True), KeyedDropout(model, seed=seed, epochs=epochs, indices=indices):
        return model(x).array


@pytest.fixture
def model_and_images():
    model = Net()
    draw_initial_weights(model, seed=0)
    return model, np.random.RandomState(0).rand(8, 3, 5, 5).astype(np.float32)


def test_a_samples_mask_does_not_depend_on_the_samples_beside_it(model_and_images):
    model, x = model_and_images
    indices = np.arange(10, 18)
    whole = outputs(model, x, indices)
    parts = [outputs(model, x[s], indices[s]) for s in (slice(0, 3), slice(3, 8))]
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=1e-5, atol=1e-6)


def test_masks_differ_by_seed_epoch_and_layer(model_and_images):
    model, x = model_and_images
    indices = np.arange(8)
    first = outputs(model, x, indices)
    assert (outputs(model, x, indices) == first).all()
    assert (outputs(model, x, indices, epoch=1) != first).any()
    assert (outputs(model, x, indices, seed=1) != first).any()


def test_a_second_call_in_the_same_layer_has_another_mask(model_and_images):
    model, x = model_and_images
    keyed = KeyedDropout(model, seed=0, epochs=np.zeros(8), indices=np.arange(8))
    first, second = (keyed.mask((8, 72), 0.5, np.float32) for _ in range(2))
    assert (first != second).any()


def test_masks_drop_the_asked_share_and_are_scaled(model_and_images):
    model, _ = model_and_images
    keyed = KeyedDropout(model, seed=0, epochs=np.zeros(50), indices=np.arange(50))
    mask = keyed.mask((50, 1000), 0.25, np.float32)
    assert set(np.unique(mask)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs((mask == 0).mean() - 0.25) < 5 * np.sqrt(0.25 * 0.75 / 50_000)


def test_outside_of_the_context_dropout_is_chainers_own_again(model_and_images):
    model, x = model_and_images
    before = F.noise.dropout.Dropout.forward
    outputs(model, x, np.arange(8))
    assert F.noise.dropout.Dropout.forward is before


class Forgetful(chainer.Chain):
    """A layer between dropouts, computed once, or again in backward."""

    def __init__(self, forgets):
        super().__init__()
        self.forgets = forgets
        with self.init_scope():
            self.fc = L.Linear(6, 6)

    def forward(self, x):
        h = F.dropout(x, 0.2)
        return F.dropout(F.forget(self.inner, h) if self.forgets else self.inner(h), 0.2)

    def inner(self, h):
        return F.dropout(self.fc(F.dropout(h, 0.3)), 0.4)


def test_what_is_forgotten_and_computed_again_has_the_same_masks():
    def results(forgets):
        model = chainer.Sequential(L.Linear(5, 6), Forgetful(forgets), Forgetful(forgets))
        draw_initial_weights(model, seed=0)
        with chainer.using_config("train", True), KeyedDropout(model, seed=0, epochs=np.zeros(8), indices=np.arange(8)):
            y = model(np.random.RandomState(0).rand(8, 5).astype(np.float32))
        model.cleargrads()
        F.sum(y**2).backward()
        return [y.array, *(parameter.grad for _, parameter in sorted(model.namedparams()))]

    for one, other in zip(results(forgets=True), results(forgets=False), strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_norm_groups_loss_has_the_masks_that_it_has_alone():
    logits, indices = np.ones((6, 5), np.float32), np.arange(6)
    keyed = [KeyedDropout(chainer.Chain(), seed=0, epochs=0 * rows, indices=rows) for rows in (indices, indices[3:])]
    with chainer.using_config("train", True), keyed[0]:
        F.dropout(logits)  # of the model
        masked = []
        for rows in (slice(0, 3), slice(3, 6)):
            with keyed[0].only(rows):
                masked.append(F.dropout(logits[rows]).array)
        whole = F.dropout(logits).array
    with chainer.using_config("train", True), keyed[1]:
        F.dropout(logits[3:])
        np.testing.assert_array_equal(F.dropout(logits[3:]).array, masked[1])
    np.testing.assert_array_equal(whole, np.concatenate(masked))


def test_rows_that_are_not_samples_are_refused(model_and_images):
    model, _ = model_and_images
    with pytest.raises(ValueError, match=r"dropout in the model on 3 rows for 8 samples"):
        KeyedDropout(model, seed=0, epochs=np.zeros(8), indices=np.arange(8)).mask((3, 2), 0.5, np.float32)
