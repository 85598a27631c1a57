import os
import re
import struct
import subprocess
import sys
import time
import unicodedata

import numpy as np
import pytest
from PIL import Image

from recipes.errors import RecipeError
from recipes.reading.open import open_dataset
from trainers.datasets import ImageFolder
from trainers.datasets.samples import FilePaths
from trainers.launch.vocabulary import vocabulary


def write(path, color=(200, 100, 50), mode="RGB", size=(12, 9)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, color).save(path, quality=95)


@pytest.fixture
def root(tmp_path):
    """Two splits of three classes whose names sort differently by bytes, by locale and by path."""
    for split in ("train", "val"):
        write(tmp_path / split / "b" / "1.jpg", (255, 0, 0))
        write(tmp_path / split / "b-c" / "x.png", (0, 0, 255))
        write(tmp_path / split / "Z" / "photo.JPEG", (0, 255, 0))
    write(tmp_path / "train" / "b" / "10.png")
    write(tmp_path / "train" / "b" / "ä.png")
    write(tmp_path / "train" / "b" / "2.jpg")
    return tmp_path


def names(root, split, **fields):
    return list(ImageFolder(**fields).open(root, split).paths)


def test_samples_are_in_the_order_of_their_paths_as_bytes(root):
    # '-' comes before '/', so the whole path orders b-c before b; capital letters come first, ä last.
    assert names(root, "train") == ["Z/photo.JPEG", "b-c/x.png", "b/1.jpg", "b/10.png", "b/2.jpg", "b/ä.png"]
    assert names(root, "eval") == ["Z/photo.JPEG", "b-c/x.png", "b/1.jpg"]


def test_classes_are_numbered_in_the_order_of_their_names_as_bytes(root):
    samples = ImageFolder().open(root, "train")
    assert [samples[index][1] for index in range(6)] == [0, 2, 1, 1, 1, 1]


def test_images_are_read_as_colour(root):
    samples = ImageFolder().open(root, "eval")
    colors = [samples[index][0] for index in range(3)]
    assert {image_HWC.shape for image_HWC in colors} == {(9, 12, 3)}
    assert {image_HWC.dtype for image_HWC in colors} == {np.dtype(np.uint8)}
    np.testing.assert_allclose(np.stack([image.mean((0, 1)) for image in colors]), 255 * np.eye(3)[[1, 2, 0]], atol=3)


def test_images_are_read_as_grey_on_request(root):
    samples = ImageFolder(channels=1).open(root, "eval")
    image_HWC, _ = samples[0]
    assert image_HWC.shape == (9, 12, 1)
    np.testing.assert_allclose(image_HWC, 0.587 * 255, atol=3)  # the weight of green in ITU-R 601


@pytest.mark.parametrize(
    ("mode", "color", "expected"),
    [("L", 90, 90), ("1", 1, 255), ("P", 0, 0), ("LA", (90, 0), 90), ("RGBA", (90, 90, 90, 0), 90)],
)
def test_other_kinds_of_png_become_colour(root, mode, color, expected):
    write(root / "val" / "b" / "0.png", color, mode)
    samples = ImageFolder().open(root, "eval")
    assert samples.paths[2] == "b/0.png"
    image_HWC, _ = samples[2]
    assert image_HWC.shape == (9, 12, 3)
    assert (image_HWC == expected).all()


def test_images_as_imagenet_has_them_are_read(root):
    """A PNG that is called JPEG, printers' colours as Adobe writes them, bytes behind the end."""
    place = root / "val" / "b"
    (place / "1.jpg").unlink()
    Image.new("RGB", (12, 9), (200, 100, 50)).save(place / "1.JPEG", "PNG")
    Image.new("RGB", (12, 9), (200, 100, 50)).convert("CMYK").save(place / "2.JPEG", quality=95)
    assert b"Adobe" in (place / "2.JPEG").read_bytes()[:30]
    (place / "3.JPEG").write_bytes((place / "2.JPEG").read_bytes() + b"more")
    samples = ImageFolder().open(root, "eval")
    assert [path for path in samples.paths if path.startswith("b/")] == ["b/1.JPEG", "b/2.JPEG", "b/3.JPEG"]
    for index in range(2, 5):
        np.testing.assert_allclose(samples[index][0].mean((0, 1)), (200, 100, 50), atol=3)


