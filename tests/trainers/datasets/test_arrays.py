import pickle
import re

import numpy as np
import pytest

from trainers.datasets import Arrays

IMAGES = np.arange(6 * 4 * 3 * 3, dtype=np.uint8).reshape(6, 4, 3, 3)


@pytest.fixture
def root(tmp_path):
    for split, count in (("train", 6), ("val", 2)):
        np.save(tmp_path / f"{split}_images.npy", IMAGES[:count])
        np.save(tmp_path / f"{split}_labels.npy", np.arange(count))
    return tmp_path


def test_images_are_mapped_and_only_read(root):
    samples = Arrays().open(root, "train")
    assert isinstance(samples.images_NHWC, np.memmap)
    assert not samples[0][0].flags.writeable
    np.testing.assert_array_equal(samples[5][0], IMAGES[5])
    assert len(pickle.dumps(samples)) < 1000  # another process maps them again
    assert Arrays().facts(root) == {"num_train": 6, "num_eval": 2, "num_classes": 6}


def test_an_archive_of_numpy_holds_the_same_samples(root):
    before = Arrays().fingerprints(root)
    for split, count in (("train", 6), ("val", 2)):
        np.savez_compressed(root / f"{split}.npz", images=IMAGES[:count], labels=np.arange(count))
        for part in ("images", "labels"):
            (root / f"{split}_{part}.npy").unlink()
    assert Arrays().fingerprints(root) == before
    np.testing.assert_array_equal(Arrays().open(root, "eval")[1][0], IMAGES[1])


def test_grey_images_need_no_axis_of_channels(root):
    np.save(root / "val_images.npy", IMAGES[:2, :, :, 0])
    assert Arrays().open(root, "eval")[0][0].shape == (4, 3, 1)


@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("images", IMAGES.astype(np.float32), "float32 of shape (6, 4, 3, 3); images are uint8"),
        ("images", IMAGES[0, 0], "uint8 of shape (3, 3); images are uint8"),
        ("images", IMAGES[:0], "holds no samples"),
        ("images", IMAGES[:, :0, :0], "uint8 of shape (6, 0, 0, 3); images are"),
        ("labels", np.arange(3), "int64 of shape (3,); labels are 2 whole numbers from 0"),
        ("labels", np.array([0.0, 1.0]), "float64 of shape (2,); labels are"),
        ("labels", np.array([0, -1]), "int64 of shape (2,), down to -1; labels are 2"),
    ],
)
def test_arrays_of_another_form_are_named(root, part, content, message):
    np.save(root / f"val_{part}.npy", content)
    with pytest.raises(ValueError, match=re.escape(f"{root / f'val_{part}.npy'}: {message}")):
        Arrays().open(root, "eval")


def test_damaged_and_missing_files_are_named(root):
    path = root / "val_images.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=re.escape(f"{path}: ValueError: ")):
        Arrays().facts(root)
    path.unlink()
    with pytest.raises(ValueError, match=re.escape(f"{path}: no such file, nor val.npz")):
        Arrays().facts(root)
    np.savez(root / "val.npz", x=IMAGES, y=np.arange(6))
    with pytest.raises(ValueError, match=re.escape("images is not a file in the archive; np.savez('val.npz', images=")):
        Arrays().facts(root)
    (root / "val.npz").write_bytes(b"PK")
    with pytest.raises(ValueError, match=re.escape(f"{root / 'val.npz'}: ")):
        Arrays().facts(root)


def test_the_fingerprint_follows_labels_and_pixels(root):
    found = [Arrays().fingerprints(root)]
    labels = np.load(root / "train_labels.npy")
    np.save(root / "train_labels.npy", labels[::-1])
    found.append(Arrays().fingerprints(root))
    np.save(root / "val_images.npy", IMAGES[1:3])
    found.append(Arrays().fingerprints(root))
    assert len({each["train"] for each in found}) == 2
    assert len({each["val"] for each in found}) == 2
