"""`kilobatch data get` by a real HTTP server, from files at hand, and from Debian's package."""

import gzip
import hashlib
import http.server
import io
import os
import shutil
import tarfile
from contextlib import nullcontext
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest
import yaml

from recipes.errors import InputRefused, RecipeError
from recipes.reading.open import open_dataset
from recipes.reading.registry import obtained_folder
from recipes.schema.dataset import Source
from trainers.datasets import obtaining
from trainers.datasets.obtaining import Unreached, get
from trainers.launch.vocabulary import vocabulary

FACTS = "name: small\nreader: {kind: Idx}\nnum_train: 5\nnum_eval: 3\nnum_classes: 5\nchannels: 1\n"


class Server(http.server.BaseHTTPRequestHandler):
    """Serves `files` with ranges; the first answer for a name in `cut` ends after half of it."""

    files: ClassVar[dict[str, bytes]] = {}
    cut: ClassVar[set[str]] = set()
    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self):
        name, span = self.path.rpartition("/")[2], self.headers["Range"]
        self.asked.append((name, span))
        if name not in self.files:
            self.send_error(404)
            return
        start = int(span.removeprefix("bytes=").removesuffix("-")) if span else 0
        data = self.files[name][start:]
        if span and not data:
            self.send_error(416)
            return
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: len(data) // 2] if name in self.cut else data)
        self.cut.discard(name)

    def log_message(self, *words):
        pass


@pytest.fixture(scope="module")
def web(serve):
    return f"{serve(Server)}/set"


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(obtaining, "PAUSE_SECONDS", 0.01)
    Server.files = {f"{name}.gz": gzip.compress(data) for name, data in idx_files().items()}
    Server.cut, Server.asked = set(), []


def idx_files():
    files = {}
    for split, count in (("train", 5), ("t10k", 3)):
        for part, shape in (("images-idx3", (count, 6, 4)), ("labels-idx1", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">u4").tobytes()
            files[f"{split}-{part}-ubyte"] = header + bytes(i % count for i in range(int(np.prod(shape))))
    return files


def source(url, **changed):
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in Server.files.items()}
    files = ", ".join(f"{{name: {name}, sha256: {sum}}}" for name, sum in {**sums, **changed}.items())
    return f"{{url: {url!r}, files: [{files}]}}"


def opened(tmp_path, *sources, more=""):
    (tmp_path / "small.yaml").write_text(f"{FACTS}sources: [{', '.join(sources)}]\n{more}")
    return open_dataset(str(tmp_path / "small.yaml"), vocabulary=vocabulary())


def got(dataset):
    return get(dataset, obtained_folder("small"), at_hand=None, showing=lambda words, total: nullcontext(add))


def add(count):
    assert count >= 0


def test_files_come_from_the_url_and_training_finds_them(web, tmp_path):
    assert opened(tmp_path, source(web)).root is None
    folder = got(opened(tmp_path, source(web)))
    assert folder == obtained_folder("small") == opened(tmp_path, source(web)).root
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == Server.files
    Server.asked.clear()
    assert got(opened(tmp_path, source(web))) == folder
    assert Server.asked == []


def test_a_download_that_is_cut_off_goes_on(web, tmp_path):
    Server.cut = {"train-images-idx3-ubyte.gz"}
    half = len(Server.files["train-images-idx3-ubyte.gz"]) // 2
    assert {path.name: path.read_bytes() for path in got(opened(tmp_path, source(web))).iterdir()} == Server.files
    spans = [span for name, span in Server.asked if name == "train-images-idx3-ubyte.gz"]
    assert spans == [None, f"bytes={half - 1}-"]


@pytest.mark.parametrize("change", [lambda data: data, lambda data: data + b"more", lambda data: b"other" + data[:9]])
def test_what_was_left_of_a_download_does_not_spoil_it(web, tmp_path, change):
    obtained_folder("small").mkdir(parents=True)
    name = "train-images-idx3-ubyte.gz"
    sha256 = hashlib.sha256(Server.files[name]).hexdigest()
    (obtained_folder("small") / f".{name}.{sha256[:16]}.part").write_bytes(change(Server.files[name]))
    assert {path.name: path.read_bytes() for path in got(opened(tmp_path, source(web))).iterdir()} == Server.files


def test_a_file_with_another_sum_replaces_none_and_the_next_source_is_tried(web, tmp_path, capfd):
    name = "t10k-labels-idx1-ubyte.gz"
    bad = source(web, **{name: "0" * 64})
    obtained_folder("small").mkdir(parents=True)
    (obtained_folder("small") / name).write_bytes(b"my own")
    with pytest.raises(InputRefused, match=f"{name}: has SHA-256 .*, expected 000"):
        got(opened(tmp_path, bad))
    assert (obtained_folder("small") / name).read_bytes() == b"my own"
    folder = got(opened(tmp_path, bad, source(web)))
    assert f"{name}: has SHA-256" in capfd.readouterr().err
    assert (folder / name).read_bytes() == Server.files[name]


