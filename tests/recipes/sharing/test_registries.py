"""Registries in a folder, in git and on S3: versions are never lost or overwritten, and the cache works offline."""

import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from recipes.errors import InputRefused
from recipes.reading.registry import find
from recipes.sharing.canonical import sha256_of
from recipes.sharing.conditions import found_in
from recipes.sharing.pack_file import write_pack
from recipes.sharing.registries import Entry, add_registry, is_in_registry, registries, registry_of
from recipes.sharing.signatures import signer
from recipes.sharing.stores import Unreachable, store_of

ROOT = Path(__file__).parents[3]
PUSHER = """\
import sys
from pathlib import Path
from recipes.sharing.registries import Registry
registry = Registry("team", sys.argv[1])
for path in map(Path, sys.argv[2:]):
    print(registry.push(path, "net").said["version"], flush=True)
"""


@pytest.fixture(autouse=True)
def homes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def packed(tmp_path):
    def write(number, **facts):
        path = tmp_path / f"{number}.kilobatch"
        files = {"recipe.yaml": b"kilobatch: 1\n", "number.txt": str(number).encode()}
        write_pack(path, {"title": f"Number {number}", "facts": facts, "ids": {}, "claims": []}, files)
        return path

    return write


@pytest.fixture
def git_url(tmp_path):
    subprocess.run(["git", "init", "--quiet", "--bare", tmp_path / "team.git"], check=True)
    return f"git+file://{tmp_path}/team.git"


