"""A model of one's own that a run would not train as its constructor says is refused before the run."""

import re

import chainer
import chainer.links as L
import pytest

from trainers.models.own_models import require_one_path


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