def test_a_part_from_one_source_is_not_gone_on_with_from_another(web, tmp_path, monkeypatch):
    name = "train-images-idx3-ubyte.gz"
    monkeypatch.setattr(obtaining, "ATTEMPTS", 1)
    Server.cut = {name}
    folder = got(opened(tmp_path, source(web, **{name: "0" * 64}), source(web)))
    assert (folder / name).read_bytes() == Server.files[name]
    assert [span for asked, span in Server.asked if asked == name] == [None, None]


def test_each_source_that_does_not_serve_is_named(web, tmp_path):
    gone = source("http://127.0.0.1:9/nothing")
    del Server.files["t10k-labels-idx1-ubyte.gz"]
    missing = source(web, **{"t10k-labels-idx1-ubyte.gz": "0" * 64})
    with pytest.raises(InputRefused, match="no source serves: .*:9/nothing/train.*refused.*404.*--from FOLDER"):
        got(opened(tmp_path, gone, missing))
    with pytest.raises(InputRefused, match="small: its file names no source; ask Ada"):
        got(opened(tmp_path, more="obtain: ask Ada\n"))
    with pytest.raises(InputRefused, match="data set digits: Digits reads no folder, so there is nothing to fetch"):
        got(open_dataset("digits", vocabulary=vocabulary()))


def test_an_archive_is_unpacked_and_leads_nowhere_else(web, tmp_path):
    for place, inside in (("data", True), ("../out", False)):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            for name, data in idx_files().items():
                member = tarfile.TarInfo(f"{place}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        Server.files = {"small.tar.gz": packed.getvalue()}
        dataset = opened(tmp_path, source(web)[:-1] + ", folder: data}")
        if inside:
            assert got(dataset) == obtained_folder("small") / "data"
            assert opened(tmp_path, source(web)[:-1] + ", folder: data}").root == obtained_folder("small") / "data"
            shutil.rmtree(obtained_folder("small"))
        else:
            with pytest.raises(InputRefused, match="no source serves: .*OutsideDestinationError"):
                got(dataset)
            assert not (obtained_folder("small").parent / "out").exists()


def test_files_at_hand_are_copied_and_nothing_is_asked(web, tmp_path, kilobatch):
    for name, data in idx_files().items():
        (tmp_path / "hand").mkdir(exist_ok=True)
        (tmp_path / "hand" / name).write_bytes(data)
    opened(tmp_path, source(web))
    words = ["data", "get", tmp_path / "small.yaml", "--from", tmp_path / "hand"]
    done = kilobatch(*words)
    assert done.returncode == 0, done.stderr
    assert "training finds them" in done.stdout
    assert Server.asked == []
    (tmp_path / "hand" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(InputRefused, match="hand: .*t10k-labels-idx1-ubyte: no such file"):
        get(opened(tmp_path, source(web)), tmp_path / "to", at_hand=tmp_path / "hand", showing=None)


@pytest.mark.parametrize(
    ("counts", "validation", "lacks"),
    [
        ((4, 1, 5), {"fraction": 0.2}, None),
        ((5, 1, 5), {"fraction": 0.2}, "num_train and num_eval together: 6, and there are 5"),
        ((5, 3, 7), None, None),
        ((5, 3, 4), None, "num_classes: 4, and there are 5"),
    ],
)
def test_the_counts_are_compared_as_training_compares_them(web, tmp_path, counts, validation, lacks):
    (tmp_path / "hand").mkdir()
    for name, data in idx_files().items():
        (tmp_path / "hand" / name).write_bytes(data)
    facts = dict(zip(("num_train", "num_eval", "num_classes"), counts, strict=True), validation=validation)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump({"reader": {"kind": "Idx"}, "channels": 1, **facts}))
    dataset = open_dataset(str(tmp_path / "small.yaml"), vocabulary=vocabulary())
    with pytest.raises(InputRefused, match=lacks) if lacks else nullcontext():
        get(dataset, tmp_path / "to", at_hand=tmp_path / "hand", showing=None)


def test_of_a_folder_at_hand_the_files_of_the_source_are_copied_and_no_others(web, tmp_path):
    hand = tmp_path / "hand"
    (hand / "private").mkdir(parents=True)
    for number, (name, data) in enumerate(idx_files().items()):
        (hand / (name if number else f"{name}.gz")).write_bytes(data if number else gzip.compress(data))
    (hand / "private/letter.txt").write_text("mine")
    names = sorted(path.name for path in hand.iterdir() if path.is_file())
    dataset = opened(tmp_path, source(web))
    with pytest.raises(InputRefused, match="hand: the files are there already; .*--data"):
        get(dataset, hand, at_hand=hand, showing=None)
    get(dataset, tmp_path / "to", at_hand=hand, showing=None)
    assert sorted(path.name for path in (tmp_path / "to").iterdir()) == names
    (tmp_path / "blocked" / names[0]).mkdir(parents=True)
    with pytest.raises(InputRefused, match="blocked: not all of .*hand could be copied .*directory"):
        get(dataset, tmp_path / "blocked", at_hand=hand, showing=None)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_files_of_another_data_set_are_refused_by_their_content_however_they_are_compressed(tmp_path, capfd, suffix):
    hand, files = tmp_path / "hand", idx_files()
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    known = ", ".join(f"{{name: {name}.gz, sha256: {'0' * 64}, content_sha256: {sums[name]}}}" for name in files)
    dataset = opened(tmp_path, f"{{url: 'http://nowhere', files: [{known}]}}")
    hand.mkdir()
    for name, data in files.items():
        (hand / f"{name}{suffix}").write_bytes(gzip.compress(data, 1) if suffix else data)
    get(dataset, tmp_path / "to", at_hand=hand, showing=None)
    assert capfd.readouterr().err == ""
    name = f"train-images-idx3-ubyte{suffix}"
    data = files["train-images-idx3-ubyte"][:-1] + b"?"
    (hand / name).write_bytes(gzip.compress(data) if suffix else data)
    with pytest.raises(InputRefused, match=rf"hand: not what http://nowhere has, .* content: {name}; name the folder"):
        get(dataset, tmp_path / "other", at_hand=hand, showing=None)
    assert not (tmp_path / "other").exists()
    (hand / f"{name.removesuffix('.gz')}.gz").write_bytes(gzip.compress(files["train-images-idx3-ubyte"], 1)[:-9])
    (hand / name.removesuffix(".gz")).write_bytes(files["train-images-idx3-ubyte"])  # beside a cut one: readers differ
    with pytest.raises(InputRefused, match=r"by the SHA-256 of the content: train-images-idx3-ubyte\.gz; name"):
        get(dataset, tmp_path / "other", at_hand=hand, showing=None)


def test_a_folder_of_which_all_is_copied_does_not_hold_the_copy(tmp_path):
    for name, data in idx_files().items():
        (tmp_path / name).write_bytes(data)
    dataset = opened(tmp_path, "")
    with pytest.raises(InputRefused, match="to: lies in .*, all of which is copied; name another --to"):
        get(dataset, tmp_path / "to", at_hand=tmp_path, showing=None)
    (tmp_path / "link").symlink_to("nothing")
    with pytest.raises(InputRefused, match="not all of .* could be copied .*No such file.*link"):
        get(dataset, tmp_path.parent / f"{tmp_path.name}-copy", at_hand=tmp_path, showing=None)


@pytest.mark.parametrize("name", ["../../..", "a/b", "..", ""])
def test_no_name_leads_out_of_the_cache(name):
    with pytest.raises(InputRefused, match="cannot name a folder in the cache; give another `name`, or --to FOLDER"):
        obtained_folder(name)


def test_debians_package_is_installed_by_root_only_and_else_its_command_shown(monkeypatch):
    source = Source(debian="dataset-fashion-mnist", folder="/usr/share/datasets/fashion-mnist")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    if shutil.which("apt-get"):
        with pytest.raises(Unreached, match="type: sudo apt-get install -y dataset-fashion-mnist"):
            obtaining._installed(source)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unreached, match="there is no apt-get here"):
        obtaining._installed(source)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("apt-get") or os.geteuid() != 0, reason="needs apt-get and root")
