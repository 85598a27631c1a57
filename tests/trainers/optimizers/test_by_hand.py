"""One parameter, numbers that a reader checks in the head, and where formulas must and must not agree."""

import chainer
import numpy as np
import pytest

from trainers.optimizers import (
    SGD,
    Adam,
    CorrectedMomentumSGD,
    CorrectedNesterovAG,
    Lamb,
    Lars,
    MomentumSGD,
    NesterovAG,
    RmspropWarmup,
)
from trainers.optimizers.hyperparameters import Hyperparameters, set_hyperparameters
from trainers.optimizers.lars import norm
from trainers.optimizers.weight_decay import decay_parameters


def steps(component, gradients, *, start=0.0, rates=None, full_rate=1.0, epoch=0.0):
    """What each update adds to one weight (or, from a list, to each of several in one tensor); float64."""
    w = np.asarray(start, np.float64)
    model = chainer.Chain()
    with model.init_scope():
        model.W = chainer.Parameter(w.copy())
    optimizer = component.build().setup(model)
    decay_parameters(optimizer, component)
    ends = [w]
    for gradient, rate in zip(gradients, rates or [1.0] * len(gradients), strict=True):
        moment = Hyperparameters(update=0, epoch=epoch, global_batch_size=1, learning_rate=rate, full_rate=full_rate)
        set_hyperparameters(component, optimizer, moment)
        model.W.grad = np.array(gradient, np.float64)  # a copy: coupled decay is added to it in place
        optimizer.update()
        ends.append(model.W.array.copy())
    return [(after - before).tolist() for before, after in zip(ends, ends[1:], strict=False)]


def test_one_gradient_is_spent_as_documented():
    """Gradient 1 in the first update only, rate 1, m = 1/2: the steps are the weights of the docstrings."""
    spent = [1.0, 0.0, 0.0]
    assert steps(SGD(), spent) == [-1.0, 0, 0]
    assert steps(MomentumSGD(momentum=0.5), spent) == [-1.0, -0.5, -0.25]
    assert steps(CorrectedMomentumSGD(momentum=0.5), spent) == [-1.0, -0.5, -0.25]
    assert steps(NesterovAG(momentum=0.5), spent) == [-1.5, -0.25, -0.125]
    assert steps(CorrectedNesterovAG(momentum=0.5), spent) == [-1.5, -0.25, -0.125]


def test_a_rate_that_falls_by_10_shortens_what_is_in_the_buffer_only_where_it_stands_outside():
    kinds = (MomentumSGD, CorrectedMomentumSGD, NesterovAG, CorrectedNesterovAG)
    found = [steps(kind(momentum=0.5), [1.0, 0.0], rates=[1.0, 0.1]) for kind in kinds]
    assert found == pytest.approx(np.array([[-1.0, -0.5], [-1.0, -0.05], [-1.5, -0.25], [-1.5, -0.025]]))


def test_the_first_step_of_adam_is_the_rate():
    assert steps(Adam(eps=1e-12), [3.0], rates=[0.25]) == pytest.approx([-0.25])


@pytest.mark.parametrize("kind", [SGD, MomentumSGD, CorrectedMomentumSGD, NesterovAG, CorrectedNesterovAG, Adam])
def test_a_weight_of_2_without_gradient_loses_what_its_form_of_decay_says(kind):
    """Rate 1/2 of a full rate of 2, lambda 1/8: 1/16 or 1/32 of the weight, and no momentum of it is left."""
    decayed = {
        form: steps(kind(weight_decay=0.125, decay=form), [0.0, 0.0], start=2.0, rates=[0.5, 1e-9], full_rate=2.0)
        for form in ("times_rate", "times_relative_rate")
    }
    assert decayed["times_rate"] == pytest.approx([-0.125, 0], abs=1e-9)
    assert decayed["times_relative_rate"] == pytest.approx([-0.0625, 0], abs=1e-9)


def test_coupled_decay_is_part_of_the_gradient():
    assert steps(SGD(weight_decay=0.125), [0.0], start=2.0, rates=[0.5]) == [-0.125]
    assert steps(MomentumSGD(momentum=0.5, weight_decay=0.125), [0.0, 0.0], start=2.0) == [-0.25, -0.125 - 0.21875]
    assert steps(Adam(weight_decay=0.125, eps=1e-12), [0.0], start=2.0) == pytest.approx([-1.0])


def test_at_a_constant_rate_both_places_for_the_rate_are_equal():
    draws = np.random.default_rng(0).standard_normal((50, 6))
    inside, outside = (
        steps(kind(weight_decay=0.01), draws, start=[1.0] * 6, rates=[0.05] * 50)
        for kind in (MomentumSGD, CorrectedMomentumSGD)
    )
    np.testing.assert_allclose(inside, outside, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [NesterovAG, CorrectedNesterovAG])
