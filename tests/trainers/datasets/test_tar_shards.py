import io
import json
import os
import re
import tarfile

import pytest
from PIL import Image

from trainers.datasets import TarShards
from trainers.datasets.manifest import recorded_classes
from trainers.datasets.samples import UnreadableImage


def jpeg(value):
    file = io.BytesIO()
    Image.new("RGB", (12, 9), (value, 0, 0)).save(file, "JPEG", quality=95)
    return file.getvalue()


def pack(path, files, **options):
    """An archive of names and contents, or of whole members."""
    with tarfile.open(path, options.pop("mode", "w"), **options) as archive:
        for name, content in files.items():
            member = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            member.size = 0 if member is content else len(content)
            archive.addfile(member, None if member is content else io.BytesIO(content))


@pytest.fixture
def root(tmp_path):
    first = {"a.jpg": jpeg(10), "a.cls": b"1", "a.json": b"{}", "b.cls": b"0\n", "b.JPG": jpeg(20)}
    pack(tmp_path / "train-0.tar", first)
    pack(tmp_path / "train-1.tar", {"a.png": jpeg(30), "a.cls": b"2"})
    pack(tmp_path / "val-0.tar", {"x.y.jpg": b"no image", "x.jpeg": jpeg(40), "x.cls": b"2"})
    return tmp_path


def test_samples_are_in_the_order_of_archives_and_of_their_images(root):
    samples = TarShards().open(root, "train")
    assert [samples[index][1] for index in range(3)] == [1, 0, 2]
    assert [round(float(samples[index][0][..., 0].mean())) for index in range(3)] == [10, 20, 30]
    assert samples.encoded(1) == jpeg(20)
    assert TarShards().facts(root) == {"num_train": 3, "num_eval": 1, "num_classes": 3}


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_without_cls_the_folder_is_the_class(tmp_path, form):
    long = "x" * (60 if form == tarfile.USTAR_FORMAT else 200)
    for split in ("train", "val"):
        files = {f"./{split}/dog/1.jpg": jpeg(1), f"./{split}/cat/{long}.jpg": jpeg(2), f"./{split}/Z/1.jpg": jpeg(3)}
        pack(tmp_path / f"{split}-0.tar", files, format=form)
    samples = TarShards().open(tmp_path, "eval")
    assert [samples[index][1] for index in range(3)] == [2, 1, 0]
    assert samples.name_of(1) == f"{tmp_path / 'val-0.tar'}, byte {samples.offsets[1]} (./val/cat/{long}.jpg)"
    assert TarShards().facts(tmp_path)["num_classes"] == 3
    pack(tmp_path / "val-0.tar", {"val/dog/1.jpg": jpeg(1), "val/bird/1.jpg": jpeg(1), "val/Z/1.jpg": jpeg(1)})
    with pytest.raises(ValueError, match="have other classes; both must have the same"):
        TarShards().open(tmp_path, "train")


def test_the_index_is_read_until_an_archive_changes(root, monkeypatch):
    monkeypatch.setattr("trainers.datasets.index_file._SETTLED_NS", -1_000)  # of archives just made, too
    first = TarShards().open(root, "train")
    assert sorted(path.name for path in root.glob(".*")) == [
        ".kilobatch-index-train-.tar",
        ".kilobatch-index-val-.tar",
    ]
    with monkeypatch.context() as patch:
        patch.setattr("trainers.datasets.tar_shards._images", None)  # nobody looks into the archives
        again = TarShards().open(root, "train")
    assert [again.encoded(index) for index in range(3)] == [first.encoded(index) for index in range(3)]
    assert again.name_of(2) == first.name_of(2)
    pack(root / "train-1.tar", {"a.png": jpeg(33), "a.cls": b"0"})
    assert TarShards().open(root, "train")[2][1] == 0
    pack(root / "train-2.tar", {"c.png": jpeg(33), "c.cls": b"1"})
    assert len(TarShards().open(root, "train")) == 4


def test_shards_that_are_fewer_than_the_files_that_may_stay_open_are_read(root, monkeypatch):
    samples = TarShards().open(root, "train")
    monkeypatch.setattr("trainers.datasets.byte_ranges._MOST_OPEN", 1)
    for _ in range(2):
        assert [samples.encoded(index) for index in range(3)] == [jpeg(10), jpeg(20), jpeg(30)]
    assert len(samples._open_files) == 1


