"""Every optimizer, at every fork, against its paper transcribed in float64, over 50 updates of recorded gradients."""

import copy
import dataclasses
import typing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recipes.planning.rates import momentum_key
from recipes.schema import RateFactor
from trainers import optimizers
from trainers.optimizers import (
    SGD,
    Adam,
    AdaScale,
    CorrectedMomentumSGD,
    CorrectedNesterovAG,
    Lamb,
    Lars,
    MomentumSGD,
    Muon,
    NesterovAG,
    RmspropWarmup,
    ScheduleFreeSGD,
)
from trainers.optimizers.hyperparameters import set_rate_factors

DECAY = 0.1


def sgd(w, g, now, state, of):
    return w - now.rate * g


def momentum_inside(w, g, now, state, of):
    """Goyal et al. 2017, eq. (10)."""
    state["v"] = of.momentum * state.get("v", 0) + now.rate * g
    return w - state["v"]


def momentum_outside(w, g, now, state, of):
    """Goyal et al. 2017, eq. (9)."""
    state["v"] = of.momentum * state.get("v", 0) + g
    return w - now.rate * state["v"]


def nesterov_inside(w, g, now, state, of):
    """Bengio et al. 2012, eq. (7), which has the old v in the step."""
    m, old = of.momentum, state.get("v", 0)
    state["v"] = m * old - now.rate * g
    return w + m**2 * old - (1 + m) * now.rate * g


def nesterov_outside(w, g, now, state, of):
    state["v"] = of.momentum * state.get("v", 0) + g
    return w - now.rate * (g + of.momentum * state["v"])


def adam(w, g, now, state, of):
    """Kingma and Ba 2014, section 2 with the efficient order of its last paragraph."""
    t = state["t"] = state.get("t", 0) + 1
    state["m"] = of.beta1 * state.get("m", 0) + (1 - of.beta1) * g
    state["v"] = of.beta2 * state.get("v", 0) + (1 - of.beta2) * g**2
    step = now.rate * np.sqrt(1 - of.beta2**t) / (1 - of.beta1**t)
    return w - step * state["m"] / (np.sqrt(state["v"]) + of.eps)


def rmsprop_warmup(w, g, now, state, of):
    """Akiba et al. 2017 as transcribed; the corrected slope where the transition is continuous."""
    slope = 2 if of.transition == "printed" else 1
    after_center = (now.epoch - of.beta_center) / of.beta_period
    if after_center < 0:
        alpha_sgd = np.exp(2 * after_center) / 2
    elif after_center < 1 / 2:
        alpha_sgd = min(1 / 2 + slope * after_center, 1)
    else:
        alpha_sgd = 1
    alpha_rmsprop = (1 - alpha_sgd) * of.rmsprop_learning_rate / now.base
    state["m"] = of.mu2 * state.get("m", 0) + (1 - of.mu2) * g**2
    state["d"] = of.mu1 * state.get("d", 0) - (alpha_sgd + alpha_rmsprop / (np.sqrt(state["m"]) + of.eps)) * g
    return w + now.rate * state["d"]


def lars(w, g, now, state, of):
    """You et al. 2017, equations 6 to 8 of algorithm 1, and the variants that our docstring names."""
    weight_decay, trust = (0.0, 1.0) if now.exempt else (of.weight_decay, None)
    norm_w, norm_g = np.linalg.norm(w), np.linalg.norm(g)
    if trust is None and (norm_w == 0 or norm_g == 0):
        trust = 1.0
    if trust is None:
        trust = of.trust_coefficient * norm_w / (norm_g + of.decay_in_trust * weight_decay * norm_w + of.eps)
        trust = min(trust / now.rate, 1) if of.clip else trust
    scaled = trust * (g + weight_decay * w)
    if of.rate == "inside":
        state["v"] = of.momentum * state.get("v", 0) + now.rate * scaled
        return w - (of.momentum * state["v"] + now.rate * scaled if of.nesterov else state["v"])
    state["v"] = of.momentum * state.get("v", 0) + scaled
    return w - now.rate * (of.momentum * state["v"] + scaled if of.nesterov else state["v"])


def lamb(w, g, now, state, of):
    """You et al. 2019, algorithm 2."""
    t = state["t"] = state.get("t", 0) + 1
    m = state["m"] = of.beta1 * state.get("m", 0) + (1 - of.beta1) * g
    v = state["v"] = of.beta2 * state.get("v", 0) + (1 - of.beta2) * g**2
    if of.bias_correction:
        m, v = m / (1 - of.beta1**t), v / (1 - of.beta2**t)
    r = m / (np.sqrt(v) + of.eps) + (0 if now.exempt else of.weight_decay) * w
    norm_w, norm_r = np.linalg.norm(w), np.linalg.norm(r)
    if now.exempt or norm_w == 0 or norm_r == 0:
        return w - now.rate * r
    low, high = of.trust_bounds or (0, np.inf)
    return w - now.rate * min(max(norm_w, low), high) / norm_r * r