def test_at_a_constant_rate_nesterov_is_the_published_one(kind):
    """Bengio et al. 2012, eq. (7), with the old v."""
    draws, m, rate, old, published = np.random.default_rng(0).standard_normal(50), 0.9, 0.05, 0.0, []
    for g in draws:
        published.append(m**2 * old - (1 + m) * rate * g)
        old = m * old - rate * g
    assert steps(kind(), draws, rates=[rate] * 50) == pytest.approx(published)


def test_rmsprop_warmup_at_its_center_is_half_of_each():
    """At epoch 10: a = 1/2, eta b = 1/2 * 0.003; g = 2, so sqrt(m) = 0.2 and 1/2 * 2 * eta + 0.0015 * 10."""
    component = RmspropWarmup(rmsprop_learning_rate=0.003, eps=1e-12)
    assert steps(component, [2.0], rates=[0.1], epoch=10.0) == pytest.approx([-0.115])


def test_rmsprop_warmup_carries_both_terms_in_the_momentum():
    """Nothing follows the first gradient; half of the whole step does, the RMSprop term's part too."""
    component = RmspropWarmup(mu1=0.5, rmsprop_learning_rate=0.003, eps=1e-12)
    assert steps(component, [2.0, 0.0], rates=[0.1] * 2, epoch=10.0) == pytest.approx([-0.115, -0.0575])


def test_rmsprop_warmup_begins_with_the_rmsprop_rate_whatever_the_rate_is():
    component = RmspropWarmup(beta_center=1000.0, eps=1e-12)
    small, large = (steps(component, [2.0], rates=[rate])[0] for rate in (0.1, 100.0))
    assert small == pytest.approx(-3e-4 * 10)
    assert large == pytest.approx(small)


@pytest.mark.parametrize(("transition", "over"), [("continuous", 12.5), ("printed", 11.25)])
def test_rmsprop_warmup_is_sgd_when_it_is_over(transition, over):
    component = RmspropWarmup(transition=transition)
    spent, rates = [1.0, 2.0, 0.0], [1.0, 0.1, 0.01]
    expected = steps(CorrectedMomentumSGD(), spent, rates=rates)
    assert steps(component, spent, rates=rates, epoch=over) == expected
    assert steps(component, spent, rates=rates, epoch=over - 0.01) != expected


def test_rmsprop_warmup_refuses_a_rate_of_0_while_it_divides_by_it():
    with pytest.raises(ValueError, match="divides its RMSprop rate by the learning rate, which is 0 at epoch 3;"):
        steps(RmspropWarmup(), [1.0], rates=[0.0], epoch=3.0)
    assert steps(RmspropWarmup(), [1.0], rates=[0.0], epoch=13.0) == [0.0]


# ||w|| = 5, ||g|| = 10: with trust_coefficient 1/2 and no decay the ratio is 1/4.
W, G = [3.0, 4.0], [6.0, 8.0]


@pytest.mark.parametrize(
    ("options", "ratio"),
    [
        ({}, 0.25),
        ({"weight_decay": 2.0}, 0.125),  # 1/2 * 5 / (10 + 2 * 5)
        ({"weight_decay": 2.0, "decay_in_trust": False}, 0.25),
        ({"eps": 10.0}, 0.125),
        ({"clip": True}, 0.25),  # not above the rate of 1/2: 0.25 / 0.5, of a rate of 1/2
        ({"clip": True, "trust_coefficient": 8.0}, 0.5),
    ],
)
def test_lars_multiplies_the_decayed_gradient_by_the_ratio(options, ratio):
    rate = 0.5 if "clip" in options else 1.0
    component = Lars(**{"trust_coefficient": 0.5, **options})
    decayed = np.add(G, np.multiply(component.weight_decay, W))
    assert steps(component, [G], start=W, rates=[rate]) == [pytest.approx((-ratio * decayed).tolist())]


@pytest.mark.parametrize("clip", [True, False])
@pytest.mark.parametrize(("start", "gradient"), [([0.0, 0.0], G), (W, [0.0, 0.0]), ([0.0, 0.0], [0.0, 0.0])])
def test_lars_has_a_ratio_of_1_where_a_norm_is_0(start, gradient, clip):
    component = Lars(trust_coefficient=0.5, weight_decay=0.1, clip=clip)
    expected = -4.0 * np.add(gradient, np.multiply(0.1, start))
    assert steps(component, [gradient], start=start, rates=[4.0]) == [pytest.approx(expected.tolist())]


