import math

import chainer
import numpy as np
import pytest
from chainer import gradient_check

from trainers.losses import SoftmaxCrossEntropy

SMOOTHINGS = (0.0, 0.1, 0.5)


def in_float64(logits, targets, smoothing):
    """The loss and its gradient, straight from the formula."""
    z = logits.astype(np.float64)
    log_p = z - z.max(axis=1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
    num_samples, num_classes = z.shape
    mixture = np.eye(num_classes)[targets] if targets.ndim == 1 else targets.astype(np.float64)
    q = mixture * (1 - smoothing) + smoothing / num_classes
    return -(q * log_p).sum() / num_samples, (np.exp(log_p) - q) / num_samples


def samples(seed=0, num_samples=7, num_classes=5, scale=3):
    draws = np.random.default_rng(seed)
    logits = scale * draws.standard_normal((num_samples, num_classes)).astype(np.float32)
    return logits, draws.integers(num_classes, size=num_samples).astype(np.int32)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_equal_logits_cost_the_logarithm_of_the_number_of_classes(smoothing):
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()(np.zeros((3, 8), np.float32), np.array([0, 5, 7]))
    assert float(loss.array) == pytest.approx(math.log(8))
    assert loss.shape == ()


def test_two_classes_by_hand():
    # p = (3/4, 1/4); without smoothing -log(3/4), with e = 0.2 the label weighs 0.9 and the other class 0.1.
    logits = np.log(np.array([[3, 1]], np.float32))
    plain = SoftmaxCrossEntropy().build()(logits, np.array([0]))
    smoothed = SoftmaxCrossEntropy(label_smoothing=0.2).build()(logits, np.array([0]))
    assert float(plain.array) == pytest.approx(-math.log(3 / 4))
    assert float(smoothed.array) == pytest.approx(-0.9 * math.log(3 / 4) - 0.1 * math.log(1 / 4))


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("scale", [1, 30])
def test_loss_and_gradient_are_those_of_the_formula(smoothing, scale):
    logits, labels = samples(scale=scale)
    x = chainer.Variable(logits)
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()(x, labels)
    loss.backward()
    expected_loss, expected_gradient = in_float64(logits, labels, smoothing)
    assert loss.dtype == x.grad.dtype == np.float32
    np.testing.assert_allclose(loss.array, expected_loss, rtol=1e-5)
    np.testing.assert_allclose(x.grad, expected_gradient, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_gradient_agrees_with_differences_in_float64(smoothing):
    logits, labels = samples()
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()
    gradient_check.check_backward(lambda x: loss(x, labels), logits.astype(np.float64), None, dtype=np.float64)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixed_targets_cost_what_the_formula_says(smoothing, dtype):
    logits, labels = samples()
    rows, shares = np.eye(5)[labels], np.linspace(0, 1, 7)[:, None]
    mixtures = (shares * rows + (1 - shares) * rows[::-1]).astype(np.float32)
    function, x = SoftmaxCrossEntropy(label_smoothing=smoothing).build(), chainer.Variable(logits.astype(dtype))
    loss = function(x, mixtures)
    loss.backward()
    expected_loss, expected_gradient = in_float64(logits, mixtures, smoothing)
    bound = 1e-5 if dtype == np.float32 else 1e-7  # shares are float32 either way
    np.testing.assert_allclose(loss.array, expected_loss, rtol=bound)
    np.testing.assert_allclose(x.grad, expected_gradient, rtol=10 * bound, atol=1e-7)
    gradient_check.check_backward(lambda x: function(x, mixtures), logits.astype("d"), None, dtype=np.float64)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
def test_parts_weighted_by_their_samples_make_the_whole(smoothing):
    logits, labels = samples(num_samples=8)
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()
    parts = [(loss(logits[part], labels[part]), len(labels[part])) for part in (slice(0, 3), slice(3, 8))]
    whole = sum(float(part.array) * count for part, count in parts) / 8
    assert float(loss(logits, labels).array) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan"), "0.1", None])
def test_a_share_outside_0_to_1_is_refused(smoothing):
    with pytest.raises(ValueError, match=r"SoftmaxCrossEntropy\.label_smoothing must be"):
        SoftmaxCrossEntropy(label_smoothing=smoothing)