def test_an_archive_that_is_cut_off_during_the_run_is_named_with_the_image(root):
    samples = TarShards().open(root, "train")
    os.truncate(root / "train-1.tar", 600)
    with pytest.raises(UnreadableImage, match=r"train-1\.tar, byte 512 \(a\.png\): 88 of \d+ bytes are there"):
        samples[2]


def link(kind):
    member = tarfile.TarInfo("b.jpg")
    member.type, member.linkname = kind, "/etc/passwd"
    return member


REFUSED = [
    ({"a.jpg": b"x", "b": link(tarfile.SYMTYPE)}, "'b.jpg' is a link, a device or a file with holes"),
    ({"a.jpg": b"x", "b": link(tarfile.LNKTYPE)}, "'b.jpg' is a link"),
    ({"a.jpg": b"x", "b": link(tarfile.FIFOTYPE)}, "'b.jpg' is a link"),
    ({"a.jpg": b"x"}, "'a.jpg' has no .cls beside it, and lies in no folder of a class"),
    ({"a.jpg": b"x", "a.png": b"x"}, "'a.png' and 'a.jpg' have one key"),
    ({"a.jpg": b"x", "a.cls": b"-1"}, "'a.cls' holds b'-1', where a class is a whole number from 0"),
    ({"a.jpg": b"x", "a.cls": b"9" * 19}, "'a.cls' holds b'9999999999999999999', where a class is a whole number"),
    ({"a.txt": b"x"}, "holds no image (bmp, gif, jpeg, jpg, png, webp)"),
    ({"a.tif": b"x", "a.cls": b"1"}, "'a.cls' has no image of that name (bmp, gif, jpeg, jpg, png, webp) in this"),
    ({"a.jpg": b"x", "a.cls": b"1", "d/b.cls": b"2"}, "'d/b.cls' has no image of that name"),
    ({"a/b.1.jpg": b"x", "a/b.1.cls": b"1"}, "'a/b.1.jpg' has no class, for a key ends at the first dot"),
    ({"b.1.jpg": b"x", "b.1.cls": b"1"}, "'b.1.jpg' has no class, for a key ends at the first dot"),
    ({"a.jpg": b"x", "a.cls": b"1", "a.1.png": b"x", "a.1.cls": b"1"}, "'a.1.png' has no class"),
    ({"a.jpg": b"x", "a.cls": b"1", "b.1.jpg": b"x"}, "'b.1.jpg' has no class"),
]


@pytest.mark.parametrize(("files", "message"), REFUSED, ids=[message for _, message in REFUSED])
def test_a_wrong_archive_is_named(root, files, message):
    pack(root / "train-1.tar", files)
    with pytest.raises(ValueError, match=re.escape(f"{root / 'train-1.tar'}: {message}")):
        TarShards().open(root, "train")


@pytest.mark.parametrize("kind", ["WEBP", "BMP", "GIF"])
def test_all_that_is_decoded_is_an_image_by_its_name(root, kind):
    file = io.BytesIO()
    Image.new("RGB", (12, 9), (70, 0, 0)).save(file, kind)
    pack(root / "train-1.tar", {f"a.{kind}": file.getvalue(), "a.cls": b"2"})
    samples = TarShards().open(root, "train")
    assert samples.labels.tolist() == [1, 0, 2]
    assert abs(samples[2][0][..., 0].mean() - 70) < 5


def test_two_classes_of_one_image_are_refused(root):
    with tarfile.open(root / "train-1.tar", "a") as archive:
        member = tarfile.TarInfo("a.cls")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"1"))
    with pytest.raises(ValueError, match=r"train-1\.tar: 'a\.cls' is there twice; leave one out"):
        TarShards().open(root, "train")


def test_a_second_class_of_an_image_is_passed_over(root):
    pack(root / "train-1.tar", {"a.jpg": jpeg(1), "a.cls": b"2", "a.fine.cls": b"9", "a.seg.png": b"x"})
    assert TarShards().open(root, "train").labels.tolist() == [1, 0, 2]


def test_a_class_beyond_32_bits_is_counted(root):
    pack(root / "train-1.tar", {"a.png": jpeg(30), "a.cls": b"9" * 18})
    assert TarShards().facts(root)["num_classes"] == 10**18


