"""A pack has exactly one form: equal contents give equal bytes, and whatever else comes is refused whole."""

import io
import json
import math
import random
import sys
import tarfile

import pytest

from recipes.errors import InputRefused
from recipes.schema import Claim
from recipes.sharing import pack_file
from recipes.sharing.canonical import canonical_json, sha256_of
from recipes.sharing.pack_file import PackRefused, cached_pack, claims_of, open_pack, write_pack, write_pack_of_layout

FILES = {
    "recipe.yaml": b"kilobatch: 1\n",
    "runs/0/metrics.jsonl": b'{"key": "run_start"}\n' * 99,
    "runs/1/metrics.jsonl": b"x" * 1024,
    "code/own.py": b"raise SystemExit('code of a pack was run')\n",
    "code/net/__init__.py": b"",
}
HEAD = {"name": "a", "facts": {"accuracy": 0.5}}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kilobatch" / "packs"


@pytest.fixture
def path(tmp_path, cache):
    write_pack(tmp_path / "a.kilobatch", HEAD, FILES)
    return tmp_path / "a.kilobatch"


def below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_pack_opens_to_what_was_written(path, cache):
    pack = open_pack(path)
    assert below(pack.folder) == {**FILES, "pack.json": canonical_json(HEAD)}
    assert pack.head == HEAD
    assert pack.folder == cache / pack.digest
    assert [folder.name for folder in cache.iterdir()] == [pack.digest]
    assert open_pack(path) == pack, "a second time"


def test_a_pack_whose_files_in_the_cache_were_changed_is_unpacked_anew(path):
    pack = open_pack(path)
    compiled = pack.folder / "code" / "__pycache__" / "own.pyc"
    compiled.parent.mkdir()
    compiled.touch()
    assert cached_pack(pack.digest) == pack, "what Python compiles is no change"

    def edited():
        (pack.folder / "recipe.yaml").write_bytes(b"kilobatch: 2\n")

    changes = (edited, (pack.folder / "recipe.yaml").unlink, (pack.folder / "more.txt").touch)
    for change in (*changes, (pack.folder / "pack.json").unlink):
        change()
        assert cached_pack(pack.digest) is None
        assert open_pack(path) == pack
        assert below(pack.folder) == {**FILES, "pack.json": canonical_json(HEAD)}
        assert [folder.name for folder in pack.folder.parent.iterdir()] == [pack.digest]


def test_equal_contents_give_equal_bytes_and_files_count_as_bytes(path, tmp_path):
    (tmp_path / "on disk").write_bytes(FILES["recipe.yaml"])
    again = dict(reversed(FILES.items())) | {"recipe.yaml": tmp_path / "on disk"}
    write_pack(tmp_path / "b.kilobatch", dict(reversed(HEAD.items())), again)
    assert (tmp_path / "b.kilobatch").read_bytes() == path.read_bytes()


