import re

import numpy as np
import pytest

from recipes.reading.open import open_dataset
from trainers.datasets import Cifar10, Cifar100
from trainers.launch.vocabulary import vocabulary

NAMES = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]


def record(label, red, green, blue):
    """A record by hand: each colour is a 32x32 array."""
    return bytes([label]) + b"".join(np.asarray(plane, dtype=np.uint8).tobytes() for plane in (red, green, blue))


@pytest.fixture
def root(tmp_path):
    """Two records a file: the label counts up, red is the file's number, green the row, blue the column."""
    rows, columns = np.indices((32, 32))
    for number, name in enumerate(NAMES):
        records = [record((2 * number + k) % 10, np.full((32, 32), number), rows, columns) for k in range(2)]
        (tmp_path / name).write_bytes(b"".join(records))
    return tmp_path


CUT = Cifar10(num_per_file=2)


def test_pixels_and_labels_are_those_of_the_records(root):
    samples = CUT.open(root, "train")
    assert len(samples) == 10
    for index in range(10):
        image_HWC, label = samples[index]
        assert label == index
        assert image_HWC.shape == (32, 32, 3)
        assert image_HWC.dtype == np.uint8
        assert image_HWC[5, 9].tolist() == [index // 2, 5, 9]
        assert image_HWC[31, 0].tolist() == [index // 2, 31, 0]


def test_the_test_batch_is_for_evaluation(root):
    samples = CUT.open(root, "eval")
    assert [samples[index][1] for index in range(len(samples))] == [0, 1]
    assert samples[0][0][0, 0].tolist() == [5, 0, 0]


def test_files_of_the_published_size_are_accepted(tmp_path):
    for name in NAMES:
        with (tmp_path / name).open("wb") as file:
            file.truncate(30_730_000)  # sparse: all zeros
    dataset = open_dataset("cifar10", vocabulary=vocabulary())
    counts = ("num_train", "num_eval", "num_classes")
    assert dataset.reader.facts(tmp_path) == {key: getattr(dataset, key) for key in counts}
    assert (dataset.num_train, dataset.num_eval, dataset.num_classes) == (50_000, 10_000, 10)
    assert len(dataset.reader.open(tmp_path, "eval")) == dataset.num_eval


def refused(root, split, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CUT.open(root, split)


def test_a_missing_file_is_named(root):
    (root / "data_batch_3.bin").unlink()
    refused(root, "train", f"{root / 'data_batch_3.bin'}: no such file; the binary version of CIFAR-10 has")
    assert len(CUT.open(root, "eval")) == 2
    with pytest.raises(ValueError, match=r"data_batch_3\.bin: no such file"):
        CUT.facts(root)


@pytest.mark.parametrize("found", [0, 6145, 6147])
def test_a_file_of_another_size_is_named_with_both_sizes(root, found):
    (root / "test_batch.bin").write_bytes(bytes(found))
    refused(root, "eval", f"{root / 'test_batch.bin'}: {found} bytes, expected 6146 (2 records of 3073 bytes)")


def test_a_label_above_9_is_named_with_its_file_and_record(root):
    path = root / "data_batch_2.bin"
    data = bytearray(path.read_bytes())
    data[3073] = 10
    path.write_bytes(data)
    refused(root, "train", f"{path}: record 1 has label 10, above 9")


def test_the_fingerprint_follows_every_byte(root):
    found = [CUT.fingerprint(root)]
    for name in NAMES:
        data = bytearray((root / name).read_bytes())
        data[-1] ^= 1
        (root / name).write_bytes(data)
        found.append(CUT.fingerprint(root))
    assert len(set(found)) == 7
    assert CUT.fingerprint(root) == found[-1]


def test_without_a_folder_the_error_names_what_to_give():
    with pytest.raises(ValueError, match=r"CIFAR-10 needs the folder of the data: .*FOLDER holds data_batch_1"):
        Cifar10().open(None, "train")


def test_of_cifar_100_the_fine_label_is_the_class(tmp_path):
    rows, columns = np.indices((32, 32))
    for name, count in (("train.bin", 3), ("test.bin", 2)):
        records = [bytes([19]) + record(97 + k, rows, columns, columns) for k in range(count)]
        (tmp_path / name).write_bytes(b"".join(records))
    cut = Cifar100(num_train=3, num_eval=2)
    assert cut.facts(tmp_path) == {"num_train": 3, "num_eval": 2, "num_classes": 100}
    samples = cut.open(tmp_path, "train")
    assert [samples[index][1] for index in range(3)] == [97, 98, 99]
    assert samples[2][0][5, 9].tolist() == [5, 9, 9]
    (tmp_path / "test.bin").write_bytes(bytes([0]) + record(100, rows, columns, columns) * 2)
    with pytest.raises(ValueError, match=r"test\.bin: 6147 bytes, expected 6148 \(2 records of 3074 bytes\)"):
        cut.open(tmp_path, "eval")
    with pytest.raises(ValueError, match="record 0 has label 100, above 99"):
        Cifar100(num_train=3, num_eval=1).open(damaged(tmp_path), "eval")


def damaged(root):
    (root / "test.bin").write_bytes(bytes([0, 100]) + bytes(3072))
    return root