def muon(w, g, now, state, of):
    """muon.py of Jordan et al., its polynomial applied to the singular values; not for vectors and the last layer."""
    state["m"] = of.momentum * state.get("m", 0) + (1 - of.momentum) * g
    u = (1 - of.momentum) * g + of.momentum * state["m"]
    if w.ndim == 1 or (w.ndim == 2 and of.others):  # the network's only matrix is its last layer
        return w - now.rate * u
    rows, columns = len(w), w.size // len(w)
    left, values, right = np.linalg.svd(u.reshape(rows, columns), full_matrices=False)
    values = values / (np.sqrt(np.sum(values**2)) + 1e-7)
    for _ in range(of.iterations):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    s = {"rows": max(1, rows / columns) ** 0.5, "largest": 0.2 * max(rows, columns) ** 0.5, "none": 1}[of.scale]
    return w - now.rate * s * ((left * values) @ right).reshape(w.shape)


def schedule_free(w, g, now, state, of):
    """Defazio et al. 2024 with its three sequences; the weights are y, of which g is the gradient."""
    state["largest"] = max(state.get("largest", 0), now.rate)
    state["sum"] = state.get("sum", 0) + state["largest"] ** 2
    c = state["largest"] ** 2 / state["sum"]
    state["z"] = state.get("z", w) - now.rate * g
    state["x"] = (1 - c) * state.get("x", w) + c * state["z"]
    return (1 - of.beta) * state["z"] + of.beta * state["x"]


WARMUP = {"mu1": 0.8, "mu2": 0.95, "eps": 1e-3, "rmsprop_learning_rate": 3e-3, "weight_decay": DECAY}
FORMULAS = {
    "AdaScale": (AdaScale(momentum=0.8, weight_decay=DECAY), momentum_outside),  # its gain comes with the rate
    "RmspropWarmup": (RmspropWarmup(**WARMUP), rmsprop_warmup),
    "RmspropWarmup printed": (RmspropWarmup(**WARMUP, transition="printed"), rmsprop_warmup),
    "ScheduleFreeSGD": (ScheduleFreeSGD(weight_decay=DECAY, no_decay=("bias",)), schedule_free),
    "ScheduleFreeSGD nearer to its iterate": (ScheduleFreeSGD(beta=0.6, weight_decay=DECAY), schedule_free),
}
MUON = {"momentum": 0.8, "weight_decay": DECAY}
for _name, _options in {
    "": {},
    "of the last layer too": {"others": ()},
    "as long as Adam": {"scale": "largest"},
    "unscaled in 3": {"scale": "none", "iterations": 3, "others": ()},
}.items():
    FORMULAS[f"Muon {_name}"] = (Muon(**{**MUON, **_options}), muon)
LARS = {"momentum": 0.8, "trust_coefficient": 0.05, "weight_decay": DECAY}
LAMB = {"beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": DECAY}
for _name, _options in {
    "": {},
    "without decay in the ratio": {"decay_in_trust": False},
    "outside": {"rate": "outside"},
    "nesterov": {"nesterov": True},
    "nesterov outside": {"nesterov": True, "rate": "outside"},
    "eps": {"eps": 0.1},
    "clip": {"clip": True},
    "clip outside": {"clip": True, "rate": "outside"},
    "of every tensor": {"no_decay": ()},
}.items():
    FORMULAS[f"Lars {_name}"] = (Lars(**{**LARS, **_options}), lars)
for _name, _options in {
    "": {},
    "uncorrected": {"bias_correction": False},
    "bounded": {"trust_bounds": (0.5, 1.5)},
    "of every tensor": {"no_decay": ()},
}.items():
    FORMULAS[f"Lamb {_name}"] = (Lamb(**{**LAMB, **_options}), lamb)
for _form in ("coupled", "times_rate", "times_relative_rate"):
    FORMULAS |= {
        f"{type(component).__name__} {_form}": (component, formula)
        for component, formula in (
            (SGD(weight_decay=DECAY, decay=_form, no_decay=("norm",)), sgd),
            (MomentumSGD(momentum=0.8, weight_decay=DECAY, decay=_form), momentum_inside),
            (CorrectedMomentumSGD(momentum=0.8, weight_decay=DECAY, decay=_form), momentum_outside),
            (NesterovAG(momentum=0.8, weight_decay=DECAY, decay=_form), nesterov_inside),
            (CorrectedNesterovAG(momentum=0.8, weight_decay=DECAY, decay=_form), nesterov_outside),
            (Adam(beta1=0.8, beta2=0.95, eps=1e-3, weight_decay=DECAY, decay=_form), adam),
        )
    }


