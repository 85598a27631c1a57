import gzip
import os
import re

import numpy as np
import pytest

from recipes.reading.open import open_dataset
from trainers.datasets import Idx
from trainers.launch.vocabulary import vocabulary


def idx(values):
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.astype(np.uint8).tobytes()


@pytest.fixture
def root(tmp_path):
    for split, count in (("train", 5), ("t10k", 3)):
        images = np.arange(count * 12).reshape(count, 4, 3)
        (tmp_path / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (tmp_path / f"{split}-labels-idx1-ubyte").write_bytes(idx(np.arange(count)))
    return tmp_path


def test_pixels_and_labels_are_those_of_the_files(root):
    samples = Idx().open(root, "train")
    image_HWC, label = samples[4]
    assert (image_HWC.shape, image_HWC.dtype, label) == ((4, 3, 1), np.uint8, 4)
    assert image_HWC[3, 2, 0] == 59
    assert Idx().facts(root) == {"num_train": 5, "num_eval": 3, "num_classes": 5}


def test_compressed_files_are_the_same_data(root):
    before = Idx().fingerprint(root)
    for path in list(root.iterdir()):
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert Idx().fingerprint(root) == before
    assert Idx().open(root, "eval")[2][1] == 2


def test_files_are_read_once_and_again_where_they_have_changed(root):
    first, second = (Idx().open(root, "train") for _ in range(2))
    assert np.shares_memory(first.images_NHWC, second.images_NHWC)
    before, path = Idx().fingerprint(root), root / "train-images-idx3-ubyte"
    path.write_bytes(idx(np.arange(60).reshape(5, 4, 3)[::-1]))
    os.utime(path, ns=(0, 12345))  # the clock may not have moved on
    assert Idx().fingerprint(root) != before
    assert Idx().open(root, "train")[0][0][0, 0, 0] == 48


def test_a_file_that_takes_anothers_place_is_read_though_size_and_time_are_equal(root):
    path, other = root / "train-images-idx3-ubyte", root / "other"
    assert Idx().open(root, "train")[0][0][0, 0, 0] == 0
    other.write_bytes(idx(np.arange(60).reshape(5, 4, 3)[::-1]))
    os.utime(other, ns=(0, path.stat().st_mtime_ns))
    other.replace(path)
    assert Idx().open(root, "train")[0][0][0, 0, 0] == 48


def test_a_file_of_another_form_is_named(root):
    path = root / "t10k-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=re.escape(f"{path}: 2 bytes of values, where its header says (3,)")):
        Idx().open(root, "eval")
    path.write_bytes(b"\0\0\x0d" + bytes(20))
    with pytest.raises(ValueError, match=re.escape(f"{path}: begins with 00 00 0d 00, not as an IDX file of 1")):
        Idx().open(root, "eval")
    path.write_bytes(idx(np.arange(2)))
    with pytest.raises(ValueError, match=re.escape(f"{path}: 2 labels beside 3 images")):
        Idx().open(root, "eval")
    path.unlink()
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(bytes(50))[:-9])
    with pytest.raises(ValueError, match=re.escape(f"{path}.gz: ")):
        Idx().open(root, "eval")
    path.with_name(f"{path.name}.gz").unlink()
    with pytest.raises(ValueError, match=re.escape(f"{path}: no such file, nor {path.name}.gz")):
        Idx().facts(root)


def test_fashion_mnist_has_the_facts_of_its_file():
    dataset = open_dataset("fashion_mnist", vocabulary=vocabulary())
    if not dataset.root.is_dir():
        pytest.skip(f"{dataset.root} is missing: apt-get install dataset-fashion-mnist")
    counts = ("num_train", "num_eval", "num_classes")
    assert dataset.reader.facts(dataset.root) == {key: getattr(dataset, key) for key in counts}
    images = dataset.reader.open(dataset.root, "train").images_NHWC
    assert images.mean() / 255 == pytest.approx(dataset.mean[0], abs=5e-5)
    assert images.std() / 255 == pytest.approx(dataset.std[0], abs=5e-5)
