"""`data verify` names every image that a run could not use, and no other."""

import io
import json
import re
import shutil
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import kilobatch
from recipes.schema import Dataset
from trainers.datasets import Arrays, ImageFolder, Synthetic
from trainers.datasets.image_check import verified_text, verify_images
from trainers.datasets.inspection import dataset_of_folder
from trainers.datasets.samples import SamplesInMemory, UnreadableImage


def bytes_of(image, kind, **options):
    file = io.BytesIO()
    image.save(file, format=kind, **options)
    return file.getvalue()


def bomb():
    """A PNG of 20,000 x 20,000 pixels in a few bytes: its header is whole, its data are those of one pixel."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(4))) + chunk(b"IEND", b"")


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8))
JPEG = bytes_of(NOISE, "JPEG")
BAD = {
    "truncated.jpg": JPEG[: len(JPEG) // 2],
    "zero.jpg": b"",
    "text.jpg": b"<html>404</html>",
    "grey16.png": bytes_of(Image.fromarray(np.full((9, 9), 300, np.uint16)), "PNG"),
    "bomb.png": bomb(),
    "cut.png": bytes_of(NOISE, "PNG")[:-500],
}
GOOD = {
    "whole.jpg": JPEG,
    "png.jpg": bytes_of(NOISE, "PNG"),
    "cmyk.jpg": bytes_of(NOISE.convert("CMYK"), "JPEG"),
    "palette.png": bytes_of(NOISE.convert("P"), "PNG"),
}
UNUSUAL = {
    "one.png": bytes_of(Image.new("RGB", (1, 1)), "PNG"),
    "wide.png": bytes_of(Image.new("L", (20_000, 9)), "PNG"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    for split, files in (("train", BAD | GOOD | UNUSUAL), ("val", {"a.jpg": JPEG, "b.jpg": b""})):
        (root / split / "cat").mkdir(parents=True)
        for name, content in files.items():
            (root / split / "cat" / name).write_bytes(content)
    return root


@pytest.fixture(scope="module")
def verified(folder):
    advanced = []
    found = verify_images(dataset_of_folder(folder), advanced.append)
    assert sum(advanced) == found.checked == 14
    return found


def test_every_bad_image_is_named_with_its_cause_and_no_other(verified, folder):
    named = {finding.name: finding.cause for finding in verified.bad}
    assert {*named} == {str(folder / "train/cat" / name) for name in BAD} | {str(folder / "val/cat/b.jpg")}
    assert all(name not in cause and cause for name, cause in named.items())
    assert "I;16" in named[str(folder / "train/cat/grey16.png")]


def test_very_small_and_large_images_are_named_and_fine(verified):
    assert {finding.cause for finding in verified.unusual} == {"1 x 1 pixels", "9 x 20000 pixels"}
    assert "9 x 20000 pixels; it can be read" in verified_text(verified)


def test_counts_are_compared_with_the_file_of_the_data_set():
    reader = Synthetic(num_train=5, num_eval=2, num_classes=2, size=4)
    found = verify_images(
        Dataset(name="few", num_train=6, num_eval=2, num_classes=3, channels=3, reader=reader), lambda _: None
    )
    assert found.wrong_counts == ["the data set's file says num_train: 6, and there are 5"]
    assert not found.bad
    assert not found.holds


def test_classes_that_are_scored_and_never_trained_on_are_named(tmp_path):
    for name, labels in (("train", [0, 1, 2]), ("val", [7, 1, 8, 7])):
        np.save(tmp_path / f"{name}_images.npy", np.zeros((len(labels), 9, 9, 3), np.uint8))
        np.save(tmp_path / f"{name}_labels.npy", np.array(labels))
    facts = Arrays().facts(tmp_path)
    found = verify_images(Dataset(name="odd", channels=3, reader=Arrays(), root=tmp_path, **facts), lambda _: None)
    assert found.holds
    assert "eval has classes 7, 8, of which train has no sample\n" in verified_text(found)


class Own:
    """A reader of one's own: a label too large, a pixel that is not finite, a wrong shape, an error."""

    def open(self, root, split):
        images = np.ones((4, 2, 2, 1), np.float32)
        images[1, 0, 0] = np.nan
        return Raising(images_NHWC=images, labels=np.array([7, 0, 0, 0]))

    def facts(self, root):
        return {"num_train": 4, "num_eval": 4, "num_classes": 2}


class Raising(SamplesInMemory):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        if index == 3:
            raise KeyError("lost")
        return (image[0] if index == 2 else image), label


def test_samples_of_ones_own_reader_are_held_to_what_a_run_needs():
    dataset = Dataset(name="own", num_train=4, num_eval=4, num_classes=2, channels=1, reader=Own())
    causes = [finding.cause for finding in verify_images(dataset, lambda _: None).bad if finding.split == "train"]
    assert causes == [
        "label 7, and the data set has 2 classes",
        "pixels of float32 outside 0..255",
        "an array of (2, 1), and the data set has 1 channel",
        "KeyError: 'lost'",
    ]


def test_the_command_ends_with_5_and_writes_the_list(folder, tmp_path):
    names = tmp_path / "bad.txt"
    result = CliRunner().invoke(kilobatch.app, ["data", "verify", str(folder), "--json", "--write-list", str(names)])
    assert result.exit_code == 5
    assert names.read_text().splitlines() == [each["name"] for each in json.loads(result.stdout)["bad"]]
    assert len(names.read_text().splitlines()) == 7


def test_files_that_are_no_images_by_their_names_are_listed_beside_bad_images(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(folder, "images")
    for name in ("train/notes.txt", "val/cat/two\nlines.txt"):
        Path("images", name).touch()
    Path("images.yaml").write_text("reader: {kind: ImageFolder}\nroot: images\nchannels: 3\n")
    result = CliRunner().invoke(kilobatch.app, ["data", "verify", "images.yaml", "--write-list", "bad.txt"])
    assert "images/train/notes.txt: no image by its name, and refused" in result.stdout
    assert result.stdout.endswith("14 images of images: 7 cannot be used; no images by their names: 2\n")
    *_, plain, quoted = Path("bad.txt").read_text().splitlines()
    assert (plain, json.loads(quoted)) == ("images/train/notes.txt", "images/val/cat/two\nlines.txt")
    Path("images.yaml").write_text("reader: {kind: ImageFolder, others: skip}\nroot: images\nchannels: 3\n")
    result = CliRunner().invoke(kilobatch.app, ["data", "verify", "images.yaml"])
    assert result.stdout.endswith("14 images of images: 7 cannot be used\n")
    result = CliRunner().invoke(kilobatch.app, ["data", "inspect", "images.yaml"])
    assert "passed over, no images by their names: 2\n" in result.stdout


def test_the_command_ends_with_0_where_all_is_well():
    assert CliRunner().invoke(kilobatch.app, ["data", "verify", "digits"]).exit_code == 0


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_the_look_before_a_run_finds_a_file_that_was_cut_off(tmp_path, kind):
    for name in ("train/ant", "train/bee", "val/ant", "val/bee"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.png").write_bytes(bytes_of(NOISE, kind))
    samples = ImageFolder().open(tmp_path, "eval")
    samples.require_readable(1)
    path = tmp_path / "val/bee/1.png"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(UnreadableImage, match=re.escape(str(path))):
        samples.require_readable(1)