@pytest.fixture(params=sorted(FORMULAS))
def case(request):
    return FORMULAS[request.param]


def is_exempt(path, no_decay):
    return ("norm" in no_decay and path.startswith("/bn/")) or ("bias" in no_decay and path.endswith("/b"))


def as_is(component, update):
    return component


def transcribed(component, formula, recorded, at=as_is, factor_of=lambda path: 1.0):
    """The weights by path where the paper's formula, with the component `at` each update, does all in float64."""
    ends = {}
    for path, w in recorded.weights.items():
        w, state, exempt = w.astype(np.float64), {}, is_exempt(path, component.no_decay)
        undecayed = exempt or getattr(component, "decays_itself", False)
        form = getattr(component, "decay", "coupled")
        for update, full in enumerate(recorded.rates):
            now_of, rate = at(component, update), factor_of(path) * full
            decay = 0.0 if undecayed else now_of.weight_decay
            g = recorded.gradients[update][path].astype(np.float64)
            now = SimpleNamespace(rate=rate, base=full, epoch=recorded.epochs[update], exempt=exempt)
            if form == "coupled":
                g = g + decay * w
            else:
                w = (1 - decay * (rate if form == "times_rate" else full / recorded.full_rate)) * w
            w = formula(w, g, now, state, now_of)
        ends[path] = w
    return ends


def largest_deviation(ours, theirs):
    """Over the tensors, of the tensor's largest value."""
    return max(np.abs(ours[path] - theirs[path]).max() / np.abs(theirs[path]).max() for path in theirs)


def weights(component, recorded, dtype=np.float32):
    return recorded.replay(component, *recorded.setup(component, dtype))


def test_no_optimizer_and_no_option_is_missing_here():
    components = [component for component, _ in FORMULAS.values()]
    here = {type(component).__name__ for component in components}
    others = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    assert [name for name in optimizers.__all__ if name not in here and f"{name}(" not in others] == []
    for cls in {type(component) for component in components}:
        hints = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            options = (True, False) if hints[field.name] is bool else typing.get_args(hints[field.name])
            if hints[field.name] is bool or typing.get_origin(hints[field.name]) is typing.Literal:
                used = {getattr(component, field.name) for component in components if type(component) is cls}
                assert used == set(options) or (cls, field.name) == (AdaScale, "clock"), field


def test_50_updates_in_float32_are_within_2e_6_of_the_tensors_largest_value(case, recorded):
    ours = weights(case[0], recorded)
    assert {array.dtype for array in ours.values()} == {np.dtype(np.float32)}
    assert largest_deviation(ours, transcribed(*case, recorded)) <= 2e-6


def test_50_updates_in_float64_are_within_1e_10(case, recorded):
    ours = weights(case[0], recorded, np.float64)
    assert {array.dtype for array in ours.values()} == {np.dtype(np.float64)}
    assert largest_deviation(ours, transcribed(*case, recorded)) <= 1e-10


def moving(component, update):
    """Momentum from 0.6 to 1 and decay from 2 to 0 times the component's, both in a straight line."""
    share = update / 49
    moved = {"weight_decay": component.weight_decay * 2 * (1 - share)}
    key = momentum_key(component)
    if key:
        moved[key] = getattr(component, key) * (0.6 + 0.4 * share)
    return dataclasses.replace(component, **moved)


def test_50_updates_while_momentum_and_decay_move(case, recorded):
    ours = recorded.replay(case[0], *recorded.setup(case[0], np.float64), at=moving)
    assert largest_deviation(ours, transcribed(*case, recorded, at=moving)) <= 1e-10
    assert largest_deviation(ours, transcribed(*case, recorded)) > 1e-3


FACTORS = (RateFactor(parameters=("bias", "/conv/*"), factor=0.5), RateFactor(parameters=("/c*", "norm"), factor=3.0))


def test_50_updates_with_rates_of_single_parameters(case, recorded):
    """The first entry that names a parameter holds: the convolution has 0.5, and not 3."""
    model, optimizer = recorded.setup(case[0], np.float64)
    set_rate_factors(optimizer, FACTORS)
    by_path = {"/conv/W": 0.5, "/fc/b": 0.5, "/bn/gamma": 3.0, "/bn/beta": 3.0}
    ours = recorded.replay(case[0], model, optimizer)
    theirs = transcribed(*case, recorded, factor_of=lambda path: by_path.get(path, 1.0))
    assert largest_deviation(ours, theirs) <= 1e-10


def test_a_rate_factor_that_names_nothing_is_refused(recorded):
    _, optimizer = recorded.setup(SGD())
    with pytest.raises(ValueError, match=r"learning_rate.factors: /head/\* names no parameter of the model$"):
        set_rate_factors(optimizer, [RateFactor(parameters=("/head/*",), factor=1.0)])


