"""Data at a URL, by fsspec alone: byte ranges of shards and arrays, the cache, fetching ahead, staging, the web."""

import http.server
import io
import os
import sys
import time
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from PIL import Image

from recipes.errors import InputRefused
from trainers.datasets import Arrays, ImageFolder, TarShards, remote, staging
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes
from trainers.datasets.place import Place, place_of
from trainers.datasets.remote import Mirror
from trainers.datasets.staging import RECORD, stage

pytest.importorskip("fsspec", reason="fsspec is not installed: pip install .[remote]")
READERS = {"folder": ImageFolder(), "tar": TarShards(), "arrays": Arrays()}


@pytest.fixture(scope="module")
def roots(tmp_path_factory):
    """24 and 8 small JPEGs of one size in two classes, in each form."""
    root, random = tmp_path_factory.mktemp("place"), np.random.default_rng(0)
    for split, count in (("train", 12), ("val", 4)):
        for name in ("ant", "bee"):
            (root / "folder" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (30, 30, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "folder" / split / name / f"{number}.jpg")
    splits = {split: ImageFolder().open(root / "folder", split) for split in ("train", "eval")}
    source = SourceImages(name="a test", splits=splits, classes=names_of_classes(splits["train"]))
    for form in ("tar", "arrays"):
        (root / form).mkdir()
        conversion = Conversion(form=form, per_chunk=10, shorter=30 if form == "arrays" else None)
        convert(
            source, root / form, conversion, workers=1, showing=lambda words, total: nullcontext(lambda count: None)
        )
    return root


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv(remote.FOLDER_VARIABLE, str(tmp_path / "cache"))
    remote._mirror.cache_clear()


@pytest.mark.parametrize("form", READERS)
@pytest.mark.parametrize("size", ["1GB", "20KB"])
def test_samples_and_fingerprints_are_those_of_the_folder_in_a_cache_of_any_size(roots, form, size, monkeypatch):
    monkeypatch.setenv(remote.SIZE_VARIABLE, size)
    reader, root, url = READERS[form], roots / form, Path(f"file://{roots / form}")
    assert reader.facts(url) == reader.facts(root)
    assert reader.fingerprints(url) == reader.fingerprints(root)
    ours, theirs = reader.open(url, "train"), reader.open(root, "train")
    assert list(ours.labels) == list(theirs.labels)
    for index in range(24):
        np.testing.assert_array_equal(ours[index][0], theirs[index][0])
    until = time.monotonic() + 20
    while kept_bytes(ours.mirror.folder) >= (10**9 if size == "1GB" else 24_000):  # what is fetched ahead comes late
        assert time.monotonic() < until
        time.sleep(0.01)


def kept_bytes(folder):
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed since it was listed
            total += path.stat().st_size if path.is_file() and path.name[0] != "." else 0
    return total


@pytest.mark.parametrize("form", READERS)
def test_samples_are_fetched_ahead_and_nothing_else_is(roots, form):
    samples = READERS[form].open(Path(f"file://{roots / form}"), "train")
    theirs, folder = READERS[form].open(roots / form, "train"), samples.mirror.folder

    def fetched():
        return {path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".part")}

    before = fetched()
    samples.will_need([17, 3, 8])
    until = time.monotonic() + 20
    while len(fetched() - before) < 3:
        assert time.monotonic() < until
        time.sleep(0.01)
    samples.mirror._files = None  # from here on nothing can be fetched
    for index in (17, 3, 8):
        np.testing.assert_array_equal(samples[index][0], theirs[index][0])
    assert len(fetched() - before) == 3


def test_what_is_larger_than_the_cache_is_read_past_it(roots, monkeypatch):
    monkeypatch.setenv(remote.SIZE_VARIABLE, "1KB")
    path = next((roots / "folder").rglob("*.jpg"))
    assert path.stat().st_size > 1_000
    mirror = Mirror(f"file://{roots / 'folder'}")
    assert mirror.read(path.relative_to(roots / "folder").as_posix()) == path.read_bytes()


def test_files_of_a_pattern_are_the_same_in_a_folder_and_at_a_url(roots):
    for form, pattern in (("tar", "train-*.tar"), ("folder", "train/*/1*.jpg"), ("folder", "*.jpg"), ("tar", "none")):
        there, here = place_of(Path(f"file://{roots / form}")), Place(roots / form)
        assert list(map(there.name, there.files(pattern))) == list(map(here.name, here.files(pattern)))
    assert len(here.files("train-*.tar")) == 3


def test_a_staged_file_with_other_bytes_of_the_same_size_is_copied_again(roots, tmp_path):
    url, target = Path(f"file://{roots / 'tar'}"), tmp_path / "staged"
    assert stage(url, target).num_copied == 5
    assert stage(url, target).num_copied == 0
    shard = target / "train-00001.tar"
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert stage(url, target).replaced == ["train-00001.tar"]
    assert TarShards().fingerprint(target) == TarShards().fingerprint(roots / "tar")
    assert (target / RECORD).exists()


class Web(http.server.SimpleHTTPRequestHandler):
    """Serves a folder without ranges, with listings as Apache writes them."""

    def list_directory(self, path):
        names = [name + "/" * os.path.isdir(os.path.join(path, name)) for name in os.listdir(path)]
        above = f"{self.path.rstrip('/').rpartition('/')[0]}/"
        links = ["?C=N;O=D", "#top", above, *(quote(name, errors="surrogateescape") for name in names)]
        page = "".join(f'<a href="{link}">a link</a>' for link in links).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        return io.BytesIO(page)

    def log_message(self, *words):
        """Nothing."""


def test_without_its_driver_a_web_server_is_refused_with_the_packages_of_that(monkeypatch):
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "fsspec.implementations.http", raising=False)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "http", raising=False)
    with pytest.raises(InputRefused, match=r"^http://127\.0\.0\.1:9: .*; pip install aiohttp requests$"):
        ImageFolder().facts(Path("http://127.0.0.1:9"))


@pytest.fixture
def served(serve):
    """Called with a folder, the URL of that on a web server."""
    pytest.importorskip("aiohttp", reason="aiohttp is not installed: pip install .[remote]")
    return lambda folder: serve(partial(Web, directory=folder))


def test_a_web_server_has_the_names_of_the_folder(roots, tmp_path, served):
    image = next((roots / "folder").rglob("*.jpg")).read_bytes()
    for split in ("train", "val"):
        for name in ("apple", "été", "a b%20"):
            (tmp_path / "set" / split / name).mkdir(parents=True)
            (tmp_path / "set" / split / name / "1.jpg").write_bytes(image)
    url = Path(served(tmp_path / "set"))
    ours, theirs = (ImageFolder().open(root, "train") for root in (url, tmp_path / "set"))
    assert ImageFolder().class_names(url) == ImageFolder().class_names(tmp_path / "set")
    assert ImageFolder().fingerprint(url) == ImageFolder().fingerprint(tmp_path / "set")
    assert [ours.encoded(index) for index in range(3)] == [image] * 3
    assert ours.labels.tolist() == theirs.labels.tolist()


def test_a_web_server_without_ranges_is_staged_by_whole_files(roots, tmp_path, monkeypatch, served):
    monkeypatch.setattr(staging, "_BLOCK", 4000)  # smaller than a shard
    assert stage(Path(served(roots / "tar")), tmp_path / "staged").num_copied == 5
    assert TarShards().fingerprint(tmp_path / "staged") == TarShards().fingerprint(roots / "tar")
