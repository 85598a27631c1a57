import hashlib

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.datasets import Synthetic, synthetic

GOLDEN = "e3cfbe14a37229acd3eea9a50b14c4ee9afa081ad800315275b0ca118e7cc6eb"


def images(split, **fields):
    samples = Synthetic(**fields).open(None, split)
    return np.stack([samples[index][0] for index in range(len(samples))])


def test_the_same_fields_give_the_same_bytes_on_every_machine():
    """Golden: a change here changes every run on synthetic data, so it must be on purpose."""
    images_NHWC = images("train", num_train=20, size=7, channels=3)
    assert hashlib.sha256(images_NHWC.tobytes()).hexdigest() == GOLDEN
    assert images_NHWC.dtype == np.uint8


def test_classes_come_in_turn():
    samples = Synthetic(num_train=7, num_classes=3).open(None, "train")
    assert [samples[index][1] for index in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_samples_of_a_class_share_a_pattern_under_their_noise():
    images_NHWC = images("train", num_train=400, num_classes=2).astype(float)
    means = [images_NHWC[label::2].mean(axis=0) for label in range(2)]
    assert images_NHWC.mean() == pytest.approx(127, abs=2)
    # A pattern has a deviation of 73.9 / 4 over the pixels, the mean of 200 noises one of 3 * 73.9 / 4 / sqrt(200).
    assert all(mean.std() == pytest.approx(73.9 / 4, rel=0.1) for mean in means)
    assert abs(np.corrcoef(means[0].ravel(), means[1].ravel())[0, 1]) < 0.1


def test_the_pattern_of_training_is_found_in_evaluation():
    train, evaluation = images("train").astype(float), images("eval").astype(float)
    means = np.stack([train[label::10].mean(axis=0).ravel() for label in range(10)])
    distances = ((evaluation.reshape(256, 1, -1) - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == np.arange(256) % 10).mean() > 0.95
    assert not (evaluation[0] == train[0]).all()


def test_seeds_give_other_patterns_and_other_noise():
    first, second = (images("train", num_train=1, seed=seed) for seed in (0, 1))
    assert (first == second).mean() < 0.05


@pytest.mark.parametrize("fields", [{}, {"label_noise": 0.5}])
def test_samples_are_the_same_when_they_are_kept_and_when_not(fields, monkeypatch):
    made = Synthetic(num_train=40, size=5, **fields)
    kept, indices = made.open(None, "train"), np.array([7, 3, 39, 3])
    images, rows, labels = kept.where(indices)
    monkeypatch.setattr(synthetic, "_KEPT_BYTES", 40 * 5 * 5 * 3 - 1)
    computed = made.open(None, "train")
    assert computed.where(indices) is None
    for index, row, label in zip(indices.tolist(), rows, labels, strict=True):
        expected, of_label = computed[index]
        np.testing.assert_array_equal(images[row], expected, strict=True)
        np.testing.assert_array_equal(kept[index][0], expected, strict=True)
        assert label == of_label == kept[index][1]


def test_a_sample_past_the_end_is_refused():
    samples = Synthetic(num_eval=2).open(None, "eval")
    with pytest.raises(IndexError, match="sample 2 of 2"):
        samples[2]


LABELS = "34b4977841d2de2f19b7c4ee1fc5fab803dfb364d8a0f0a85660f4b3afc9c171"


def labels(split="train", **fields):
    samples = Synthetic(**fields).open(None, split)
    return np.array([samples[index][1] for index in range(len(samples))])


def test_wrong_labels_are_the_same_on_every_machine():
    """Golden: the labels of three classes, a byte each."""
    noisy = labels(num_train=1000, num_classes=3, size=1, label_noise=0.2)
    assert hashlib.sha256(noisy.astype(np.uint8).tobytes()).hexdigest() == LABELS


def test_wrong_labels_by_hand():
    # A label is wrong where the first draw is below the share, and then the second says how far it is moved.
    samples = Synthetic(num_train=50, num_classes=4, size=1, seed=7, label_noise=0.5).open(None, "train")
    moved = 0
    for index in range(50):
        drawn = draws(7, "synthetic label", index)
        wrong = drawn.uniform() < 0.5
        by = 1 + int(drawn.uniform() * 3) if wrong else 0  # of three other classes
        assert samples[index][1] == (index + by) % 4
        moved += wrong
    assert 15 < moved < 35


def test_label_noise_is_the_share_of_wrong_labels_and_prefers_no_class():
    text, true = labels(num_train=20000, size=1, label_noise=0.3), np.arange(20000) % 10
    wrong = text != true
    assert wrong.mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 20000) ** 0.5)
    by = np.bincount((text - true)[wrong] % 10, minlength=10) / wrong.sum()
    assert by[0] == 0
    assert by[1:] == pytest.approx(np.full(9, 1 / 9), abs=4 * (8 / 81 / wrong.sum()) ** 0.5)


def test_labels_of_evaluation_and_all_images_are_those_without_label_noise():
    assert (labels("eval", size=1, label_noise=0.9) == np.arange(256) % 10).all()
    assert (images("train", num_train=20, label_noise=0.9) == images("train", num_train=20)).all()
