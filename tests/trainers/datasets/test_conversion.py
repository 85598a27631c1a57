"""What a conversion writes, what it goes on with, and what it refuses."""

import io
import os
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from trainers.augmentations.decoders import size_of
from trainers.datasets import Arrays, ImageFolder, TarShards
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes, verify
from trainers.datasets.manifest import MANIFEST, read_manifest
from trainers.datasets.samples import UnreadableImage
from trainers.datasets.shard_files import StoredImage, digest_of, write_folder
from trainers.runs.errors import RunFailed

SLOW = pytest.mark.slow
TAR = Conversion(form="tar", per_chunk=4)


@contextmanager
def showing(words, total):
    counted = []
    yield counted.append
    assert sum(counted) == total


@pytest.fixture
def source(tmp_path):
    """7 and 2 images of 40x20 and of 8x10 pixels in two classes."""
    draws = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 1)):
        for name in ("cat", "dog"):
            (tmp_path / "source" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = draws.integers(0, 256, (10, 8, 3) if number == 1 else (20, 40, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "source" / split / name / f"{number}.jpg")
    (tmp_path / "source/train/dog/3.jpg").unlink()
    return tmp_path / "source"


def images_in(folder, reader=None):
    splits = {split: (reader or ImageFolder()).open(folder, split) for split in ("train", "eval")}
    return SourceImages(name="a test", splits=splits, classes=names_of_classes(splits["train"]))


def converted(source, root, conversion=TAR, *, reader=None, workers=1):
    root.mkdir(exist_ok=True)
    convert(images_in(source, reader), root, conversion, workers=workers, showing=showing)
    return root


def paths_of(samples):
    return list(samples.names if hasattr(samples, "names") else samples.paths)


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_folders_become_shards_and_shards_the_same_folders(source, tmp_path):
    shards = converted(source, tmp_path / "shards")
    assert [name for name in contents(shards) if name != MANIFEST] == [
        "train-00000.tar",
        "train-00001.tar",
        "val-00000.tar",
    ]
    assert not list(shards.glob(".*.part"))
    assert TarShards().class_names(shards) == ["cat", "dog"]
    again = converted(shards, tmp_path / "again", Conversion(form="folder"), reader=TarShards())
    found = contents(again)
    del found[MANIFEST]
    assert found == contents(source)


@pytest.mark.parametrize("form", ["tar", pytest.param("folder", marks=SLOW), pytest.param("arrays", marks=SLOW)])
def test_several_processes_write_the_same_bytes(source, tmp_path, form):
    how = Conversion(form=form, shorter=6, per_chunk=3)
    one, three = (converted(source, tmp_path / f"{n}", how, workers=n) for n in (1, 3))
    assert contents(one) == contents(three)


def test_an_interrupted_conversion_goes_on_with_what_is_whole(source, tmp_path):
    whole = converted(source, tmp_path / "whole")
    part = converted(source, tmp_path / "part")
    kept = (part / "train-00000.tar").stat().st_mtime_ns
    (part / "train-00001.tar").rename(part / ".train-00001.tar.part")
    lines = (part / MANIFEST).read_text().splitlines(keepends=True)
    (part / MANIFEST).write_text("".join(lines[:2]) + lines[2][:20])  # torn, as where the machine went down
    converted(source, part)
    assert contents(part) == contents(whole)
    assert (part / "train-00000.tar").stat().st_mtime_ns == kept
    converted(source, part)
    assert contents(part) == contents(whole)


def test_arrays_of_which_all_chunks_are_written_have_their_labels(source, tmp_path):
    @contextmanager
    def killed(words, total):
        yield lambda count: None
        if words.startswith("eval"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(images_in(source), tmp_path, Conversion(form="arrays", shorter=6), workers=1, showing=killed)
    assert Arrays().facts(tmp_path) == {"num_train": 7, "num_eval": 2, "num_classes": 2}


@pytest.mark.parametrize("form", ["folder", "tar", "arrays"])
def test_a_chunk_that_the_manifest_does_not_name_is_written_again(source, tmp_path, form):
    how = Conversion(form=form, shorter=6, per_chunk=4)
    whole, part = converted(source, tmp_path / "whole", how), converted(source, tmp_path / "part", how)
    lines = (part / MANIFEST).read_text().splitlines(keepends=True)
    (part / MANIFEST).write_text("".join(lines[:2]))  # killed between a chunk and its line
    converted(source, part, how)
    assert contents(part) == contents(whole)
    (part / MANIFEST).unlink()
    with pytest.raises(InputRefused, match=r"train.*: is there, and no manifest\.jsonl says how it was made"):
        converted(source, part, how)


def test_each_chunk_is_compared_with_its_checksum(source, tmp_path):
    for how in (TAR, Conversion(form="folder"), Conversion(form="arrays", shorter=6, per_chunk=4)):
        root = converted(source, tmp_path / how.form, how)
        counted = []
        verify(root, counted.append)
        assert sum(counted) == 9
    changed = tmp_path / "tar/train-00001.tar"
    changed.write_bytes(changed.read_bytes().replace(b"\xff\xd9", b"\xff\xd8"))
    with pytest.raises(RunFailed, match=r"not as they were written: train-00001\.tar; remove their lines"):
        verify(tmp_path / "tar", counted.append)
    (tmp_path / "folder/val/dog/0.jpg").rename(tmp_path / "folder/val/dog/1.jpg")
    with pytest.raises(RunFailed, match="written: val/dog;"):
        verify(tmp_path / "folder", counted.append)
    images = np.load(tmp_path / "arrays/train_images.npy", mmap_mode="r+")
    images[5] += 1
    images.flush()
    with pytest.raises(RunFailed, match=r"written: train_images\.npy\[4:7\];"):
        verify(tmp_path / "arrays", counted.append)


def test_another_conversion_into_the_same_folder_is_refused(source, tmp_path):
    root = converted(source, tmp_path / "root")
    with pytest.raises(InputRefused, match="begun with per_chunk 4, now 5; go on as it was begun, or name another"):
        converted(source, root, Conversion(form="tar", per_chunk=5))


def test_a_source_that_changed_since_is_not_gone_on_with(source, tmp_path):
    root = converted(source, tmp_path / "root")
    (source / "train/cat/3.jpg").rename(source / "train/cat/00.jpg")  # as many as before, in another order
    with pytest.raises(InputRefused, match="begun with sha256_of_train '.{64}', now '.{64}'; go on as it was begun"):
        converted(source, root)
    (source / "train/cat/00.jpg").rename(source / "train/cat/3.jpg")
    converted(source, root)


@pytest.mark.parametrize(
    ("eval_labels", "message"),
    [([0, 1], "class 1 has no sample in train"), ([0, 3], "val has class 3, and train has 3 classes")],
)
def test_class_folders_that_would_have_other_labels_are_refused(source, tmp_path, eval_labels, message):
    arrays = converted(source, tmp_path / "arrays", Conversion(form="arrays", shorter=6))
    np.save(arrays / "train_labels.npy", np.array([0, 0, 0, 2, 2, 2, 2]))
    np.save(arrays / "val_labels.npy", np.array(eval_labels))
    if eval_labels == [0, 3]:
        np.save(arrays / "train_labels.npy", np.array([0, 0, 0, 1, 1, 2, 2]))
    with pytest.raises(InputRefused, match=message):
        converted(arrays, tmp_path / "folders", Conversion(form="folder"), reader=Arrays())
    assert not list((tmp_path / "folders").iterdir())


def test_smaller_copies_have_the_shorter_side_and_say_so_in_the_fingerprint(source, tmp_path):
    root = converted(source, tmp_path / "small", Conversion(form="tar", shorter=16))
    before, after = (images_in(*each).splits["train"] for each in ((source,), (root, TarShards())))
    assert [size_of(after.encoded(index)) for index in (0, 1)] == [(16, 32), (10, 8)]
    assert after.encoded(1) == before.encoded(1)  # it was smaller before
    resized = np.array(Image.open(io.BytesIO(before.encoded(0))).resize((32, 16)), dtype=np.float64)
    assert np.abs(resized - after[0][0]).mean() < 30  # the same image; it is noise
    said = TarShards().fingerprints(root)["preparation"]
    assert said.startswith("shorter side at most 16, JPEG of quality 95, by ")


def test_arrays_are_squares_from_the_middle(source, tmp_path):
    root = converted(source, tmp_path / "arrays", Conversion(form="arrays", shorter=20, per_chunk=4))
    before, after = images_in(source).splits["train"], Arrays().open(root, "train")
    assert after.images_NHWC.shape == (7, 20, 20, 3)
    np.testing.assert_array_equal(after[0][0], before[0][0][:, 10:30])  # of 40x20 the sides are cut off
    assert after.labels.tolist() == before.labels.tolist()
    assert read_manifest(root)[0]["images"].startswith("decoded pixels, shorter side 20, square from the middle")


def test_arrays_that_do_not_fit_are_refused(source, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(InputRefused, match=r"arrays: 100,000 bytes are free, 2..,... needed; name another ROOT"):
        converted(source, tmp_path / "arrays", Conversion(form="arrays", shorter=100))


def test_arrays_become_files_of_the_same_pixels(source, tmp_path):
    arrays = converted(source, tmp_path / "arrays", Conversion(form="arrays", shorter=20))
    shards = converted(arrays, tmp_path / "shards", reader=Arrays())
    before, after = Arrays().open(arrays, "train"), TarShards().open(shards, "train")
    assert [label for _, label in after] == [label for _, label in before]
    for index in range(7):
        np.testing.assert_array_equal(after[index][0], before[index][0])
    assert after.names[6] == "1/00000006.png"  # classes have no names in arrays
    assert TarShards().class_names(shards) == []


def test_images_of_several_sizes_are_no_array(source, tmp_path):
    with pytest.raises(InputRefused, match=r"cat/1\.jpg: 10x8 pixels, and the first image has 20x40; --shorter brings"):
        converted(source, tmp_path / "arrays", Conversion(form="arrays"))


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=SLOW)])
def test_an_image_that_cannot_be_decoded_is_named(source, tmp_path, workers):
    (source / "train/dog/2.jpg").write_bytes(b"no image")
    with pytest.raises((RunFailed, UnreadableImage), match=r"dog/2\.jpg: not a readable image"):
        converted(source, tmp_path / "root", Conversion(form="tar", shorter=6, per_chunk=4), workers=workers)
    assert "train-00001.tar" not in os.listdir(tmp_path / "root")
    assert list(read_manifest(tmp_path / "root")[1]) == ["train-00000.tar"]


def test_names_that_are_no_keys_of_webdataset_become_numbers(source, tmp_path):
    (source / "train/cat/0.jpg").rename(source / "train/cat/0.v1.jpg")
    (source / "train/dog/2.jpg").rename(source / "train/dog/1.png")
    names = list(TarShards().open(converted(source, tmp_path / "root"), "train").names)
    assert names == [
        "cat/00000000.jpg",
        "cat/1.jpg",
        "cat/2.jpg",
        "cat/3.jpg",
        "dog/0.jpg",
        "dog/1.jpg",
        "dog/00000006.png",
    ]


@pytest.mark.parametrize("form", ["folder", "tar"])
def test_a_number_in_place_of_a_name_is_no_other_images_name(source, tmp_path, form):
    (source / "train/cat/0.jpg").rename(source / "train/cat/0.v1.jpg")
    (source / "train/cat/2.jpg").rename(source / "train/cat/00000000.jpg")
    root = converted(source, tmp_path / "root", Conversion(form=form))
    samples = {"folder": ImageFolder(), "tar": TarShards()}[form].open(root, "train")
    assert len(set(paths_of(samples))) == len(paths_of(samples)) == 7
    stored = [samples.encoded(paths_of(samples).index(f"cat/{name}.jpg")) for name in ("00000000", "00000000-")]
    assert stored == [(source / f"train/cat/{name}.jpg").read_bytes() for name in ("00000000", "0.v1")]


@pytest.mark.parametrize("form", ["folder", "tar", "arrays"])
def test_what_is_not_finished_is_not_read(source, tmp_path, form):
    root = converted(source, tmp_path / "root", Conversion(form=form, shorter=6, per_chunk=4))
    reader = {"folder": ImageFolder(), "tar": TarShards(), "arrays": Arrays()}[form]
    assert reader.facts(root)["num_train"] == 7
    lines = (root / MANIFEST).read_text().splitlines(keepends=True)
    (root / MANIFEST).write_text("".join(lines[:-1]))
    with pytest.raises(ValueError, match=r"manifest\.jsonl: only [78] of 9 samples are written; run scripts/prepare"):
        reader.facts(root)


def test_a_manifest_of_another_program_is_not_read(source):
    facts, prints = ImageFolder().facts(source), ImageFolder().fingerprints(source)
    for lines in ('{"image": "a.jpg"}\n{"image": "b.jpg"}\n', '{"per_chunk": 1}\n{}\n', "[]\n[]\n", "no JSON"):
        (source / MANIFEST).write_text(lines)
        assert (ImageFolder().facts(source), ImageFolder().fingerprints(source)) == (facts, prints)
        with pytest.raises(InputRefused, match="begun with source None, now 'a test'"):
            converted(source, source)


def test_two_images_of_one_name_are_not_written_over_each_other(tmp_path):
    images = (StoredImage(name=name, file=name.encode(), label=0) for name in ("a/1.png", "b/1.png"))
    with pytest.raises(FileExistsError):
        write_folder(tmp_path / "ant", images)
    assert not (tmp_path / "ant").exists()


def test_the_digest_of_a_class_folder_does_not_depend_on_the_order_of_its_listing(tmp_path, monkeypatch):
    for name in ("1.png", "2.png"):
        (tmp_path / name).write_bytes(name.encode())
    digests = set()
    for names in (["1.png", "2.png"], ["2.png", "1.png"]):
        monkeypatch.setattr(os, "listdir", lambda path, names=names: names)
        digests.add(digest_of(tmp_path))
    assert len(digests) == 1
