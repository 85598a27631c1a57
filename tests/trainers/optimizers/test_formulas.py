"""Every optimizer against its formula in float64, over 50 updates in which the rate changes."""

import chainer
import numpy as np
import pytest

from trainers import optimizers
from trainers.optimizers import SGD, Adam, AdaScale, CorrectedMomentumSGD, CorrectedNesterovAG, MomentumSGD, NesterovAG
from trainers.optimizers.weight_decay import decay_parameters

NUM_UPDATES = 50
DECAY = 0.01
# Warmup, a plateau and a fall by 10, so that the two places for the rate give different weights.
RATES = [0.01 + 0.009 * min(u, 10) for u in range(30)] + [0.01] * 20


def sgd(w, g, rate, state, hyper):
    return w - rate * g


def momentum_inside(w, g, rate, state, hyper):
    state["v"] = hyper.momentum * state.get("v", 0) - rate * g
    return w + state["v"]


def momentum_outside(w, g, rate, state, hyper):
    state["v"] = hyper.momentum * state.get("v", 0) - g
    return w + rate * state["v"]


def nesterov_of_chainer(w, g, rate, state, hyper):
    m = hyper.momentum
    state["v"] = m * state.get("v", 0) - rate * g
    return w + m**2 * state["v"] - (1 + m) * rate * g


def nesterov_outside(w, g, rate, state, hyper):
    state["v"] = hyper.momentum * state.get("v", 0) + g
    return w - rate * (g + hyper.momentum * state["v"])


def adam(w, g, rate, state, hyper):
    t = state["t"] = state.get("t", 0) + 1
    state["m"] = hyper.beta1 * state.get("m", 0) + (1 - hyper.beta1) * g
    state["v"] = hyper.beta2 * state.get("v", 0) + (1 - hyper.beta2) * g**2
    step = rate * np.sqrt(1 - hyper.beta2**t) / (1 - hyper.beta1**t)
    return w - step * state["m"] / (np.sqrt(state["v"]) + hyper.eps)


FORMULAS = {
    "AdaScale": (AdaScale(momentum=0.8, weight_decay=DECAY), momentum_outside),  # its gain comes with the rate
    "Adam": (Adam(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=DECAY), adam),
    "CorrectedMomentumSGD": (CorrectedMomentumSGD(momentum=0.8, weight_decay=DECAY), momentum_outside),
    "CorrectedNesterovAG": (CorrectedNesterovAG(momentum=0.8, weight_decay=DECAY), nesterov_outside),
    "MomentumSGD": (MomentumSGD(momentum=0.8, weight_decay=DECAY), momentum_inside),
    "NesterovAG": (NesterovAG(momentum=0.8, weight_decay=DECAY), nesterov_of_chainer),
    "SGD": (SGD(weight_decay=DECAY), sgd),
}


def problem():
    """Weights, and a gradient for each update that does not depend on them."""
    draws = np.random.default_rng(0)
    return draws.standard_normal((4, 6)), draws.standard_normal((NUM_UPDATES, 4, 6))


def weights_of_chainer(component, rates):
    w, gradients = problem()
    model = chainer.Chain()
    with model.init_scope():
        model.W = chainer.Parameter(w.astype(np.float32))
    optimizer = component.build().setup(model)
    decay_parameters(optimizer, weight_decay=component.weight_decay, no_decay=component.no_decay)
    for rate, gradient in zip(rates, gradients, strict=True):
        setattr(optimizer, component.rate_attribute, rate)
        model.W.grad = gradient.astype(np.float32)
        optimizer.update()
    return model.W.array, model.W.update_rule


def weights_of_formula(component, formula, rates):
    w, gradients = problem()
    state = {}
    for rate, gradient in zip(rates, gradients, strict=True):
        w = formula(w, gradient + component.weight_decay * w, rate, state, component)
    return w


def test_no_optimizer_is_missing_here():
    assert sorted(FORMULAS) == optimizers.__all__


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_50_updates_with_a_changing_rate_follow_the_formula(name):
    component, formula = FORMULAS[name]
    expected = weights_of_formula(component, formula, RATES)
    weights, _ = weights_of_chainer(component, RATES)
    assert weights.dtype == np.float32
    np.testing.assert_allclose(weights, expected, rtol=2e-5, atol=2e-6)


def test_the_rates_of_this_test_tell_all_formulas_apart():
    formulas = {formula for _, formula in FORMULAS.values() if formula is not adam}
    ends = [weights_of_formula(FORMULAS["MomentumSGD"][0], formula, RATES) for formula in formulas]
    for i, one in enumerate(ends):
        assert all(np.abs(one - other).max() > 1e-3 for other in ends[:i])


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_state_is_as_large_as_announced(name):
    component, _ = FORMULAS[name]
    weights, rule = weights_of_chainer(component, RATES)
    values = sum(array.size for array in (rule.state or {}).values())
    assert values == component.num_state_values * weights.size
    assert all(array.dtype == np.float32 for array in (rule.state or {}).values())


def test_at_a_constant_rate_both_places_for_the_rate_are_equal():
    rates = [0.05] * NUM_UPDATES
    inside, _ = weights_of_chainer(MomentumSGD(weight_decay=DECAY), rates)
    outside, _ = weights_of_chainer(CorrectedMomentumSGD(weight_decay=DECAY), rates)
    np.testing.assert_allclose(inside, outside, rtol=1e-4, atol=1e-5)


def test_at_a_constant_rate_corrected_nesterov_is_the_published_one():
    """Bengio et al. 2012, eq. (7), with the old v: not what Chainer's NesterovAG computes."""

    def published(w, g, rate, state, hyper):
        m, old = hyper.momentum, state.get("v", 0)
        state["v"] = m * old - rate * g
        return w + m**2 * old - (1 + m) * rate * g

    component = CorrectedNesterovAG(weight_decay=DECAY)
    rates = [0.05] * NUM_UPDATES
    expected = weights_of_formula(component, published, rates)
    weights, _ = weights_of_chainer(component, rates)
    np.testing.assert_allclose(weights, expected, rtol=1e-4, atol=1e-5)
    chainers, _ = weights_of_chainer(NesterovAG(weight_decay=DECAY), rates)
    assert np.abs(chainers - expected).max() > 1e-2


def test_one_gradient_is_spent_as_documented():
    """Gradient 1 in the first update only, rate 1, m = 1/2: the steps are the weights of the docstrings."""
    zero = np.zeros((), np.float64)
    steps = {}
    for name in ("MomentumSGD", "NesterovAG", "CorrectedNesterovAG"):
        component = type(FORMULAS[name][0])(momentum=0.5)
        w, state, ends = zero, {}, [0.0]
        for g in (1.0, 0.0, 0.0):
            w = FORMULAS[name][1](w, np.float64(g), 1.0, state, component)
            ends.append(float(w))
        steps[name] = [before - after for before, after in zip(ends, ends[1:], strict=False)]
    assert steps == {
        "MomentumSGD": [1.0, 0.5, 0.25],
        "NesterovAG": [1.75, 0.125, 0.0625],
        "CorrectedNesterovAG": [1.5, 0.25, 0.125],
    }


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_an_update_before_the_rate_is_set_shows_at_once(name):
    weights, _ = weights_of_chainer(FORMULAS[name][0], [float("nan")] * NUM_UPDATES)
    assert np.isnan(weights).all()
    component = FORMULAS[name][0]
    assert np.isnan(getattr(component.build(), component.rate_attribute))