def test_damsettled_exif_data_is_no_reason_to_complain(root):
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHII", 8, 9, 0x010F, 2, 64, 0xFFFF)  # nine tags, and only one is there
    Image.new("RGB", (12, 9)).save(root / "val" / "b" / "1.jpg", exif=exif)
    code = "import sys; from pathlib import Path; from trainers.datasets import ImageFolder as F\n"
    code += "print(F().open(Path(sys.argv[1]), 'eval')[2][0].shape)"
    with pytest.warns(UserWarning, match="EXIF|Tag data"), Image.open(root / "val" / "b" / "1.jpg") as image:
        image.getexif()
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, str(root)], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("(9, 12, 3)\n", "")


def test_paths_are_found_from_both_ends_and_not_beyond(root):
    paths = ImageFolder().open(root, "eval").paths
    assert (len(paths), paths[0], paths[-1], paths[-3]) == (3, "Z/photo.JPEG", "b/1.jpg", "Z/photo.JPEG")
    for index in (3, -4):
        with pytest.raises(IndexError):
            paths[index]


def test_facts_are_counted(root):
    assert ImageFolder().facts(root) == {"num_train": 6, "num_eval": 3, "num_classes": 3}


@pytest.mark.parametrize(("train", "evaluation"), [("one", "./two/"), ("data/train", "data/val")])
def test_splits_may_have_other_names_or_lie_deeper_beside_hidden_files(root, train, evaluation):
    (root / "data").mkdir()
    (root / "train").rename(root / train)
    (root / "val").rename(root / evaluation)
    (root / train / ".DS_Store").touch()
    (root / train / "b" / "._1.jpg").touch()
    folder = ImageFolder(train=train, eval=evaluation)
    assert folder.facts(root) == {"num_train": 6, "num_eval": 3, "num_classes": 3}
    assert len(folder.open(root, "train")) == 6


def test_the_fingerprint_follows_names_and_sizes(root):
    actual = [ImageFolder().fingerprint(root)]
    (root / "train" / "b" / "2.jpg").rename(root / "train" / "b" / "3.jpg")
    actual.append(ImageFolder().fingerprint(root))
    with (root / "val" / "b" / "1.jpg").open("ab") as file:
        file.write(b"\0")
    actual.append(ImageFolder().fingerprint(root))
    assert len(set(actual)) == 3
    assert ImageFolder().fingerprint(root) == actual[-1]
    assert all(re.fullmatch("[0-9a-f]{64}", text) for text in actual)


@pytest.mark.parametrize("content", [b"", b"no image at all", "half", None])
def test_a_broken_or_removed_file_is_named_when_it_is_read_and_when_it_is_checked(root, content):
    path = root / "val" / "b" / "1.jpg"
    samples = ImageFolder().open(root, "eval")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if content == "half" else content)
    for read in (samples.__getitem__, samples.require_readable):
        with pytest.raises(ValueError, match=re.escape(f"{path}: not a readable image")):
            read(2)
        read(0)


def test_links_in_a_circle_are_refused(root):
    link = root / "train" / "b" / "link.png"
    link.symlink_to(link)
    with pytest.raises((OSError, ValueError), match=re.escape(str(link))):
        ImageFolder().facts(root)


def test_16_bits_a_channel_are_refused_instead_of_clipped(root):
    deep = np.full((9, 12), 40_000, np.uint16)
    Image.fromarray(deep).save(root / "val" / "b" / "0.png")
    samples = ImageFolder().open(root, "eval")
    for read in (samples.__getitem__, samples.require_readable):
        with pytest.raises(ValueError, match=r"b/0\.png: .*mode I;16: only 8 bits a channel are read"):
            read(2)


def test_different_classes_are_refused_by_name(root):
    write(root / "val" / "only-here" / "1.jpg")
    for split in ("train", "eval"):
        with pytest.raises(ValueError, match="class 'only-here' is in val but not in train"):
            ImageFolder().open(root, split)


def refused(root, message):
    with pytest.raises(ValueError, match=re.escape(message)) as refusal:
        ImageFolder().facts(root)
    return str(refusal.value)