@pytest.mark.parametrize(
    ("words", "loaded", "frozen"),
    [
        (("norm",), {"/bn/gamma", "/bn/beta"}, True),
        (("/bn/*",), {"/bn/gamma", "/bn/beta"}, True),
        (("/bn/gamma",), {"/bn/gamma", "/bn/beta"}, False),
        (("norm",), (), False),
    ],
)
def test_a_normalisation_is_frozen_by_a_factor_of_0_on_both_of_its_loaded_parameters(words, loaded, frozen, recorded):
    model, optimizer = recorded.setup(SGD())
    set_rate_factors(optimizer, [RateFactor(parameters=words, factor=0.0)], loaded=loaded)
    assert getattr(model.bn, "is_frozen", False) is frozen


def test_half_precision_weights_follow_the_formula_in_their_float32_copies(case, recorded):
    halves = copy.copy(recorded)
    halves.weights, *halves.gradients = (
        {path: array.astype(np.float16) for path, array in arrays.items()}
        for arrays in (recorded.weights, *recorded.gradients)
    )
    model, optimizer = halves.setup(case[0], np.float16)
    optimizer.use_fp32_update()
    halves.replay(case[0], model, optimizer)
    copies = {path: parameter.update_rule._fp32_param.array for path, parameter in model.namedparams()}
    assert {array.dtype for array in copies.values()} == {np.dtype(np.float32)}
    assert largest_deviation(copies, transcribed(*case, halves)) <= 2e-6


def test_the_recording_tells_all_formulas_and_options_apart(recorded):
    """But for AdaScale, which is another's formula, and SGD, where decay in the gradient is decay times the rate."""
    cases = {name: case for name, case in FORMULAS.items() if name not in ("AdaScale", "SGD times_rate")}
    ends = {name: transcribed(*case, recorded) for name, case in cases.items()}
    names = sorted(ends)
    for i, name in enumerate(names):
        for other in names[:i]:
            assert largest_deviation(ends[name], ends[other]) > 1e-3, (name, other)


def test_a_run_resumed_after_20_updates_ends_in_the_same_bits(case, recorded, tmp_path):
    whole, resumed = weights(case[0], recorded), recorded.interrupted(case[0], tmp_path)
    assert all((whole[path] == resumed[path]).all() for path in whole)


def test_the_evaluated_point_of_schedule_free_sgd_is_the_average_of_its_iterates(recorded):
    """x of the weights that follow from the whole list of iterates z, each with the weight of its rate."""
    component, rates = ScheduleFreeSGD(beta=0.7), np.array(recorded.rates)
    model, optimizer = recorded.setup(component, np.float64)
    recorded.replay(component, model, optimizer)
    shares = np.maximum.accumulate(rates) ** 2 / (np.maximum.accumulate(rates) ** 2).sum()
    for path, parameter in model.namedparams():
        steps = [rate * of[path].astype(np.float64) for rate, of in zip(rates, recorded.gradients, strict=True)]
        iterates = recorded.weights[path] - np.cumsum(steps, axis=0)
        x = np.tensordot(shares, iterates, axes=1)
        np.testing.assert_allclose(component.evaluated(parameter.array, parameter.update_rule.state), x, atol=1e-12)


def test_schedule_free_sgd_waits_where_a_warmup_begins_at_0(recorded):
    zero = copy.copy(recorded)
    zero.rates = [0.0] * 3
    model, optimizer = zero.setup(ScheduleFreeSGD(), np.float64)
    for path, array in zero.replay(ScheduleFreeSGD(), model, optimizer, range(3)).items():
        np.testing.assert_array_equal(array, recorded.weights[path])


def test_state_is_as_large_as_announced(case, recorded):
    model, optimizer = recorded.setup(case[0])
    recorded.replay(case[0], model, optimizer, range(1))
    announced = case[0].num_state_values if not hasattr(case[0], "states") else len(case[0].states)
    for parameter in model.params():
        state = [array for array in (parameter.update_rule.state or {}).values() if array.ndim]  # no single numbers
        assert sum(array.size for array in state) == announced * parameter.size
        assert all(array.dtype == np.float32 for array in state)


def test_an_update_before_the_rate_is_set_shows_at_once(case, recorded):
    model, optimizer = recorded.setup(case[0])
    assert np.isnan(getattr(optimizer, case[0].rate_attribute))
    optimizer.hyperparam.epoch = 0.0
    optimizer.hyperparam.base_rate = optimizer.hyperparam.relative_rate = float("nan")
    for path, parameter in model.namedparams():
        parameter.grad = recorded.gradients[0][path]
    optimizer.update()
    assert all(np.isnan(parameter.array).all() for parameter in model.params())
