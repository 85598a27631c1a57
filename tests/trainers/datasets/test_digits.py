import hashlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import trainers.datasets
from trainers.datasets import Digits

# Of the bytes that scikit-learn 1.9.1 has in digits.csv.gz, images before labels.
SHA256 = "87ff0c9e40dc7e2c0e34e7257799c2e3f3aec1a016363bb11cad869ec428a826"


def load_digits():
    with np.load(Path(trainers.datasets.__file__).with_name("digits.npz")) as stored:
        images, labels = stored["images"], stored["labels"]
    return SimpleNamespace(images=images.reshape(-1, 8, 8), target=labels.astype(np.int64))


def test_the_file_holds_the_bytes_of_scikit_learn():
    stored = load_digits()
    found = hashlib.sha256(stored.images.tobytes() + stored.target.astype(np.uint8).tobytes())
    assert found.hexdigest() == SHA256


def arrays(split, **fields):
    samples = Digits(**fields).open(None, split)
    images, labels = zip(*(samples[index] for index in range(len(samples))), strict=True)
    return np.stack(images), np.array(labels)


def test_pixels_are_the_stored_ones_scaled_to_0_to_255():
    images_NHWC, labels = arrays("train")
    assert images_NHWC.shape == (1500, 8, 8, 1)
    assert images_NHWC.dtype == np.float32
    stored = load_digits()
    # 1797 / 297 = 6.05: the first samples for evaluation are 3, 9 and 15.
    places = [0, 1, 2, 4, 5, 6, 7, 8, 10]
    np.testing.assert_array_equal(images_NHWC[:9, :, :, 0] * 16 / 255, stored.images[places])
    np.testing.assert_array_equal(labels[:9], stored.target[places])
    assert (images_NHWC.min(), images_NHWC.max()) == (0, 255)


def test_evaluation_samples_are_evenly_spaced():
    images_NHWC, labels = arrays("eval")
    stored = load_digits()
    places = [int((k + 0.5) * 1797 / 297) for k in range(297)]
    assert places[:3] == [3, 9, 15]
    np.testing.assert_array_equal(images_NHWC[:, :, :, 0] * 16 / 255, stored.images[places])
    np.testing.assert_array_equal(labels, stored.target[places])
    assert set(np.diff(places)) == {6, 7}


@pytest.mark.parametrize("num_eval", [1, 297, 600, 1796])
def test_both_parts_together_are_all_samples_once(num_eval):
    train, evaluation = (arrays(split, num_eval=num_eval) for split in ("train", "eval"))
    assert (len(train[0]), len(evaluation[0])) == (1797 - num_eval, num_eval)
    assert len(Digits(num_eval=num_eval).open(None, "train")) == 1797 - num_eval
    together = sorted(image.tobytes() for image in np.concatenate([train[0], evaluation[0]]))
    assert together == sorted(((image * (255 / 16)).astype(np.float32)).tobytes() for image in load_digits().images)