def test_what_is_no_image_by_its_name_is_refused_in_one_message(root):
    inside = ("train/b/a\n.tif", "train/Z/b.txt", "val/b-c/c.txt")
    for name in ("train/notes.txt", "val/.hidden", "val/Thumbs.db", *inside):
        (root / name).touch()
    (root / "val" / "b" / "folder.png").mkdir()
    suffixes = ".bmp, .gif, .jpeg, .jpg, .png, .webp"
    message = refused(root, f"{root}: not files called {suffixes}: train/notes.txt, train/Z/b.txt, ")
    assert all(name in message for name in (r"train/b/a\n.tif", "val/Thumbs.db", "val/b-c/c.txt", "val/b/folder.png/"))
    for number in range(10):
        (root / "train" / "b" / f"{number}.txt").touch()
    refused(root, " and 6 more; move them away, or write `others: skip` in the reader")


def test_other_files_are_passed_over_on_request_and_change_nothing(root):
    before = ImageFolder().facts(root), ImageFolder().fingerprint(root), names(root, "train")
    (root / "train" / "b" / "thumbs").mkdir()
    for name in ("train/notes.txt", "train/b/Thumbs.db", "train/b/thumbs/1.png"):
        (root / name).touch()
    skipping = ImageFolder(others="skip")
    assert (skipping.facts(root), skipping.fingerprint(root), names(root, "train", others="skip")) == before
    assert skipping.other_files(root) == ["train/notes.txt", "train/b/Thumbs.db", "train/b/thumbs/"]
    refused(root, "train/b/Thumbs.db")  # by the same index
    (root / "train" / "Z" / "photo.JPEG").unlink()
    (root / "train" / "Z" / "a.txt").touch()
    with pytest.raises(ValueError, match="train/Z: no image in this class"):
        skipping.facts(root)


def test_a_link_that_leads_nowhere_is_refused_by_path(root):
    (root / "train" / "b" / "link.jpg").symlink_to("nothing.jpg")
    refused(root, "link.jpg: a link that leads nowhere; remove it")
    (root / "train" / "b" / "link.jpg").unlink()
    (root / "train" / "b" / "away.jpg").symlink_to("/nowhere/1.jpg")
    refused(root, "away.jpg: a link that leads nowhere; remove it")


def test_classes_of_the_same_letters_in_other_bytes_are_shown_by_these(root):
    for split, form in (("train", "NFC"), ("val", "NFD")):
        write(root / split / unicodedata.normalize(form, "é") / "1.jpg")
    message = refused(root, "the same letters, written in other bytes; rename one of them")
    assert r"class 'e\u0301' is in val, and '\xe9' in train" in message


def test_empty_and_missing_folders_are_refused_by_path(root, tmp_path_factory):
    for split in ("train", "val"):
        (root / split / "empty").mkdir()
    refused(root, f"{root / 'train' / 'empty'}: no image in this class")
    bare = tmp_path_factory.mktemp("bare")
    refused(bare, f"{bare / 'train'}: no such folder; the images must lie in {bare / 'train'}/CLASS/FILE")
    (bare / "train").mkdir()
    refused(bare, f"{bare / 'train'}: no class folder")
    with pytest.raises(ValueError, match="ImageFolder needs the folder of the data"):
        ImageFolder().open(None, "train")
    with pytest.raises(ValueError, match="type --data FOLDER, where FOLDER holds one/CLASS/FILE and two/CLASS/FILE"):
        ImageFolder(train="one", eval="two").facts(None)


@pytest.mark.parametrize("place", ["train/b/link.png", "train/b", "train"])
def test_a_link_that_leads_out_is_refused(root, tmp_path_factory, place):
    outside = tmp_path_factory.mktemp("outside")
    write(outside / "secret.png")
    link = root / place
    target = outside / "secret.png" if place.endswith(".png") else outside / "moved"
    if link.exists():
        link.rename(target)
    link.symlink_to(target)
    assert str(link) in refused(root, "leads out of")


def test_a_link_that_stays_inside_is_followed(root):
    (root / "train" / "b" / "link.png").symlink_to(root / "val" / "b-c" / "x.png")
    assert ImageFolder().facts(root)["num_train"] == 7
    samples = ImageFolder().open(root, "train")
    assert samples[samples.paths.index("b/link.png")][0][0, 0].tolist() == [0, 0, 255]