def test_other_tools_read_it_as_an_archive_and_as_an_image_layout(path):
    with tarfile.open(path) as archive:
        held = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}
    index = json.loads(held["index.json"])
    manifest = json.loads(held[f"blobs/sha256/{index['manifests'][0]['digest'][7:]}"])
    assert json.loads(held["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    for entry in (index["manifests"][0], manifest["config"], *manifest["layers"]):
        blob = held[f"blobs/sha256/{entry['digest'].removeprefix('sha256:')}"]
        assert (sha256_of(blob), len(blob)) == (entry["digest"].removeprefix("sha256:"), entry["size"])


def test_an_image_layout_of_other_tools_becomes_the_same_file_again(path, tmp_path):
    """As skopeo writes one: other spelling of the index, with a tag, and blobs in a folder."""
    folder = tmp_path / "layout"
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    index = json.loads((folder / "index.json").read_text())
    index["manifests"][0]["annotations"] = {"org.opencontainers.image.ref.name": "3"}
    (folder / "index.json").write_text(json.dumps(index, indent=2))
    assert write_pack_of_layout(tmp_path / "b.kilobatch", folder) == open_pack(path)
    assert (tmp_path / "b.kilobatch").read_bytes() == path.read_bytes()
    blob = folder / "blobs" / "sha256" / sha256_of(FILES["recipe.yaml"])
    blob.write_bytes(b"kilobatch: 2\n")
    with pytest.raises(PackRefused, match="another SHA-256"):
        write_pack_of_layout(tmp_path / "c.kilobatch", folder)
    blob.unlink()
    with pytest.raises(PackRefused, match="is missing"):
        write_pack_of_layout(tmp_path / "c.kilobatch", folder)
    assert not list(tmp_path.glob("*c.kilobatch*"))


def test_a_pack_of_a_later_format_is_refused(tmp_path, cache):
    write_pack(tmp_path / "a.kilobatch", HEAD | {"kilobatch_pack": 2}, FILES)
    with pytest.raises(InputRefused, match="format 2, and this kilobatch reads format 1; open it with a newer"):
        open_pack(tmp_path / "a.kilobatch")
    assert not cache.exists()


def test_the_cache_of_a_user_who_may_not_write_there_is_named(path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/none")
    with pytest.raises(InputRefused, match="cannot be written"):
        open_pack(path)


def test_a_small_pack_that_would_fill_the_disk_is_refused(tmp_path, cache):
    write_pack(tmp_path / "bomb.kilobatch", HEAD, {f"{number}.txt": bytes(10**6) for number in range(80)})
    with pytest.raises(PackRefused, match="more or larger files"):
        open_pack(tmp_path / "bomb.kilobatch")
    assert not cache.exists()


class Forger:
    """Changes a pack: single bytes, entries of the archive, or the whole of it with sums that fit."""

    def __init__(self, data, rng):
        self.data, self.rng = data, rng
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            self.entries = [(entry.name, archive.extractfile(entry).read()) for entry in archive.getmembers()]

    def archive(self, entries, change=lambda entry: None, which=-1, format=tarfile.USTAR_FORMAT):
        out = io.BytesIO()
        for number, (name, content) in enumerate(entries):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            if number == which % len(entries):
                change(entry)
            out.write(entry.tobuf(format) + content + bytes(-len(content) % 512))
        out.write(bytes(1024))
        return out.getvalue() + bytes(-out.tell() % 10240)

    def whole(self, names, **more):
        """All sums fit; the names are a forger's."""
        config = canonical_json(HEAD)
        layers = [(name, sha256_of(content), len(content)) for name, content in names]
        manifest = pack_file._manifest(config, layers)
        manifest = more.get("manifest", lambda text: text)(manifest)
        blobs = {sha256_of(content): content for content in (config, manifest, *(content for _, content in names))}
        blobs |= {sha256_of(content): content for content in more.get("extra", ())}
        for digest in more.get("missing", ()):
            del blobs[digest]
        index = more.get("index", lambda text: text)(pack_file._index(manifest))
        small = [("oci-layout", pack_file._LAYOUT), ("index.json", index)]
        return self.archive([*small, *((f"blobs/sha256/{digest}", blobs[digest]) for digest in sorted(blobs))])

    def flipped(self):
        at = self.rng.randrange(len(self.data))
        return self.data[:at] + bytes([self.data[at] ^ self.rng.randint(1, 255)]) + self.data[at + 1 :]

    def cut(self):
        return self.data[: self.rng.randrange(len(self.data))]

    def longer(self):
        return self.data + self.rng.choice([b"\0", bytes(512), bytes(10240), self.data, b"PK\3\4"])

    def entry_named(self):
        known = "blobs/sha256/"
        name = self.rng.choice(["../evil", "/tmp/evil", f"{known}../../evil", known + "A" * 64, "evil", ""])
        entries = list(self.entries)
        at = self.rng.randrange(len(entries))
        entries[at] = (name, entries[at][1])
        return self.archive(entries)

    def entry_of_another_kind(self):
        kind = self.rng.choice([tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])

        def change(entry):
            entry.type, entry.linkname = kind, self.rng.choice(["../evil", "/etc/passwd", "oci-layout"])

        return self.archive(self.entries, change, self.rng.randrange(len(self.entries)))

    def entry_with_facts(self):
        what, value = self.rng.choice([("mtime", 1), ("mode", 0o755), ("uid", 7), ("uname", "root"), ("gid", 1)])
        return self.archive(self.entries, lambda entry: setattr(entry, what, value), self.rng.randrange(3))

    def entry_of_another_size(self):
        size = self.rng.choice([8**11 - 1, 2**31, 0, 1, 513])
        return self.archive(self.entries, lambda entry: setattr(entry, "size", size), self.rng.randrange(3))

    def shuffled(self):
        entries = list(self.entries)
        one, other = self.rng.sample(range(len(entries)), 2)
        entries[one], entries[other] = entries[other], entries[one]
        return self.archive(entries)

    def twice(self):
        at = self.rng.randrange(len(self.entries))
        return self.archive([*self.entries[: at + 1], *self.entries[at:]])

    def without_one(self):
        at = self.rng.randrange(len(self.entries))
        return self.archive(self.entries[:at] + self.entries[at + 1 :])

    def one_more(self):
        return self.whole(sorted(FILES.items()), extra=[self.rng.randbytes(9)])

    def other_contents(self):
        entries = list(self.entries)
        at = self.rng.randrange(len(entries))
        entries[at] = (entries[at][0], entries[at][1] + b" ")
        return self.archive(entries)

    def name_in_the_manifest(self):
        names = ["../evil", "/tmp/evil", "a/../../evil", ".blobs/x", "runs", "pack.json", "recipe.yaml", "a\0b", ""]
        names += ["torch.py", "torch/__init__.py", "sources/torch.so", "code"]
        names += ["a" * 200, "runs/0/metrics.jsonl/x", "\u202egnp.exe", "a//b", "a/", "C:\\evil", "runs/x/a.json"]
        name = self.rng.choice(names)
        return self.whole(sorted([*FILES.items(), (name, b"evil")]))

    def unsorted_manifest(self):
        return self.whole(sorted(FILES.items(), reverse=True))

    def other_spelling(self):
        old, new = self.rng.choice([(b"{", b" {"), (b":", b": "), (b"{", b'{"a":1,')])

        def spelled(text):
            return text.replace(old, new, 1)

        return self.whole(sorted(FILES.items()), **{self.rng.choice(["manifest", "index"]): spelled})

    def nested(self):
        texts = [b"[" * 100_000, b'{"manifests":' * 5000, b"null", b"[]", b'{"manifests":[7]}', b"\xff", b""]
        deep = self.rng.choice(texts)
        return self.whole(sorted(FILES.items()), **{self.rng.choice(["manifest", "index"]): lambda text: deep})

    def missing_file(self):
        return self.whole(sorted(FILES.items()), missing=[sha256_of(self.rng.choice(list(FILES.values())))])

    def something_else(self):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode=self.rng.choice(["w:gz", "w:xz", "w"])) as archive:
            for name, content in self.entries:
                entry = tarfile.TarInfo(f"./{name}")
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
        return self.rng.choice([out.getvalue(), b"", b"kilobatch: 1\n", bytes(10240), self.rng.randbytes(2000)])

    def long_names(self):
        entries = [*self.entries, ("blobs/sha256/" + "f" * 200, b"")]
        return self.archive(entries, format=self.rng.choice([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))


FORGERIES = [name for name in vars(Forger) if not name.startswith("_") and name not in ("archive", "whole")]


def test_five_hundred_changed_packs_are_refused_and_leave_nothing(path, tmp_path, cache):
    data, before = path.read_bytes(), below(tmp_path)
    assert Forger(data, None).whole(sorted(FILES.items())) == data, "the forger can write a pack"
    number = refusals = 0
    while refusals < 500:
        rng, number = random.Random(number), number + 1
        how = FORGERIES[number % len(FORGERIES)]
        forged = getattr(Forger(data, rng), how)()
        if forged == data:  # a size of 0 where there is nothing
            continue
        refusals += 1
        path.write_bytes(forged)
        with pytest.raises(InputRefused) as refused:
            open_pack(path)
        assert str(refused.value).startswith(f"{path}: "), how
        assert len(str(refused.value).splitlines()) == 1
        assert not cache.exists(), how
    assert number < 520
    path.write_bytes(data)
    assert below(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    ["__pycache__/own.cpython-311.pyc", "__pycache__/own.py", "own.so", "own.pyc", "own/data.json", "own"],
)
def test_code_of_a_pack_is_source_only(path, name):
    names = sorted([*FILES.items(), (f"code/{name}", b"evil")])
    path.write_bytes(Forger(path.read_bytes(), None).whole(names))
    with pytest.raises(PackRefused, match=f"'code/{name}' is no name of a file in a pack"):
        open_pack(path)


def test_a_head_that_is_nested_too_deeply_is_refused_in_a_line(path):
    head = {}
    for _ in range(900):
        head = {"a": head}
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(20 * limit)
    try:
        write_pack(path, head, FILES)
    finally:
        sys.setrecursionlimit(limit)
    with pytest.raises(PackRefused, match="a.kilobatch: its manifest cannot be read: .*; ask for another copy"):
        open_pack(path)


def test_claims_of_strangers_are_claims_or_nothing():
    claim = {"metric": "top1", "kind": "accuracy", "value": 0.5, "runs": 3, "status": "reproduced"}
    wrong = [7, None, {**claim, "value": "high"}, {**claim, "value": math.nan}, {**claim, "runs": "3"}]
    assert claims_of({"claims": [*wrong, claim]}) == [Claim(**claim)]
    assert claims_of({"claims": 7}) == claims_of({}) == []
