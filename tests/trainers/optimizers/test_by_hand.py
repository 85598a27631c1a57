"""One parameter, numbers that a reader checks in the head, and where formulas must and must not agree."""

import chainer
import numpy as np
import pytest

from trainers.optimizers import (
    SGD,
    Adam,
    CorrectedMomentumSGD,
    CorrectedNesterovAG,
    MomentumSGD,
    NesterovAG,
    RmspropWarmup,
)
from trainers.optimizers.weight_decay import decay_parameters
from trainers.steering import Moment, steer


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
        moment = Moment(update=0, epoch=epoch, global_batch_size=1, learning_rate=rate, full_rate=full_rate)
        steer(component, optimizer, moment)
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
    assert steps(NesterovAG(momentum=0.5), spent) == [-1.75, -0.125, -0.0625]
    assert steps(CorrectedNesterovAG(momentum=0.5), spent) == [-1.5, -0.25, -0.125]


def test_a_rate_that_falls_by_10_shortens_what_is_in_the_buffer_only_where_it_stands_outside():
    inside, outside = (
        steps(kind(momentum=0.5), [1.0, 0.0], rates=[1.0, 0.1]) for kind in (MomentumSGD, CorrectedMomentumSGD)
    )
    assert inside == [-1.0, -0.5]
    assert outside == pytest.approx([-1.0, -0.05])


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


def test_at_a_constant_rate_corrected_nesterov_is_the_published_one():
    """Bengio et al. 2012, eq. (7), with the old v: not what Chainer's NesterovAG computes."""
    draws, m, rate, old, published = np.random.default_rng(0).standard_normal(50), 0.9, 0.05, 0.0, []
    for g in draws:
        published.append(m**2 * old - (1 + m) * rate * g)
        old = m * old - rate * g
    assert steps(CorrectedNesterovAG(), draws, rates=[rate] * 50) == pytest.approx(published)
    assert np.abs(np.subtract(steps(NesterovAG(), draws, rates=[rate] * 50), published)).max() > 1e-2


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
def test_rmsprop_warmup_is_momentum_sgd_when_it_is_over(transition, over):
    component = RmspropWarmup(transition=transition)
    spent, rates = [1.0, 2.0, 0.0], [1.0, 0.1, 0.01]
    expected = steps(CorrectedMomentumSGD(), spent, rates=rates)
    assert steps(component, spent, rates=rates, epoch=over) == expected
    assert steps(component, spent, rates=rates, epoch=over - 0.01) != expected


def test_rmsprop_warmup_refuses_a_rate_of_0_while_it_divides_by_it():
    with pytest.raises(ValueError, match="divides its RMSprop rate by the learning rate, which is 0 at epoch 3;"):
        steps(RmspropWarmup(), [1.0], rates=[0.0], epoch=3.0)
    assert steps(RmspropWarmup(), [1.0], rates=[0.0], epoch=13.0) == [0.0]