def test_the_root_itself_may_be_a_link(root, tmp_path_factory):
    link = tmp_path_factory.mktemp("links") / "data"
    link.symlink_to(root)
    assert ImageFolder().facts(link)["num_train"] == 6


@pytest.mark.skipif(os.name != "posix", reason="other systems have no such names")
def test_names_that_are_no_text_are_read(root):
    raw = os.fsencode(root / "train" / "b") + b"/\xff.png"
    with open(raw, "wb") as file:
        file.write((root / "train" / "b" / "10.png").read_bytes())
    samples = ImageFolder().open(root, "train")
    assert os.fsencode(samples.paths[-1]) == b"b/\xff.png"
    assert samples[6][0].shape == (9, 12, 3)
    assert ImageFolder().fingerprint(root)


def test_a_file_name_is_shown_without_commands_to_the_terminal(tmp_path):
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "val" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "\x1b[31mred.tif").touch()
    (tmp_path / "mine.yaml").write_text(
        "reader: {kind: ImageFolder}\nroot: .\nchannels: 3\nmean: [0, 0, 0]\nstd: [1, 1, 1]\n"
    )
    with pytest.raises(RecipeError) as refused:
        open_dataset(str(tmp_path / "mine.yaml"), vocabulary=vocabulary())
    assert r"train/a/\x1b[31mred.tif; move them away" in str(refused.value)
    assert "\x1b" not in str(refused.value)


@pytest.fixture
def settled(root, monkeypatch):
    """Folders whose index is kept, though they have just been made."""
    monkeypatch.setattr("trainers.datasets.index_file._SETTLED_NS", -1_000)
    time.sleep(0.02)  # a tick of the file system's clock, so that a later change shows
    return root


def test_an_index_of_a_version_that_knew_fewer_names_of_images_is_made_anew(settled, monkeypatch):
    write(settled / "train" / "b" / "1.webp")
    with monkeypatch.context() as patch:
        patch.setattr("trainers.datasets.image_folder.IMAGE_SUFFIXES", (".jpeg", ".jpg", ".png"))
        assert ImageFolder(others="skip").other_files(settled) == ["train/b/1.webp"]
    for others in ("refuse", "skip"):
        assert names(settled, "train", others=others)[3] == "b/1.webp"
    samples = ImageFolder().open(settled, "train")
    np.testing.assert_allclose(samples[3][0].mean((0, 1)), (200, 100, 50), atol=5)


def test_folders_are_listed_once_and_again_when_one_changes(settled, monkeypatch):
    before = names(settled, "train"), ImageFolder().fingerprints(settled)
    with monkeypatch.context() as patch:
        patch.setattr("trainers.datasets.image_folder.IMAGE_SUFFIXES", None)  # nobody looks at files
        assert (names(settled, "train"), ImageFolder().fingerprints(settled)) == before
    (settled / "train" / "b" / "1.jpg").rename(settled / "train" / "b" / "0.jpg")
    assert names(settled, "train")[2] == "b/0.jpg"
    assert ImageFolder().fingerprints(settled) != before[1]


@pytest.mark.parametrize("path", ["../../secret.jpg", "/secret.jpg"])
def test_an_index_that_leads_out_is_refused(settled, path):
    ImageFolder().facts(settled)
    place, paths = settled / ".kilobatch-index-train", FilePaths()
    with np.load(place) as arrays:
        found = dict(arrays)
    paths.extend([os.fsencode(path), *map(os.fsencode, list(FilePaths.of_arrays(found))[1:])])
    with place.open("wb") as file:
        np.savez(file, **{**found, **paths.arrays()})
    assert "remove .kilobatch-index-*" in refused(settled, "its index beside it names other files than CLASS/FILE")


def test_a_long_listing_shows_its_progress(settled, monkeypatch, capsys):
    monkeypatch.setattr("trainers.datasets.image_folder._QUIET_SECONDS", 1e-9)
    ImageFolder().facts(settled)
    assert "train: listing its classes, once: 0 of 3 classes" in capsys.readouterr().err
    ImageFolder().facts(settled)
    assert capsys.readouterr().err == ""
