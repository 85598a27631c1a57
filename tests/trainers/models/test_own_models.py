"""A model of one's own that a run would not train as its constructor says is refused before the run."""

import re

import chainer
import chainer.links as L
import numpy as np
import pytest

from recipes.schema import RateFactor
from trainers.models.keyed_random import draw_initial_weights
from trainers.models.own_models import AsInitialized, not_as_meant, require_numbers, require_one_path


def chain(**layers):
    """A chain of such layers."""
    model = chainer.Chain()
    with model.init_scope():
        for name, layer in layers.items():
            setattr(model, name, layer)
    return model


def with_one_weight():
    model = chain(a=L.Linear(3, 3), b=L.Linear(3, 3))
    model.b.W = model.a.W
    return model


MID, NORM = L.Linear(3, 3), L.BatchNormalization(3, use_gamma=False, use_beta=False)
TWICE = {
    "/mid/W is also /again/W": chain(mid=MID, again=MID),
    "/b/W is also /a/W": with_one_weight(),
    "/1/0/W is also /0/0/W": chainer.Sequential(*[chainer.Sequential(MID)] * 2),
    "/bn2 is also /bn": chain(bn=NORM, bn2=NORM),
}


@pytest.mark.parametrize("words", TWICE)
def test_what_has_two_paths_is_refused_with_both(words):
    with pytest.raises(ValueError, match=f"^{re.escape(words)}, and would be updated twice; register the layer once"):
        require_one_path(TWICE[words])


def test_a_layer_that_is_called_twice_or_learns_nothing_has_one_path():
    plain = chain()
    require_one_path(chain(mid=MID, bn=NORM, a=plain, b=plain))


@pytest.mark.parametrize("value", ["hello", ["a", "b"], [[1], [2, 3]], {"a": 1}, np.array([1j]), np.array([None])])
def test_a_persistent_value_that_no_checkpoint_holds_is_refused(value):
    layer = chain()
    layer.add_persistent("note", value)
    with pytest.raises(ValueError, match=r"^the persistent value /layer/note, of \w+, is no number and no array of nu"):
        require_numbers(chain(layer=layer))


def test_numbers_may_be_persistent():
    model = chain(norm=L.BatchNormalization(axis=(0, 2, 3)))
    for number, value in enumerate([0, 2.0, True, None, np.zeros(3, "f"), np.int64(3), [1, 2]]):
        model.add_persistent(f"value_{number}", value)
    require_numbers(model)


def test_what_is_frozen_in_vain_or_not_registered_is_named():
    with AsInitialized() as initialized:
        model = chain(a=L.Linear(3, 3), b=L.Linear(3, 3))
        model.b.disable_update()
        model.scale, model.also_W = chainer.Parameter(1.0, (1,)), model.a.W
    how = {"unreached": (), "disabled": initialized.disabled}
    frozen, loose = not_as_meant(model, factors=[RateFactor(parameters=("/b/W",), factor=0)], **how)
    assert "so /b/* are trained; " in frozen
    assert loose.startswith("/scale will be neither drawn by the seed, trained nor saved; ")
    assert not_as_meant(model, factors=[RateFactor(parameters=("/b/*",), factor=0)], **how) == [loose]


def in_place(model):
    model.fc.b.array[...] = -5


def as_new_array(model):
    model.fc.b.array = np.full(3, -5, "f")


def from_another_layer(model):
    model.fc.W.array[...] = model.other.W.array


def after_a_first_call(model):
    model.lazy(np.zeros((1, 4), "f"))
    model.lazy.b.array[...] = 1


def as_it_is(model):
    model.fc.b.array[...] = 0
    model.fc.W.array *= 1


def by_initializer(model):
    with model.init_scope():
        model.one = L.Linear(3, 3, initialW=np.eye(3, dtype="f"), initial_bias=chainer.initializers.Constant(-5))
        model.two = chainer.Parameter(np.full(3, -5, "f"))
        model.two.array[0] = 2


def as_copies(model):
    with model.init_scope():
        model.blocks = chainer.Sequential(model.fc).repeat(2, mode="copy")


LOST = {in_place: ["/fc/b"], as_new_array: ["/fc/b"], from_another_layer: ["/fc/W"], after_a_first_call: ["/lazy/b"]}
KEPT = {as_it_is: [], by_initializer: [], as_copies: [], lambda model: None: []}


@pytest.mark.parametrize("setting", [*LOST, *KEPT])
def test_values_that_the_constructor_sets_and_the_seed_draws_again_are_found(setting):
    generate = chainer.initializers.generate_array
    with AsInitialized() as initialized:
        model = chain(fc=L.Linear(3, 3), other=L.Linear(3, 3), lazy=L.Linear(None, 2), norm=L.BatchNormalization(3))
        setting(model)
    assert initialized.changed(model) == {**LOST, **KEPT}[setting]
    assert chainer.initializers.generate_array is generate


def test_what_is_not_found_begins_as_it_was_made():
    with AsInitialized() as initialized:
        model = chain(fc=L.Linear(3, 3, initial_bias=np.full(3, -5, "f")), norm=L.BatchNormalization(3))
        by_initializer(model)
    model.norm.avg_mean[...] = 7
    draw_initial_weights(model, seed=0)
    for parameter, values in ((model.fc.b, [-5]), (model.one.b, [-5]), (model.two, [-5, 2]), (model.norm.gamma, [1])):
        assert np.unique(parameter.array).tolist() == values
    assert set(model.norm.avg_mean) == {7}
    assert initialized.changed(model) == ["/fc/W"]  # drawn again