@pytest.fixture(scope="module")
def s3_url():
    for package in ("s3fs", "moto.server"):
        try:
            found = importlib.util.find_spec(package)
        except ImportError:
            found = None
        if found is None:
            pytest.skip(f"{package} is not installed: pip install .[remote] moto[server]")
    import s3fs

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    settings = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (settings | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
            patch.setenv(name, value)
        until = time.monotonic() + 60
        while True:
            with socket.socket() as asked:
                if not asked.connect_ex(("127.0.0.1", port)):
                    break
            assert time.monotonic() < until
            time.sleep(0.1)
        s3fs.S3FileSystem().mkdir("packs")
        yield "s3://packs/team"
    server.kill()
    server.wait()


@pytest.fixture
def url(request, tmp_path):
    if request.param == "folder":
        return str(tmp_path / "team")
    there = request.getfixturevalue(request.param)
    return f"{there}/{tmp_path.name}" if request.param == "s3_url" else there


EVERY = pytest.mark.parametrize("url", ["folder", "git_url", "s3_url"], indirect=True)


def test_a_driver_that_is_not_installed_and_a_list_of_keys_that_is_gone_have_a_way_out(tmp_path, monkeypatch):
    def lacking(url, **options):
        raise ImportError("needs aiohttp")

    monkeypatch.setattr(pytest.importorskip("fsspec").core, "url_to_fs", lacking)
    with pytest.raises(InputRefused, match=r"needs aiohttp; pip install 'fsspec.*pip install '\.\[remote\]'"):
        store_of("https://host/recipes")
    with pytest.raises(InputRefused, match="there is no such list of keys; .*registry add NAME URL --signers"):
        signer(b"", "signature", tmp_path / "keys")


def test_an_accuracy_that_was_not_measured_is_marked_and_meets_no_condition():
    claim = {"metric": "top1", "kind": "accuracy", "value": 0.9}
    entries = [
        Entry(name=status, said={"facts": facts, "claims": [claim | {"status": status}]})
        for status, facts in (
            ("reproduced", {"accuracy": 0.9, "batch": 8, "device_hours": 1.5}),
            ("reproduced", {"accuracy": 0.9, "batch": 8}),  # the recipe's own claim: the pack has no runs
            ("not run", {"accuracy": 0.9, "batch": 8}),
        )
    ]
    assert [entry.unmeasured for entry in entries] == ["", "claimed", "not run"]
    assert found_in(entries, ["accuracy>=0.8"]) == entries[:1]
    assert found_in(entries, ["batch=8"]) == entries


@EVERY
def test_names_have_versions_that_are_found_pulled_and_searched(url, packed, monkeypatch):
    team = add_registry("team", url, signers=None)
    assert team.entries() == []
    path = packed(1, dataset="imagenet", accuracy=0.7)
    monkeypatch.chdir(path.parent)
    first = team.push(Path(path.name), "net")
    second = team.push(packed(2, dataset="imagenet", accuracy=0.8), "net")
    other = team.push(packed(3, dataset="digits", accuracy=None), "vision/other")
    assert [entry.name for entry in (first, second, other)] == ["team/net@1", "team/net@2", "team/vision/other@1"]
    assert team.push(packed(2, dataset="imagenet", accuracy=0.8), "net") == second, "pushed again"
    assert team.entries() == [second, other]
    assert team.entries(every_version=True) == [first, second, other]
    assert (team.pull(first).folder / "number.txt").read_bytes() == b"1"
    assert team.pull(first, anew=True).digest == first.digest
    assert found_in(team.entries(), ["dataset=imagenet", "accuracy>=0.75"]) == [second]
    assert found_in(team.entries(), ["accuracy<0.75"]) == []
    with pytest.raises(InputRefused, match="no team/net@7; it has versions"):
        team.entry("net", 7)
    with pytest.raises(InputRefused, match="did you mean net"):
        team.entry("nett")


def test_a_repository_may_be_named_by_a_relative_path_and_of_a_missing_one_git_says_so(tmp_path, git_url, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert add_registry("team", "git+team.git", signers=None).url == f"git+{tmp_path}/team.git"
    assert add_registry("team", "team.git", signers=None).entries() == []
    with pytest.raises(InputRefused, match=r"none.git: git fetch: fatal: .*none.git' does not appear to be a git rep"):
        add_registry("none", "none.git", signers=None)


def test_git_says_why_a_push_is_refused_and_a_clone_that_was_cut_off_goes_on(tmp_path, packed, git_url):
    tree = tmp_path / "tree"
    subprocess.run(["git", "init", "--quiet", "-b", "main", tree], check=True)
    who = ["-c", "user.name=ann", "-c", "user.email=ann@team"]
    subprocess.run(["git", *who, "-C", tree, "commit", "--quiet", "--allow-empty", "-m", "first"], check=True)
    with pytest.raises(Unreachable, match="refusing to update checked out branch.*; a registry is a bare repository"):
        add_registry("tree", f"git+{tree}", signers=None).push(packed(1), "net")
    clone = tmp_path / "cache" / "kilobatch" / "registries" / f"{sha256_of(git_url[4:].encode())[:16]}.git"
    subprocess.run(["git", "init", "--quiet", "--bare", clone], check=True)
    assert add_registry("team", git_url, signers=None).push(packed(1), "net").name == "team/net@1"


@EVERY
def test_reruns_are_added_to_the_record_of_a_pack(url, packed):
    team = add_registry("team", url, signers=None)
    entry = team.push(packed(1), "net")
    early, late = "2026-01-02T01:00:00+0200", "2026-01-02T00:00:00+0000"
    for date in (late, early, early):
        team.add_rerun(entry.digest, {"date": date, "verdict": "the same bits"})
    assert [rerun["date"] for rerun in team.reruns(entry.digest)] == [early, late], "by the instant"
    assert team.entry("net") == entry


@pytest.mark.parametrize("url", ["folder", "git_url"], indirect=True)
def test_what_was_seen_once_is_there_without_the_store(url, packed, tmp_path, capsys):
    team = add_registry("team", url, signers=None)
    team.push(packed(1), "net")
    unseen = team.push(packed(2), "net")
    team.pull(team.entry("net", 1))
    team.entries(every_version=True)
    shutil.rmtree(tmp_path / "cache" / "kilobatch" / "packs" / unseen.digest)
    place = tmp_path / ("team" if "team.git" not in url else "team.git")
    place.rename(tmp_path / "away")
    (team,) = registries("team")
    assert (team.pull(team.entry("net", 1)).folder / "number.txt").read_bytes() == b"1"
    assert team.entry("net").name == "team/net@2", "the newest that is known"
    assert "going on with what the cache has" in capsys.readouterr().err
    with pytest.raises(InputRefused, match="not in the cache"):
        team.pull(team.entry("net", 2))
    with pytest.raises(Unreachable):
        team.push(packed(3), "net")


@pytest.mark.parametrize("same", [True, False], ids=["same pack", "other pack"])
@pytest.mark.parametrize("url", ["folder", "git_url"], indirect=True)
def test_a_push_into_a_registry_that_was_made_anew_is_refused(url, packed, tmp_path, same):
    team = add_registry("team", url, signers=None)
    first = team.push(packed(1), "net")
    assert team.entry("net") == first
    place = tmp_path / ("team" if "team.git" not in url else "team.git")
    shutil.rmtree(place)
    place.mkdir()
    if "team.git" in url:
        subprocess.run(["git", "init", "--quiet", "--bare", place], check=True)
    (team,) = registries("team")
    with pytest.raises(InputRefused, match=r"another registry than before: names/net/1.json is gone .*; ask who keeps"):
        team.push(packed(1 if same else 2), "net")
    assert team.store.names("names") == []
    with pytest.raises(InputRefused, match=r"another registry than before: names/net/1.json is gone .*; ask who keeps"):
        team.push(packed(2), "new")


@pytest.mark.parametrize("number", [1, 2])
def test_a_push_is_judged_by_the_store_and_not_by_what_the_cache_has_of_it(packed, tmp_path, number):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    team.push(packed(1), "net")
    assert team.entry("net").name == "team/net@1"
    (tmp_path / "team").rename(tmp_path / "away")
    with pytest.raises(Unreachable, match="there is no such folder; is it mounted"):
        team.push(packed(number), "net")
    add_registry("other", str(tmp_path / "other"), signers=None).push(packed(3), "net")
    (tmp_path / "other").rename(tmp_path / "team")
    with pytest.raises(InputRefused, match="another registry than before: names/net/1.json .* was changed; ask"):
        team.push(packed(number), "net")


@pytest.mark.parametrize("name", ["net", "other"])
@pytest.mark.parametrize("damage", [None, b"", b"nothing"], ids=["gone", "empty", "changed"])
def test_a_pack_that_is_damaged_in_a_folder_is_put_right_by_another_push(packed, tmp_path, name, damage):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    entry = team.push(packed(1), "net")
    file = tmp_path / "team" / "packs" / f"{entry.digest}.kilobatch"
    file.unlink()
    if damage is not None:
        file.write_bytes(damage)
    assert team.push(packed(1), name).name == f"team/{name}@1"
    assert file.read_bytes() == packed(1).read_bytes()
    assert team.pull(entry, anew=True).digest == entry.digest
    assert team.entries(every_version=True)[0] == entry
    assert [*file.parent.iterdir()] == [file]


def test_an_older_version_is_put_right_and_a_whole_one_becomes_the_newest(packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    old, new = team.push(packed(1), "net"), team.push(packed(2), "net")
    (tmp_path / "team" / "packs" / f"{old.digest}.kilobatch").unlink()
    assert team.push(packed(1), "net") == old
    assert team.pull(old, anew=True).digest == old.digest
    assert team.entry("net") == new
    assert team.push(packed(1), "net").name == "team/net@3", "as one who goes back to it means"


@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("damage", [b"", b"x"], ids=["empty", "changed"])
def test_a_damaged_entry_stops_no_push_to_its_name_or_to_another(packed, tmp_path, capsys, seen, damage):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    team.push(packed(1), "net")
    team.push(packed(2), "other")
    if seen:
        team.entries(every_version=True)
    else:
        shutil.rmtree(tmp_path / "cache")
    (tmp_path / "team" / "names" / "net" / "1.json").write_bytes(damage)
    assert team.push(packed(3), "new").name == "team/new@1"
    assert team.push(packed(1), "net").name == "team/net@2"
    assert "left out: team/net@1: its entry is damaged" in capsys.readouterr().err


def test_a_pack_that_is_damaged_in_git_is_put_right_under_another_name_and_refused_under_its_own(git_url, packed):
    team = add_registry("team", git_url, signers=None)
    entry = team.push(packed(1), "net")
    team.store.create("names/other/1.json", b"{}", before={f"packs/{entry.digest}.kilobatch": packed(2)})
    with pytest.raises(InputRefused, match="holds another pack under its digest"):
        team.push(packed(1), "net")
    team.push(packed(1), "third")
    assert team.pull(entry, anew=True).digest == entry.digest


def pushed_at_once(url, packed, number):
    """Versions that two processes got for their packs; half of the packs are pushed by each."""
    paths = [packed(index) for index in range(number)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PUSHER, url, *paths[half::2]], stdout=subprocess.PIPE, env=environment, text=True
        )
        for half in (0, 1)
    ]
    outputs = [process.communicate(timeout=550)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    return [[int(line) for line in output.split()] for output in outputs]


@pytest.mark.parametrize(
    ("url", "number"),
    [
        pytest.param("folder", 60, id="folder-60"),
        pytest.param("git_url", 200, id="git-200", marks=pytest.mark.slow),
        pytest.param("s3_url", 200, id="s3-200", marks=pytest.mark.slow),
    ],
    indirect=["url"],
)
def test_two_pushers_at_once_lose_and_overwrite_no_version(url, number, packed):
    team = add_registry("team", url, signers=None)
    one, other = pushed_at_once(url, packed, number)
    assert sorted(one + other) == list(range(1, number + 1))
    assert one == sorted(one)
    assert other == sorted(other)
    entries = team.entries(every_version=True)
    assert len({entry.digest for entry in entries}) == number
    halves = {version: half for half, versions in enumerate((one, other)) for version in versions}
    for entry in entries:
        number = int(entry.said["title"].removeprefix("Number "))
        assert number % 2 == halves[entry.said["version"]], "the version that its pusher was told"
    assert (team.pull(entries[-1]).folder / "recipe.yaml").read_bytes() == b"kilobatch: 1\n"


@pytest.fixture
def keys(tmp_path):
    """`ann` and `bob` have keys; the team's list has Ann's only."""
    for who in ("ann", "bob"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", who, "-f", tmp_path / who]
        subprocess.run(command, check=True)
    kind, key, _ = (tmp_path / "ann.pub").read_text().split()
    (tmp_path / "signers").write_text(f"ann@team {kind} {key}\n")
    return tmp_path


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_signatures_name_who_of_the_team_has_signed(keys, packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=keys / "signers")
    signing = enumerate((keys / "ann", keys / "bob", None))
    entries = [team.push(packed(number), "net", key=key) for number, key in signing]
    assert [team.signed_by(entry) for entry in entries] == ["ann@team", None, None]
    assert find("recipes", "team/net@1") == team.pull(entries[0]).folder / "recipe.yaml"
    for unsigned in ("team/net@2", "team/net"):
        with pytest.raises(InputRefused, match="net@[23] is not signed by a key in .*signers; .* pull team/net@. -o"):
            find("recipes", unsigned)
    file = tmp_path / "team" / "names" / "net" / "1.json"
    file.chmod(0o644)
    tree = json.loads(file.read_text())
    tree["entry"]["digest"] = entries[1].digest
    file.write_text(json.dumps(tree))
    shutil.rmtree(tmp_path / "cache" / "kilobatch" / "registries")
    assert team.signed_by(team.entry("net", 1)) is None, "another pack under a signed entry"
    with pytest.raises(InputRefused, match="--sign"):
        team.push(packed(9), "net", key=keys / "nobody")


def test_a_store_that_holds_another_pack_is_refused(packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    entry = team.push(packed(1), "net")
    shutil.rmtree(tmp_path / "cache" / "kilobatch" / "packs")
    file = tmp_path / "team" / "packs" / f"{entry.digest}.kilobatch"
    file.write_bytes(packed(2).read_bytes())
    with pytest.raises(InputRefused, match="another pack under its digest"):
        team.pull(entry)
    file.write_bytes(b"nothing")
    with pytest.raises(InputRefused, match="no pack"):
        team.pull(entry)


@pytest.mark.parametrize("key", ["title", "ids", "facts", "claims"])
def test_an_entry_that_describes_another_pack_than_its_own_is_refused(packed, tmp_path, key):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    entry = team.push(packed(1, accuracy=0.5), "net")
    forged = replace(entry, said={**entry.said, key: {"accuracy": 0.99}})
    for anew in (False, True):
        assert team.pull(entry, anew=anew).digest == entry.digest
        with pytest.raises(InputRefused, match=f"team/net@1: its entry has other {key} than its pack; do not use it"):
            team.pull(forged, anew=anew)


def test_a_url_without_conditional_writes_is_read_and_refuses_pushes(packed, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    pushed = team.push(packed(1), "net")
    fsspec.filesystem("memory").put(f"{tmp_path}/team/", "/shared/", recursive=True)
    shutil.rmtree(tmp_path / "cache")
    there = add_registry("there", "memory://shared", signers=None)
    (entry,) = there.entries()
    assert (entry.name, entry.said) == ("there/net@1", pushed.said)
    assert (there.pull(entry).folder / "number.txt").read_bytes() == b"1"
    with pytest.raises(InputRefused, match="can only be read"):
        there.push(packed(2), "net")


def test_what_a_stranger_says_of_a_pack_breaks_no_list(packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    facts = {"accuracy": "high", "batch": [8], "epochs": 3, "model": "ResNet50", "dataset": 7, "color": "red"}
    assert team.push(packed(1, **facts), "net").facts == {"epochs": 3, "model": "ResNet50"}


def test_files_of_strangers_that_are_no_evidence_end_in_a_line(packed, tmp_path, capsys):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    entry = team.push(packed(1), "net")
    folder = tmp_path / "team" / "reruns" / entry.digest
    folder.mkdir(parents=True)
    (folder / f"{sha256_of(b'[]')}.json").write_bytes(b"[]")
    with pytest.raises(InputRefused, match="has no verdict"):
        team.add_rerun(entry.digest, {"pack": entry.digest})
    team.add_rerun(entry.digest, {"verdict": "worse", "date": "2026-01-02"})
    assert [rerun["verdict"] for rerun in team.reruns(entry.digest)] == ["worse"]
    assert "is no evidence of a rerun: a list in place of an object" in capsys.readouterr().err


@pytest.mark.parametrize("more", ['"signature": 7', '"signature": "\\ud800"', f'"title": {"[" * 900}{"]" * 900}'])
def test_a_damaged_entry_is_named_and_left_out_of_lists(packed, tmp_path, capsys, more):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    (tmp_path / "team" / "names" / "net").mkdir(parents=True)
    entry = f'{{"name": "net", "version": 1, "digest": "{"0" * 64}"}}'
    (tmp_path / "team" / "names" / "net" / "1.json").write_text(f'{{"entry": {entry}, {more}}}')
    with pytest.raises(InputRefused, match="team/net@1: its entry is damaged: .*; ask who keeps"):
        team.entry("net")
    team.push(packed(1), "other")
    assert [entry.name for entry in team.entries()] == ["team/other@1"]
    assert "registry team: left out: team/net@1: its entry is damaged" in capsys.readouterr().err


def test_a_name_that_a_registry_gives_its_own_files_is_refused_and_one_in_the_way_ends_a_push(packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    for name in ("net/1.json", "1.json", "7.json/net"):
        with pytest.raises(InputRefused, match="calls its own files so"):
            team.push(packed(1), name)
    (tmp_path / "team" / "names" / "net" / "1.json").mkdir(parents=True)
    with pytest.raises(InputRefused, match="team/net@1 cannot be made, and is not there: .*: Is a directory; choose"):
        team.push(packed(1), "net")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_the_place_of_a_pack_ends_in_a_line(packed, tmp_path, make):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    entry = team.push(packed(1), "net")
    file = tmp_path / "team" / "packs" / f"{entry.digest}.kilobatch"
    file.unlink()
    make(file)
    with pytest.raises(InputRefused, match=f"team/net@1 is not in .*: packs/{file.name} cannot be read: "):
        team.pull(entry, anew=True)


def test_new_folders_of_a_registry_may_be_written_by_all_who_may_write_into_it(packed, tmp_path):
    team = add_registry("team", str(tmp_path / "team"), signers=None)
    (tmp_path / "team").chmod(0o2770)
    team.push(packed(1), "vision/net")
    folders = [path for path in (tmp_path / "team").rglob("*") if path.is_dir()]
    assert len(folders) == 4
    assert {path.stat().st_mode & 0o7777 for path in folders} == {0o2770}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "team").rglob("*") if path.is_file()} == {0o660}


def test_a_store_cannot_write_outside_the_cache(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    team = add_registry("team", "memory://hostile", signers=None)
    for path in (f"reruns/{'a' * 64}/../../../../../../evil.sh", "names/../../../../../evil/1.json"):
        fsspec.filesystem("memory").pipe_file(f"/hostile/{path}", b"{}")
    assert team.reruns("a" * 64) == team.entries() == []
    assert not [*tmp_path.rglob("evil*")]


def test_names_of_registries_and_wrong_ones(tmp_path):
    assert not is_in_registry("team/net")
    add_registry("team", str(tmp_path / "team"), signers=None)
    assert is_in_registry("team/net")
    assert is_in_registry("other/net@3"), "a version is nothing else's"
    assert not is_in_registry("digits/large_batch")
    assert registry_of("team/vision/net@12")[1:] == ("vision/net", 12)
    with pytest.raises(InputRefused, match="no registry tame; did you mean team"):
        registry_of("tame/net")
    with pytest.raises(InputRefused, match="no name of a registry"):
        registry_of("team")
    with pytest.raises(InputRefused, match="credentials"):
        add_registry("x", "s3://key:secret@bucket/packs", signers=None)
    with pytest.raises(InputRefused, match="is no condition"):
        found_in([], ["color=red"])