def test_lars_is_independent_of_the_size_of_the_gradient():
    small, large = (steps(Lars(), [np.multiply(G, scale)], start=W)[0] for scale in (1e-30, 1e30))
    assert small == pytest.approx(large)
    assert np.linalg.norm(small) == pytest.approx(0.001 * 5)


def test_lars_keeps_the_rate_it_came_with_only_inside_the_buffer():
    """The second gradient is so small against the first that nearly all of the second step is momentum."""
    gradients, rates = [G, [0.0, 0.0]], [1.0, 0.1]
    inside, outside = (
        steps(Lars(momentum=0.5, trust_coefficient=0.5, rate=rate), gradients, start=W, rates=rates)
        for rate in ("inside", "outside")
    )
    assert inside == [pytest.approx([-1.5, -2.0]), pytest.approx([-0.75, -1.0])]
    assert outside == [pytest.approx([-1.5, -2.0]), pytest.approx([-0.075, -0.1])]


def test_nesterov_of_lars_looks_ahead_by_one_momentum():
    component = Lars(momentum=0.5, trust_coefficient=0.5, nesterov=True)
    assert steps(component, [G], start=W) == [pytest.approx([-2.25, -3.0])]


def test_lars_that_begins_at_a_rate_of_0_moves_nothing():
    for rate in ("inside", "outside"):
        assert steps(Lars(rate=rate, clip=True), [G], start=W, rates=[0.0]) == [[0.0, 0.0]]


def test_lamb_steps_by_the_norm_of_the_weights():
    """The first r is (1, 1) whatever the gradient, its norm sqrt(2): each weight moves by rate * 5 / sqrt(2)."""
    step = 0.1 * 5 / 2**0.5
    assert steps(Lamb(eps=1e-12), [G], start=W, rates=[0.1]) == [pytest.approx([-step, -step])]


def test_lamb_without_correction_begins_with_what_the_moments_hold():
    """m = 0.1 g, sqrt(v) = sqrt(0.001) g: r is the same direction, so only a tensor without a ratio shows it."""
    with_ratio, plain = (
        steps(Lamb(eps=1e-12, bias_correction=False), [G], start=start, rates=[0.1]) for start in (W, [0.0, 0.0])
    )
    np.testing.assert_allclose(with_ratio, steps(Lamb(eps=1e-12), [G], start=W, rates=[0.1]))
    assert plain == [pytest.approx([-0.1 * 0.1 / 0.001**0.5] * 2)]


@pytest.mark.parametrize(("bounds", "phi"), [(None, 5.0), ((0.0, 10.0), 5.0), ((6.0, 10.0), 6.0), ((0.0, 2.0), 2.0)])
def test_lamb_clips_the_norm_of_the_weights(bounds, phi):
    component = Lamb(eps=1e-12, trust_bounds=bounds)
    (step,) = steps(component, [G], start=W, rates=[0.1])
    assert np.linalg.norm(step) == pytest.approx(0.1 * phi)


def test_lamb_has_a_ratio_of_1_where_a_norm_is_0_whatever_the_bounds():
    component = Lamb(eps=1e-12, trust_bounds=(6.0, 10.0), weight_decay=0.5)
    assert steps(component, [G], start=[0.0, 0.0], rates=[0.1]) == [pytest.approx([-0.1, -0.1])]
    assert steps(component, [[0.0, 0.0]], start=[0.0, 0.0], rates=[0.1]) == [[0.0, 0.0]]


def test_lamb_shares_its_step_between_gradient_and_decay():
    """Without a gradient the weights shrink by the whole rate, whatever lambda is."""
    for weight_decay in (0.01, 1.0):
        component = Lamb(weight_decay=weight_decay)
        assert steps(component, [[0.0, 0.0]], start=W, rates=[0.1]) == [pytest.approx([-0.3, -0.4])]


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ([0.0, 1.0], r"Lamb\.trust_bounds must be null or two numbers \(low, high\), got \[0\.0, 1\.0\]"),
        ((1.0,), r"Lamb\.trust_bounds must be null or two numbers"),
        ((-1.0, 1.0), r"Lamb\.trust_bounds\.0 must be >= 0"),
        ((0.0, 0.0), r"Lamb\.trust_bounds\.1 must be > 0"),
        ((2.0, 1.0), r"Lamb\.trust_bounds must be \(low, high\) with low <= high"),
    ],
)
def test_bounds_that_are_none_are_refused(bounds, message):
    with pytest.raises(ValueError, match=message):
        Lamb(trust_bounds=bounds)


def test_a_norm_is_that_of_numbers_whose_squares_float32_has_not():
    assert norm(np, np.full(4, 1e-30, np.float32)) == pytest.approx(2e-30)
    assert norm(np, np.full(4, 1e30, np.float32)) == pytest.approx(2e30)
