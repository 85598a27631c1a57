"""Losses against PyTorch's and timm's; run where both are installed."""

import chainer
import numpy as np
import pytest

from trainers.losses import BinaryCrossEntropy, SoftmaxCrossEntropy

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch")
timm_loss = pytest.importorskip("timm.loss")
timm_mixup = pytest.importorskip("timm.data.mixup")

K, LAM = 10, 0.3


def samples():
    draws = np.random.default_rng(0)
    return 3 * draws.standard_normal((8, K)), draws.integers(K, size=8)


def mixture_of(labels):
    rows = np.eye(K)[labels]
    return LAM * rows + (1 - LAM) * rows[::-1]


def ours(component, logits, targets):
    x = chainer.Variable(logits)
    loss = component.build()(x, targets)
    loss.backward()
    return float(loss.array), x.grad


def theirs(function, logits, targets):
    x = torch.tensor(logits, requires_grad=True)
    loss = function(x, torch.as_tensor(targets))
    loss.backward()
    return float(loss.detach()), x.grad.numpy()


def assert_same(actual, expected, bound=1e-12):
    assert actual[0] == pytest.approx(expected[0], rel=bound)
    np.testing.assert_allclose(actual[1], expected[1], rtol=0, atol=bound * abs(expected[1]).max())


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_cross_entropy_is_pytorchs_and_of_mixed_labels_timms(smoothing):
    component, (logits, labels) = SoftmaxCrossEntropy(label_smoothing=smoothing), samples()
    function = torch.nn.CrossEntropyLoss(label_smoothing=smoothing)
    assert_same(ours(component, logits, labels), theirs(function, logits, labels))
    smoothed = timm_mixup.mixup_target(torch.tensor(labels), K, lam=LAM, smoothing=smoothing)
    expected = theirs(timm_loss.SoftTargetCrossEntropy(), logits, smoothed)
    assert_same(ours(component, logits, mixture_of(labels)), expected, bound=1e-6)  # they mix in float32


@pytest.mark.parametrize("threshold", [None, 0.2])
@pytest.mark.parametrize("reduction", ["class_mean", "class_sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_binary_cross_entropy_is_timms(smoothing, reduction, threshold):
    logits, labels = samples()
    component = BinaryCrossEntropy(label_smoothing=smoothing, reduction=reduction, target_threshold=threshold)
    function = timm_loss.BinaryCrossEntropy(
        smoothing=smoothing, target_threshold=threshold, sum_classes=reduction == "class_sum"
    )
    assert_same(ours(component, logits, labels), theirs(function, logits, labels))
    smoothed = timm_mixup.mixup_target(torch.tensor(labels), K, lam=LAM, smoothing=smoothing).double()
    assert_same(ours(component, logits, mixture_of(labels)), theirs(function, logits, smoothed), bound=1e-6)
