"""Losses by hand, by their formula in float64, and what all of them make of labels and mixtures of labels."""

import math
from fnmatch import fnmatchcase

import chainer
import chainer.links as L
import numpy as np
import pytest
from chainer import gradient_check

from recipes.errors import InputRefused
from trainers import losses
from trainers.losses import BinaryCrossEntropy, SoftmaxCrossEntropy, soft_targets
from trainers.models import ResNet50, SmallCNN
from trainers.optimizers import Muon

LOSSES = (
    SoftmaxCrossEntropy(),
    SoftmaxCrossEntropy(label_smoothing=0.1),
    SoftmaxCrossEntropy(label_smoothing=0.5),
    SoftmaxCrossEntropy(label_smoothing=0.1, class_weights=(0.5, 2, 0, 1, 1.5)),
    BinaryCrossEntropy(),
    BinaryCrossEntropy(label_smoothing=0.1, reduction="class_sum"),
    BinaryCrossEntropy(label_smoothing=0.1, target_threshold=0.2),
    BinaryCrossEntropy(reduction="class_sum", target_threshold=0.2),
)


def test_no_loss_is_missing_here():
    assert {type(loss).__name__ for loss in LOSSES} == set(losses.__all__)


def in_float64(logits, targets, loss):
    """The loss and its gradient, straight from the formula."""
    z = logits.astype(np.float64)
    num_samples, num_classes = z.shape
    mixture = np.eye(num_classes)[targets] if targets.ndim == 1 else targets.astype(np.float64)
    t = mixture * (1 - loss.label_smoothing) + loss.label_smoothing / num_classes
    if isinstance(loss, SoftmaxCrossEntropy):
        t = t * (1 if loss.class_weights is None else np.array(loss.class_weights))
        log_p = z - z.max(axis=1, keepdims=True)
        log_p -= np.log(np.exp(log_p).sum(axis=1, keepdims=True))
        return -(t * log_p).sum() / num_samples, (np.exp(log_p) * t.sum(axis=1, keepdims=True) - t) / num_samples
    if loss.target_threshold is not None:
        t = np.where(t > loss.target_threshold, 1.0, 0.0)
    s, not_s = 1 / (1 + np.exp(-z)), 1 / (1 + np.exp(z))
    terms = -(t * np.log(s) + (1 - t) * np.log(not_s))
    divisor = num_samples * (num_classes if loss.reduction == "class_mean" else 1)
    return terms.sum() / divisor, (s - t) / divisor


def samples(num_samples=7, num_classes=5, scale=3):
    """Logits, labels, and mixtures of two labels with shares on both sides of a threshold of 0.2."""
    draws = np.random.default_rng(0)
    logits = scale * draws.standard_normal((num_samples, num_classes)).astype(np.float32)
    labels = draws.integers(num_classes, size=num_samples).astype(np.int32)
    shares = np.linspace(0.05, 1, num_samples)[:, None]
    rows = np.eye(num_classes)
    return logits, labels, (shares * rows[labels] + (1 - shares) * rows[labels[::-1]]).astype(np.float32)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_equal_logits_cost_the_logarithm_of_the_number_of_classes(smoothing):
    loss = SoftmaxCrossEntropy(label_smoothing=smoothing).build()(np.zeros((3, 8), np.float32), np.array([0, 5, 7]))
    assert float(loss.array) == pytest.approx(math.log(8))
    assert loss.shape == ()


def test_softmax_of_two_classes_by_hand():
    # p = (3/4, 1/4); without smoothing -log(3/4), with e = 0.2 the label weighs 0.9 and the other class 0.1.
    logits = np.log(np.array([[3, 1]], np.float32))
    plain, smoothed = (SoftmaxCrossEntropy(label_smoothing=e).build()(logits, np.array([0])) for e in (0.0, 0.2))
    assert float(plain.array) == pytest.approx(-math.log(3 / 4))
    assert float(smoothed.array) == pytest.approx(-0.9 * math.log(3 / 4) - 0.1 * math.log(1 / 4))


def test_sigmoids_of_two_classes_by_hand():
    # sigmoid = (3/4, 1/4): -log(3/4) for the yes and -log(3/4) for the no.
    logits, labels = np.log(np.array([[3, 1 / 3]], np.float32)), np.array([0])
    mean, summed = (BinaryCrossEntropy(reduction=r).build()(logits, labels) for r in ("class_mean", "class_sum"))
    assert float(mean.array) == pytest.approx(-math.log(3 / 4))
    assert float(summed.array) == pytest.approx(-2 * math.log(3 / 4))
    assert mean.shape == summed.shape == ()
    # e = 0.2: targets (0.9, 0.1), so each class says 0.9 log(3/4) + 0.1 log(1/4).
    smoothed = BinaryCrossEntropy(label_smoothing=0.2).build()(logits, labels)
    assert float(smoothed.array) == pytest.approx(-0.9 * math.log(3 / 4) - 0.1 * math.log(1 / 4))