def test_sparse_members_are_refused(root):
    member = tarfile.TarInfo("a.jpg")
    member.type = tarfile.GNUTYPE_SPARSE
    pack(root / "train-1.tar", {"a": member})
    with pytest.raises(ValueError, match="holes"):
        TarShards().open(root, "train")


def test_damaged_and_compressed_archives_are_named(root):
    path = root / "train-1.tar"
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(ValueError, match=r"train-1\.tar: cut off within 'a\.png'"):
        TarShards().facts(root)
    pack(path, {"a.jpg": jpeg(1), "a.cls": b"1"}, mode="w:gz")
    with pytest.raises(ValueError, match=r"train-1\.tar: .*damaged, cut off or compressed"):
        TarShards().facts(root)
    pack(path, {"dog/a.jpg": jpeg(1)})
    with pytest.raises(ValueError, match=r"dog/a\.jpg has no \.cls, and other images have one"):
        TarShards().facts(root)
    with pytest.raises(ValueError, match=r"x-\*\.tar: no such archive; write `train` in the reader"):
        TarShards(train="x-*.tar").facts(root)


def test_the_fingerprint_names_the_archive_that_changed(root):
    before = TarShards().fingerprints(root)
    assert list(before) == ["train-0.tar", "train-1.tar", "val-0.tar"]
    pack(root / "train-1.tar", {"a.png": jpeg(90), "a.cls": b"2"})
    after = TarShards().fingerprints(root)
    assert [name for name in before if before[name] != after[name]] == ["train-1.tar"]


def flipped(path, number):
    """One bit of the header of a member."""
    with tarfile.open(path) as archive:
        at = archive.getmembers()[number].offset
    data = bytearray(path.read_bytes())
    data[at + 3] ^= 1
    path.write_bytes(data)


def cut(path, number, behind):
    with tarfile.open(path) as archive:
        os.truncate(path, archive.getmembers()[number].offset + behind)


def concatenated(path, count):
    path.write_bytes(path.read_bytes() * count)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: flipped(path, 3), "damaged or cut off at byte"),
        (lambda path: cut(path, 3, 100), "damaged or cut off at byte"),
        (lambda path: cut(path, 3, 0), "damaged or cut off at byte"),
        (lambda path: concatenated(path, 2), "goes on behind its end, byte"),
    ],
    ids=["one bit", "within a header", "between members", "cat"],
)
def test_no_image_behind_the_place_where_tarfile_stops_is_lost_silently(root, damage, message):
    damage(root / "train-0.tar")
    with pytest.raises(ValueError, match=rf"train-0\.tar: {message}"):
        TarShards().facts(root)


def test_a_name_without_cls_may_have_dots(tmp_path):
    for split in ("train", "val"):
        names = ("a/photo.v1.jpg", "a/photo.v2.jpg", "b/IMG_1.2.JPG", "b/._photo.jpg", "b/photo.v1.txt")
        pack(tmp_path / f"{split}-0.tar", {name: jpeg(1) for name in names})
    samples = TarShards().open(tmp_path, "train")
    assert list(samples.names) == ["a/photo.v1.jpg", "a/photo.v2.jpg", "b/IMG_1.2.JPG"]
    assert samples.labels.tolist() == [0, 0, 1]


def test_names_that_are_no_utf_8_are_in_the_fingerprint(tmp_path):
    prints = []
    for name in ("caf\udce9", "caf\udce8"):
        for split in ("train", "val"):
            pack(tmp_path / f"{split}-0.tar", {f"a/{name}.jpg": jpeg(1)})
        prints.append(TarShards().fingerprint(tmp_path))
    assert prints[0] != prints[1]


@pytest.mark.parametrize("classes", [5, None, [1, {}], ["a", "a"]])
def test_names_of_a_strangers_manifest_that_are_none_count_as_none(tmp_path, classes):
    keys = {"root": ".", "source": "", "images": "", "form": "tar", "per_chunk": 1, "num_train": 0, "num_eval": 0}
    (tmp_path / "manifest.jsonl").write_text(json.dumps(keys | {"classes": classes}) + "\n")
    assert recorded_classes(tmp_path) == []
