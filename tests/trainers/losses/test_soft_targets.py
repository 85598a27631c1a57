"""What every loss makes of its targets: labels and mixtures of labels are one thing."""

import chainer
import numpy as np
import pytest

from trainers import losses
from trainers.losses import soft_targets

LOSSES = [
    losses.SoftmaxCrossEntropy(),
    losses.SoftmaxCrossEntropy(label_smoothing=0.1),
    losses.BinaryCrossEntropy(),
    losses.BinaryCrossEntropy(label_smoothing=0.1, target_threshold=0.2),
]


def test_no_loss_is_missing_here():
    assert {type(loss).__name__ for loss in LOSSES} == set(losses.__all__)


def samples(dtype=np.float32):
    draws = np.random.default_rng(1)
    labels = draws.integers(6, size=8).astype(np.int32)
    return draws.standard_normal((8, 6)).astype(dtype), labels, np.eye(6, dtype=np.float32)[labels]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_of_one_label_is_that_label_bit_for_bit(smoothing, dtype):
    logits, labels, rows = samples(dtype)
    of_labels, of_rows = (soft_targets(t, like=logits, label_smoothing=smoothing) for t in (labels, rows))
    assert of_labels.dtype == of_rows.dtype == dtype
    assert (of_labels == of_rows).all()


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_smoothing_a_mixture_is_mixing_the_smoothed(smoothing):
    logits, labels, rows = samples()
    share = 0.7
    first, second = (soft_targets(t, like=logits, label_smoothing=smoothing) for t in (labels, labels[::-1]))
    mixed = (share * rows + (1 - share) * rows[::-1]).astype(np.float32)
    found = soft_targets(mixed, like=logits, label_smoothing=smoothing)
    np.testing.assert_allclose(found, share * first + (1 - share) * second, rtol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_labels_and_their_rows_cost_the_same(loss):
    logits, labels, rows = samples()
    gradients = []
    for targets in (labels, rows):
        x = chainer.Variable(logits)
        found = loss.build()(x, targets)
        found.backward()
        gradients.append((float(found.array), x.grad))
    (of_labels, first), (of_rows, second) = gradients
    assert of_rows == pytest.approx(of_labels, rel=1e-6)
    np.testing.assert_allclose(second, first, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if not getattr(loss, "target_threshold", None)])
def test_a_mixture_costs_what_its_labels_cost_by_their_shares(loss):
    logits, labels, rows = samples(np.float64)
    others, share = labels[::-1], 0.25
    mixed = share * rows.astype(np.float64) + (1 - share) * rows[::-1]
    whole, first, second = (float(loss.build()(logits, t).array) for t in (mixed, labels, others))
    assert whole == pytest.approx(share * first + (1 - share) * second, rel=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("targets", [np.zeros((8, 5), "f"), np.zeros(8, "f"), np.zeros((8, 6), "i")])
def test_targets_that_do_not_belong_to_the_logits_are_refused(loss, targets):
    if targets.ndim == 1 and loss == losses.SoftmaxCrossEntropy():
        pytest.skip("Chainer's own function checks these")
    with pytest.raises(ValueError, match=r"targets must be int \(8,\) or float \(8, 6\)"):
        loss.build()(samples()[0], targets)