@pytest.mark.parametrize(("share", "yes"), [(0.75, [1, 1, 0]), (0.85, [1, 0, 0]), (0.1, [0, 1, 0])])
def test_a_threshold_makes_both_labels_of_a_mixture_whole_or_drops_the_smaller(share, yes):
    z = np.array([[0.5, -1.0, 2.0]])
    mixture = np.array([[share, 1 - share, 0]], np.float32)
    loss = BinaryCrossEntropy(target_threshold=0.2, reduction="class_sum").build()(z, mixture)
    terms = [-math.log(1 / (1 + math.exp(-v if t else v))) for v, t in zip(z[0], yes, strict=True)]
    assert float(loss.array) == pytest.approx(sum(terms))


def test_a_target_at_the_threshold_is_not_above_it():
    mixture = np.array([[0.8, 0.2]], np.float32)
    for dtype in (np.float32, np.float64):
        at, whole = (
            BinaryCrossEntropy(target_threshold=threshold).build()(np.array([[1, 2]], dtype), mixture)
            for threshold in (0.2, 0.19)
        )
        assert float(at.array) > float(whole.array), "the second class is a no at 0.2 and a yes at 0.19"


def test_smoothing_comes_before_mixing_and_both_before_the_threshold():
    # e = 0.4, K = 2: q = (0.8, 0.2) for label 0. Mixed 0.7 : 0.3 the smaller one is 0.7 * 0.2 + 0.3 * 0.8 = 0.38.
    z, mixture = np.zeros((1, 2)), np.array([[0.7, 0.3]], np.float32)
    gradients = []
    for threshold in (0.37, 0.39):
        x = chainer.Variable(z)
        loss = BinaryCrossEntropy(label_smoothing=0.4, target_threshold=threshold, reduction="class_sum")
        loss.build()(x, mixture).backward()
        gradients.append(x.grad[0].tolist())
    assert gradients == [[-0.5, -0.5], [-0.5, 0.5]]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scale", [1, 30])
