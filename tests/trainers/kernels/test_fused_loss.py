"""Softmax cross entropy in one node, by NumPy and by our CUDA kernels compiled for the CPU, is Chainer's."""

import functools

import chainer
import numpy as np
import pytest
from chainer import gradient_check

from trainers.kernels import chainer_hooks
from trainers.losses import SoftmaxCrossEntropy

LAUNCHED = ["cross_entropy", "mean_loss", "cross_entropy_gradient"]
SMOOTHINGS = (0.0, 0.1)


def samples(targets, dtype, *, count=37, classes=11):
    """Logits, and labels or mixtures of them."""
    random = np.random.RandomState(0)
    logits, labels = random.normal(0, 4, (count, classes)).astype(dtype), random.randint(0, classes, count)
    if targets != "mixtures":
        return logits, labels.astype(targets)
    rows = np.eye(classes)[labels]
    return logits, (0.7 * rows + 0.3 * rows[::-1]).astype(np.float32)


def loss_and_gradient(smoothing, logits, targets):
    x = chainer.Variable(logits)
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()(x, targets)
    (loss * 1024.0).backward()
    assert loss.shape == ()
    return loss.array, x.grad


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("targets", [np.int32, np.int64, "mixtures"])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_it_is_the_loss_of_chainers_nodes(cuda_on_cpu, monkeypatch, smoothing, targets, dtype, bound):
    given = samples(targets, dtype)
    by_numpy = loss_and_gradient(smoothing, *given)
    with monkeypatch.context() as changed:
        changed.setattr(chainer_hooks, "operators", None)
        expected = loss_and_gradient(smoothing, *given)
    launched = cuda_on_cpu()
    by_cuda = loss_and_gradient(smoothing, *given)
    assert launched == LAUNCHED
    for actual in (by_numpy, by_cuda):
        for one, other in zip(actual, expected, strict=True):
            assert one.dtype == other.dtype == dtype
            np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(other).max())


def test_the_loss_of_a_diverged_model_is_infinite_without_a_warning():
    logits = np.float32([[0, 3e38], [0, 3e38], [0, 0]])
    assert np.isinf(SoftmaxCrossEntropy().build()(logits, np.int32([0, 0, 0])).array)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("targets", [np.int32, "mixtures"])
def test_gradients_and_gradients_of_gradients_agree_with_differences(cuda_on_cpu, smoothing, targets):
    logits, given = samples(targets, np.float64, count=5, classes=4)
    launched, loss = cuda_on_cpu(), SoftmaxCrossEntropy(label_smoothing=smoothing).build()
    gradient_check.check_backward(lambda x: loss(x, given), logits, np.array(0.7), dtype=np.float64)
    assert set(launched) == set(LAUNCHED)
    steep = np.random.RandomState(1).normal(size=logits.shape)
    gradient_check.check_double_backward(lambda x: loss(x, given), logits, np.array(0.7), steep, dtype=np.float64)


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("targets", [np.int32, "mixtures"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_mean_and_gradient_of_a_group_have_the_bits_that_it_has_alone(smoothing, targets, dtype):
    logits, given = samples(targets, dtype, count=52, classes=11)
    loss, slopes = SoftmaxCrossEntropy(label_smoothing=smoothing).build(), np.arange(1, 5, dtype=dtype)
    x = chainer.Variable(logits)
    means = loss(x, given, norm_groups=4)
    means.grad = slopes
    means.backward()
    for group in range(4):
        rows, alone = slice(13 * group, 13 * group + 13), chainer.Variable(logits[13 * group : 13 * group + 13])
        mean = loss(alone, given[rows])
        mean.grad = np.array(slopes[group])
        mean.backward()
        assert mean.array == means.array[group]
        np.testing.assert_array_equal(alone.grad, x.grad[rows])


@pytest.mark.parametrize("smoothing", SMOOTHINGS)
@pytest.mark.parametrize("targets", [np.int32, "mixtures"])
def test_means_of_groups_and_their_gradients_agree_with_differences(smoothing, targets):
    logits, given = samples(targets, np.float64, count=6, classes=4)
    loss = functools.partial(SoftmaxCrossEntropy(label_smoothing=smoothing).build(), norm_groups=2)
    slopes = np.array([0.7, -1.3])
    gradient_check.check_backward(lambda x: loss(x, given), logits, slopes, dtype=np.float64)
    steep = np.random.RandomState(1).normal(size=logits.shape)
    gradient_check.check_double_backward(lambda x: loss(x, given), logits, slopes, steep, dtype=np.float64)


def test_kernels_may_change_between_forward_and_backward(monkeypatch):
    given = samples(np.int32, np.float32)
    _, expected = loss_and_gradient(0.1, *given)
    x = chainer.Variable(given[0])
    loss = SoftmaxCrossEntropy(label_smoothing=0.1).build()(x, given[1])
    monkeypatch.setattr(chainer_hooks, "operators", None)
    (loss * 1024.0).backward()
    np.testing.assert_array_equal(x.grad, expected)


@pytest.mark.parametrize("label", [-1, 11])
def test_a_label_of_no_class_is_refused(label):
    with pytest.raises(ValueError, match=f"classes are from 0 to 10, got {min(0, label)} to {max(0, label)}"):
        SoftmaxCrossEntropy().build()(np.zeros((2, 11), "f"), np.array([0, label], np.int32))


def test_a_score_needs_no_gradient(cuda_on_cpu):
    launched = cuda_on_cpu()
    with chainer.no_backprop_mode():
        SoftmaxCrossEntropy().build()(*samples(np.int32, np.float32))
    assert launched == LAUNCHED[:2]


def test_logits_that_are_minus_infinity_cost_nothing_where_no_share_is_theirs(cuda_on_cpu):
    cuda_on_cpu()
    logits = np.log(
        np.array([[3, 1, 0], [1, 1, 0]], np.float32), where=[True, True, False], out=np.full((2, 3), -np.inf, "f")
    )
    loss, gradient = loss_and_gradient(0.0, logits, np.array([0, 1], np.int32))
    np.testing.assert_allclose(loss, (np.log(4 / 3) + np.log(2)) / 2, rtol=1e-6)
    np.testing.assert_allclose(gradient / 512, [[-0.25, 0.25, 0], [0.5, -0.5, 0]], rtol=1e-6)


@pytest.mark.parametrize("targets", [np.zeros((8, 5), "f"), np.zeros(8, "f"), np.zeros((8, 6), "i"), np.zeros(7, "i")])
def test_targets_that_do_not_belong_to_the_logits_are_refused_as_ever(cuda_on_cpu, targets):
    launched = cuda_on_cpu()
    with pytest.raises(ValueError, match=r"targets must be int \(8,\) or float \(8, 6\)"):
        SoftmaxCrossEntropy(label_smoothing=0.1).build()(np.zeros((8, 6), "f"), targets)
    assert launched == []


def test_what_the_kernels_do_not_read_is_for_chainers_nodes(cuda_on_cpu):
    logits, mixtures = samples("mixtures", np.float64)
    launched = cuda_on_cpu()
    loss_and_gradient(0.1, logits, mixtures.astype(np.float64))
    assert not set(launched) & set(LAUNCHED)
