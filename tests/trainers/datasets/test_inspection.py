"""What `data inspect` says is what was put into the data set."""

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from recipes.reading.open import open_dataset, open_recipe
from recipes.reading.tree_diff import comparable_tree
from recipes.reports.plots.of_data import data_figure
from recipes.schema import Dataset
from trainers.datasets import ImageFolder, Synthetic, TarShards
from trainers.datasets.image_check import verified_text, verify_images
from trainers.datasets.inspection import (
    dataset_of_folder,
    inspect,
    inspection_text,
    require_opened,
)
from trainers.datasets.remote import FOLDER_VARIABLE
from trainers.launch.preflight import require_startable
from trainers.launch.vocabulary import vocabulary


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Classes of 3 and 1 image, 20 x 30 to 50 x 30, one of them grey, one a PNG called JPEG, one of no image at all."""
    root = tmp_path_factory.mktemp("photos")
    for split in ("train", "val"):
        for name, heights in (("cat", (20, 30, 40)), ("dog", (50,))):
            (root / split / name).mkdir(parents=True)
            for height in heights:
                Image.new("RGB", (30, height)).save(root / split / name / f"{height}.jpg")
    Image.new("L", (30, 20)).save(root / "train/cat/20.jpg", format="PNG")
    turned = Image.Exif()
    turned[0x112] = 6
    Image.new("RGB", (30, 30)).save(root / "train/cat/30.jpg", exif=turned)
    (root / "val/dog/50.jpg").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def found(folder):
    return inspect(dataset_of_folder(folder))


def test_classes_are_counted_and_named(found):
    classes = found["splits"]["train"]["classes"]
    assert classes["counts"] == [3, 1]
    assert classes["smallest"] == {"name": "dog", "samples": 1}
    assert classes["largest"] == {"name": "cat", "samples": 3}
    assert classes["weights"] == [0.6667, 2.0]
    assert inspection_text(found).endswith("class_weights of a loss that make all classes count alike: [0.6667, 2.0]")


def test_names_of_classes_and_files_write_no_control_characters_and_no_lines(tmp_path):
    for name in ("a\x1b[31mred", "new\nline"):
        for split, count in (("train", 1 + (name > "b")), ("val", 1)):
            (tmp_path / split / name).mkdir(parents=True)
            for number in range(count):
                (tmp_path / split / name / f"{number}.jpg").write_bytes(b"no image")
    data = dataset_of_folder(tmp_path)
    lines = [
        *inspection_text(inspect(data)).splitlines(),
        *verified_text(verify_images(data, lambda count: None)).splitlines(),
    ]
    assert r"  samples a class: 1 (a\x1b[31mred) to 2 (new\nline)" in lines
    assert any(line.startswith(rf"{tmp_path}/train/new\nline/1.jpg: ") for line in lines)


def test_sizes_types_and_modes_are_those_of_the_files(found, folder):
    images = found["splits"]["train"]["images"]
    assert images["height"] == {"min": 20, "median": 35.0, "max": 50}
    assert images["width"] == {"min": 30, "median": 30.0, "max": 30}
    assert images["types"] == {"JPEG": 3, "PNG": 1}
    assert images["modes"] == {"RGB": 3, "L": 1}
    assert images["turned_by_exif"] == 1
    assert images["bytes"]["max"] == max(path.stat().st_size for path in (folder / "train").rglob("*.jpg"))
    assert sum(images["histogram"]["images"]) == 4


def test_a_file_that_is_no_image_is_counted_and_ends_nothing(found):
    images = found["splits"]["eval"]["images"]
    assert (images["looked_at"], images["unreadable"]) == (4, 1)
    assert "no image by their header: 1" in inspection_text(found)


def test_samples_that_keep_no_labels_are_counted_one_by_one():
    reader = Synthetic(num_train=7, num_eval=2, num_classes=3, size=4)
    facts = reader.facts(None)
    part = inspect(Dataset(name="made", channels=3, reader=reader, **facts))["splits"]
    assert part["train"]["classes"]["counts"] == [3, 2, 2]
    assert part["eval"]["classes"]["without_samples"] == 1
    assert part["train"]["images"]["modes"] == {"uint8, 3 channels": 7}


def test_of_many_samples_without_labels_some_are_counted():
    reader = Synthetic(num_train=5001, num_eval=2, num_classes=2, channels=1, size=1)
    found = inspect(Dataset(name="made", channels=1, reader=reader, **reader.facts(None)))
    assert found["splits"]["train"]["classes"]["counted"] == 2000
    assert "samples a class: 1,000 in each, of 2,000 evenly spaced ones" in inspection_text(found)


def test_classes_of_shards_have_the_names_of_their_folders(tmp_path):
    for split in ("train", "val"):
        with tarfile.open(tmp_path / f"{split}-0.tar", "w") as archive:
            for name in ("dog", "cat"):
                file = io.BytesIO()
                Image.new("RGB", (9, 9)).save(file, format="JPEG")
                member = tarfile.TarInfo(f"{name}/1.jpg")
                member.size = file.tell()
                archive.addfile(member, io.BytesIO(file.getvalue()))
    reader = TarShards()
    found = Dataset(name="shards", channels=3, reader=reader, root=tmp_path, **reader.facts(tmp_path))
    assert found.class_names() == ["cat", "dog"]
    assert inspect(found)["splits"]["eval"]["images"]["types"] == {"JPEG": 2}


def test_a_url_is_shown_as_it_was_written(folder, tmp_path, monkeypatch):
    pytest.importorskip("fsspec", reason="fsspec is not installed: pip install .[remote]")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "cache"))
    root = Path(f"file://{folder}")  # which takes one of its slashes
    reader = ImageFolder()
    found = inspect(Dataset(name="photos", channels=3, reader=reader, root=root, **reader.facts(root)))
    assert found["root"] == f"file://{folder}"


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.new("RGB", (9, 9)).save(tmp_path / split / "a/1.png")

    class Removing(ImageFolder):
        """As if another program removed an image just now: the index has it still."""

        def fingerprint(self, root):
            index = self.open(root, "eval")
            (root / "val/a/1.png").unlink()
            return index.encoded(0)

    dataset = replace(dataset_of_folder(tmp_path), reader=Removing())
    with pytest.raises(InputRefused, match=r"No such file or directory: '.*val/a/1\.png'"):
        inspect(dataset)


def test_the_picture_shows_every_split(found):
    titles = [axes.get_title(loc="left") for axes in data_figure(found).axes]
    assert titles == ["train: 4 images", "train: 4 samples", "eval: 4 images", "eval: 4 samples"]


def test_a_folder_without_splits_is_refused_with_a_way_out(tmp_path):
    with pytest.raises(InputRefused, match=r"no such folder.*name a data set of configs/datasets, and this folder"):
        dataset_of_folder(tmp_path)


def test_a_data_set_without_reader_is_refused():
    with pytest.raises(InputRefused, match="data set planned has no reader"):
        require_opened(Dataset(name="planned", num_train=1, num_eval=1, num_classes=1, channels=1))


def test_the_histogram_of_one_size_has_one_bar(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / split / "a/1.png")
    images = inspect(dataset_of_folder(tmp_path))["splits"]["train"]["images"]
    assert images["histogram"] == {"edges": [5, 6], "images": [1]}


def test_a_folder_of_classes_alone_is_inspected_with_a_tenth_to_score(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "flat" / name).mkdir(parents=True)
        for number in range(10):
            Image.new("RGB", (8, 8)).save(tmp_path / "flat" / name / f"{number}.png")
    splits = inspect(dataset_of_folder(tmp_path / "flat"))["splits"]
    assert (splits["train"]["samples"], splits["eval"]["samples"]) == (18, 2)


def test_names_in_the_file_are_those_of_a_reader_that_knows_none_and_change_no_training():
    words = vocabulary()
    opened = open_dataset("fashion_mnist", vocabulary=words)
    assert opened.class_names()[9] == "Ankle boot"
    recipe = open_recipe("fashion/simple_cnn", vocabulary=words)
    plain = {key: value for key, value in recipe.dataset_tree.items() if key != "classes"}
    assert comparable_tree(recipe.tree, plain) == comparable_tree(recipe.tree, recipe.dataset_tree)
    for classes in (("a", "b"), ("a",) * 10):
        with pytest.raises(ValueError, match=r"Dataset.classes must be 10 different names, or \[\]"):
            replace(opened, classes=classes)


@pytest.mark.parametrize(
    ("labels", "keys", "verified", "warned"),
    [
        ([0, 1, 2, 2], "", "", ""),
        (
            [1, 2, 1, 2],
            "",
            "up to 2 here, and class 0 has no sample, but an output of the model; subtract 1",
            "class 0",
        ),
        ([0, 9, 1, 9], "", "classes 2, 3, 4, 5, 6 and 2 more have no sample", "classes 2, 3, 4, 5, 6 and 2 more"),
        ([1, 2, 1, 2], "num_classes: 3", "class 0 has no sample", ""),
        ([1, 2, 1, 2], "classes: [none, cat, dog]", "", ""),
    ],
)
def test_classes_without_a_sample_are_named_where_labels_count_them(
    tmp_path, monkeypatch, capsys, labels, keys, verified, warned
):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "val"):
        np.savez(f"{split}.npz", images=np.zeros((4, 8, 8), np.uint8), labels=labels)
    Path("own.yaml").write_text(f"reader: {{kind: Arrays}}\nroot: .\nchannels: 1\n{keys}\n")
    overrides = ["dataset=own.yaml", "augmentation={train: [], eval: []}", "batch={global: 4, norm_span: 4}"]
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    for said in (verified_text(verify_images(opened.dataset, str)), inspection_text(inspect(opened.dataset))):
        assert verified in said
        assert ("no sample, but" in said) == bool(verified)
    require_startable(opened, ranks=1, is_new=True)
    error = capsys.readouterr().err
    assert warned in error
    assert ("no sample" in error) == bool(warned)