@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize(("dtype", "bound"), [(np.float32, 1e-5), (np.float64, 1e-14)])
def test_loss_and_gradient_are_those_of_the_formula(loss, scale, mixed, dtype, bound):
    logits, labels, mixtures = samples(scale=scale)
    targets = mixtures if mixed else labels
    x = chainer.Variable(logits.astype(dtype))
    actual = loss.build()(x, targets)
    actual.backward()
    expected_loss, expected_gradient = in_float64(logits, targets, loss)
    assert actual.dtype == x.grad.dtype == dtype
    np.testing.assert_allclose(actual.array, expected_loss, rtol=bound)
    # s - t of a target of 1, or of 2 with its weight, is rounded like that, whatever is left of it.
    np.testing.assert_allclose(x.grad, expected_gradient, rtol=bound, atol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_agrees_with_differences_in_float64(loss):
    logits, labels, mixtures = samples()
    for targets in (labels, mixtures):
        function = loss.build()
        gradient_check.check_backward(
            lambda x, of=function, t=targets: of(x, t), logits.astype(np.float64), None, dtype=np.float64
        )


@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_of_gradients_agree_with_differences_in_float64(loss):
    logits, labels, _ = samples()
    given, steep = logits.astype(np.float64), np.random.RandomState(1).normal(size=logits.shape)
    function = loss.build()
    gradient_check.check_double_backward(lambda x: function(x, labels), given, np.array(0.7), steep, dtype=np.float64)


def test_huge_logits_and_a_logit_of_zero_have_finite_and_right_gradients():
    x = chainer.Variable(np.array([[-200, -30, 0, 30, 200]], np.float32))
    loss = BinaryCrossEntropy(reduction="class_sum").build()(x, np.array([0]))
    loss.backward()
    assert float(loss.array) == pytest.approx(200 + math.log(2) + 30 + 200)
    np.testing.assert_allclose(x.grad, [[-1, math.exp(-30), 0.5, 1, 1]], rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_parts_weighted_by_their_samples_make_the_whole(loss):
    logits, _, mixtures = samples(num_samples=8)
    parts = [(loss.build()(logits[p], mixtures[p]), len(mixtures[p])) for p in (slice(0, 3), slice(3, 8))]
    whole = sum(float(part.array) * count for part, count in parts) / 8
    assert float(loss.build()(logits, mixtures).array) == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_half_precision_logits_are_scored_in_single_precision(loss):
    logits, _, mixtures = samples()
    assert loss.build()(logits.astype(np.float16), mixtures).dtype == np.float32


@pytest.mark.parametrize("model", [SmallCNN(width=4), ResNet50()])
def test_the_head_starts_with_its_bias_and_nothing_else_moves(model):
    built = model.build(num_classes=10, channels=3, image_size=32)
    before = {path: parameter.array.copy() for path, parameter in built.namedparams()}
    BinaryCrossEntropy().initialize(built)
    assert all((parameter.array == before[path]).all() for path, parameter in built.namedparams())
    BinaryCrossEntropy(head_bias=-math.log(10)).initialize(built)
    moved = [path for path, parameter in built.namedparams() if (parameter.array != before[path]).any()]
    assert [path.strip("/") for path in moved] in (["fc/b"], ["fc6/b"])
    assert any(fnmatchcase(moved[0], pattern) for pattern in Muon().others)  # which leaves the head alone
    head = built.fc if hasattr(built, "fc") else built.fc6
    np.testing.assert_allclose(1 / (1 + np.exp(-head.b.array)), 1 / 11, rtol=1e-6)


@pytest.mark.parametrize("links", [{}, {"fc": L.Linear(3, 2, nobias=True)}, {"output": L.Linear(3, 2)}])
def test_a_model_without_such_a_head_is_refused(links):
    with pytest.raises(ValueError, match=r"head_bias is -2\.0, but Chain has no link `fc` with a bias"):
        BinaryCrossEntropy(head_bias=-2.0).initialize(chainer.Chain(**links))


def test_a_threshold_that_every_class_passes_is_refused():
    loss = BinaryCrossEntropy(label_smoothing=0.5, target_threshold=0.05).build()
    with pytest.raises(ValueError, match=r"target_threshold must be at least 0\.1, .* each of 5 classes: .* got 0"):
        loss(samples()[0], samples()[1])


def test_weights_of_more_or_fewer_classes_are_refused():
    with pytest.raises(InputRefused, match="class_weights must be one number a class, 3 in all, .*, got a list of 2"):
        SoftmaxCrossEntropy(class_weights=(1, 2)).require_classes(3)


@pytest.mark.parametrize(
    ("loss", "field", "value"),
    [
        *(
            (SoftmaxCrossEntropy, "class_weights", value)
            for value in (2, (), (0, 0), (1e-50, 0), (1, 1e39), (1, -1), (1, "2"))
        ),
        *((SoftmaxCrossEntropy, "label_smoothing", value) for value in (-0.1, 1.0, float("nan"), "0.1", None)),
        (BinaryCrossEntropy, "label_smoothing", 1.0),
        (BinaryCrossEntropy, "reduction", "mean"),
        (BinaryCrossEntropy, "target_threshold", -0.1),
        (BinaryCrossEntropy, "target_threshold", 1.0),
        (BinaryCrossEntropy, "head_bias", float("nan")),
        (BinaryCrossEntropy, "head_bias", "0"),
    ],
)
def test_wrong_fields_are_refused(loss, field, value):
    with pytest.raises(ValueError, match=rf"{loss.__name__}\.{field} must "):
        loss(**{field: value})


def samples_and_rows(dtype=np.float32):
    logits, labels, _ = samples(num_samples=8, num_classes=6, scale=1)
    return logits.astype(dtype), labels, np.eye(6, dtype=np.float32)[labels]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_of_one_label_is_that_label_bit_for_bit(smoothing, dtype):
    logits, labels, rows = samples_and_rows(dtype)
    of_labels, of_rows = (soft_targets(t, like=logits, label_smoothing=smoothing) for t in (labels, rows))
    assert of_labels.dtype == of_rows.dtype == dtype
    assert (of_labels == of_rows).all()


@pytest.mark.parametrize("smoothing", [0.1, 0.3])
def test_smoothing_a_mixture_is_mixing_the_smoothed(smoothing):
    logits, labels, rows = samples_and_rows()
    share = 0.7
    first, second = (soft_targets(t, like=logits, label_smoothing=smoothing) for t in (labels, labels[::-1]))
    mixed = (share * rows + (1 - share) * rows[::-1]).astype(np.float32)
    actual = soft_targets(mixed, like=logits, label_smoothing=smoothing)
    np.testing.assert_allclose(actual, share * first + (1 - share) * second, rtol=1e-6)
    np.testing.assert_allclose(actual.sum(axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("targets", [np.zeros((8, 5), "f"), np.zeros(8, "f"), np.zeros((8, 6), "i")])
def test_targets_that_do_not_belong_to_the_logits_are_refused(loss, targets):
    if targets.ndim == 1 and loss == SoftmaxCrossEntropy():
        pytest.skip("Chainer's own function checks these")
    with pytest.raises(ValueError, match=r"targets must be int \(8,\) or float \(8, 6\)"):
        loss.build()(samples_and_rows()[0], targets)
