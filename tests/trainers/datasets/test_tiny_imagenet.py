import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from trainers.datasets import TinyImageNet

VALUES = {"n02": 40, "n01": 80}


@pytest.fixture
def root(tmp_path):
    for name, value in VALUES.items():
        folder = tmp_path / "train" / name / "images"
        folder.mkdir(parents=True)
        (folder.parent / f"{name}_boxes.txt").touch()
        for number in (10, 9):
            Image.new("RGB", (64, 64), (value, 0, 0)).save(folder / f"{name}_{number}.JPEG")
    (tmp_path / "val" / "images").mkdir(parents=True)
    lines = []
    for number, name in enumerate(("n02", "n01", "n01")):
        Image.new("RGB", (64, 64), (VALUES[name], 0, 0)).save(tmp_path / "val" / "images" / f"val_{number}.JPEG")
        lines.append(f"val_{number}.JPEG\t{name}\t0\t32\t44\t62\n")
    (tmp_path / "val" / "val_annotations.txt").write_text("".join(lines))
    return tmp_path


def test_classes_have_names_at_a_url_too(root, tmp_path_factory, monkeypatch):
    pytest.importorskip("fsspec", reason="an extra: pip install '.[remote]'")
    monkeypatch.setenv("KILOBATCH_CACHE", str(tmp_path_factory.mktemp("cache")))
    assert TinyImageNet().class_names(Path(f"file://{root}")) == ["n01", "n02"]


def test_images_have_the_class_of_their_folder_and_of_the_table(root):
    train, evaluation = TinyImageNet().open(root, "train"), TinyImageNet().open(root, "eval")
    assert list(train.paths) == [f"n0{n}/images/n0{n}_{k}.JPEG" for n in (1, 2) for k in (10, 9)]
    assert [train[index][1] for index in range(4)] == [0, 0, 1, 1]
    assert [evaluation[index][1] for index in range(3)] == [1, 0, 0]
    for samples in (train, evaluation):
        for index in range(len(samples)):
            image_HWC, label = samples[index]
            np.testing.assert_allclose(image_HWC[..., 0], (80, 40)[label], atol=3)
    assert TinyImageNet().facts(root) == {"num_train": 4, "num_eval": 3, "num_classes": 2}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("val_3.JPEG\tn09\t0\n", "val_annotations.txt:4: class 'n09' of 'val_3.JPEG' is no folder of train"),
        ("val_3.JPEG\tn01\t0\n", "val_annotations.txt: 'val_3.JPEG' is not both in this table and in images"),
        ("\n", "val_annotations.txt:4: class '' of ''"),
    ],
)
def test_a_table_that_does_not_fit_is_named(root, line, message):
    with (root / "val/val_annotations.txt").open("a") as file:
        file.write(line)
    with pytest.raises(ValueError, match=re.escape(message)):
        TinyImageNet().open(root, "eval")


def test_missing_files_are_named(root):
    (root / "val/val_annotations.txt").unlink()
    with pytest.raises(ValueError, match="no such file; it has the classes"):
        TinyImageNet().facts(root)
    with pytest.raises(ValueError, match="train: no such folder, or nothing in it"):
        TinyImageNet().open(root / "val", "train")