def test_debians_package_has_fashion_mnist():
    folder = obtaining._installed(Source(debian="dataset-fashion-mnist", folder="/usr/share/datasets/fashion-mnist"))
    dataset = open_dataset("fashion_mnist", vocabulary=vocabulary())
    assert dataset.reader.facts(folder) == {"num_train": 60_000, "num_eval": 10_000, "num_classes": 10}


@pytest.mark.parametrize(
    "wrong",
    [
        "{url: 'ftp://a/b', files: [{name: a, sha256: S}]}",
        "{url: 'http://a/b'}",
        "{debian: '-y', folder: /usr}",
        "{debian: gzip-, folder: /usr}",
        "{debian: a.+, folder: /usr}",
        "{debian: a.b, folder: /usr}",
        "{debian: some-package, folder: data}",
        "{url: 'http://a/b', debian: c, folder: /d, files: [{name: a, sha256: S}]}",
        "{url: 'http://a/b', files: [{name: ../a, sha256: S}]}",
        "{url: 'http://a/b', files: [{name: a, sha256: abc}]}",
        "{url: 'http://a/b', files: [{name: a, content_sha256: abc, sha256: S}]}",
        "{url: 'http://a/b', folder: ../c, files: [{name: a, sha256: S}]}",
    ],
)
def test_a_source_that_cannot_be_is_refused_at_its_line(tmp_path, wrong):
    with pytest.raises(RecipeError, match=r"small\.yaml:7:.*sources"):
        opened(tmp_path, wrong.replace("S}", "0" * 64 + "}"))


def test_a_missing_data_set_names_the_command_and_downloads_nothing(tmp_path, kilobatch):
    done = kilobatch("data", "inspect", "mnist")
    assert done.returncode == 2
    assert "kilobatch data get mnist" in done.stderr
    assert not (Path(tmp_path) / "cache" / "kilobatch" / "datasets").exists()
