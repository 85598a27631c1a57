"""`kilobatch registry`, as a user types it."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from kilobatch import app
from recipes.errors import InputRefused
from recipes.sharing.pack_file import write_pack
from recipes.sharing.registries import add_registry, registries


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """`typed(*words)`: what `kilobatch registry WORDS` prints, or its error."""
    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))

    def run(*words):
        result = CliRunner().invoke(app, ["registry", *map(str, words)])
        return str(result.exception) if isinstance(result.exception, InputRefused) else result.output

    return run


def test_texts_of_strangers_stay_on_their_line_and_command_no_terminal(tmp_path, typed):
    forged = "ok\x1b[3A\r\nsigned by ann@team"
    write_pack(tmp_path / "a.kilobatch", {"facts": {"dataset": forged}}, {"recipe.yaml": forged.encode()})
    add_registry("team", str(tmp_path / "team"), signers=None).push(tmp_path / "a.kilobatch", "net")
    _, unopened, *rest = typed("verify", "team/net").splitlines()
    assert unopened.startswith("it does not open here, so what it says of itself is not checked: ")
    assert rest == ["not signed"]
    assert "ok\\x1b[3A\\r\\nsigned by ann@team" in typed("list")


def test_verify_says_of_how_much_of_a_run_a_rerun_was_and_that_nobody_signed_it(tmp_path, typed):
    write_pack(tmp_path / "a.kilobatch", {}, {"recipe.yaml": b"kilobatch: 1\nextends: digits/large_batch\n"})
    entry = add_registry("team", str(tmp_path / "team"), signers=None).push(tmp_path / "a.kilobatch", "net")
    evidence = tmp_path / "evidence.json"
    rerun = {"pack": entry.digest, "date": "2026-11-25T01:00:00+0200", "verdict": "the same bits", "part": 0.05}
    evidence.write_text(json.dumps(rerun | {"verdict": "perfect\x1b"}))
    assert "it has no verdict of a rerun; name the evidence.json" in typed("push", evidence, "team/net")
    evidence.write_text(json.dumps(rerun))
    assert typed("push", evidence, "team/net").endswith("team/net@1: the same bits, after 5 % of it\n")
    shown = "rerun 2026-11-24 23:00 UTC: the same bits, after 5 % of it"
    assert typed("verify", "team/net").splitlines()[1:] == ["not signed", shown]
    (tmp_path / "keys").touch()
    typed("add", "team", tmp_path / "team", "--signers", tmp_path / "keys")
    assert typed("verify", "team/net").splitlines()[-1].startswith(f"{shown} (nobody signs reruns")


def test_a_pack_that_opens_nowhere_or_contradicts_its_head_is_not_pushed(tmp_path, typed):
    typed("add", "team", tmp_path / "team")
    recipe, file = {"recipe.yaml": b"kilobatch: 1\nextends: digits/large_batch\n"}, tmp_path / "a.kilobatch"
    own = {"recipe.yaml": recipe["recipe.yaml"] + b"learning_rate: {schedule: {kind: mine.Wave}}\n"}
    run = {
        "run.yaml": b"{recipe: {}, plan: {}, dataset: {}, origins: {}}",
        "metrics.jsonl": b"",
        "environment.json": b"{}",
    }
    run = recipe | {f"runs/0/{name}": text for name, text in run.items()}
    facts = {"dataset": "digits", "model": "SmallResNet", "batch": 512, "accuracy": 0.9699}
    of_0 = {"runs": [{"seed": 0}]}
    for head, files, why in (
        ({}, {}, "there is no file"),
        ({}, {"recipe.yaml": b"7"}, "recipe.yaml"),
        (of_0, {**recipe, "runs/0/run.yaml": b"{"}, " pack {}/runs/0/run.yaml:1:2: not YAML"),
        (of_0, run, " pack {}/runs/0 has no accuracy"),
        ({"runs": [{"seed": 3}]}, run, 'says runs of seeds: ["3"], and its recipe and runs have ["0"]'),
        ({"runs": []}, run, 'says runs of seeds: [], and its recipe and runs have ["0"]'),
        ({"facts": [1]}, recipe, "says facts: [1]"),
        ({"facts": {**facts, "dataset": "imagenet"}}, recipe, 'says dataset: "imagenet", and its recipe and runs have'),
        ({"facts": {**facts, "dataset": "x" * 999}}, recipe, f'says dataset: "{"x" * 79}, and its'),
        ({"facts": {**facts, "accuracy": True}}, recipe, "says accuracy: true"),
    ):
        digest = write_pack(file, head, files)
        shown = typed("push", file, "team/net")
        assert "a.kilobatch goes into no registry: " in shown
        assert why.format(digest[:12]) in shown
    assert not (tmp_path / "team" / "names").exists()
    for number, files in enumerate((recipe, own), start=1):
        write_pack(file, {"facts": {"dataset": "digits", "batch": 512}}, files)
        assert typed("push", file, "team/net").startswith(f"in the registry as team/net@{number}")
    write_pack(file, {"facts": {"dataset": "imagenet"}}, recipe)
    registries("team")[0].push(file, "forged")
    assert 'says dataset: "imagenet"' in typed("verify", "team/forged")


def test_a_registry_is_added_where_its_folder_can_be_listed_and_removed(tmp_path, monkeypatch, typed):
    assert "cannot be made: No such file or directory" in typed("add", "team", tmp_path / "away" / "team")
    assert typed("add", "team", tmp_path / "team").startswith("added team: ")
    assert f"team is {tmp_path}/team; take another name, or: kilobatch" in typed("add", "team", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    (tmp_path / "tree" / ".git").mkdir(parents=True)
    assert f"A repository is added as git+{tmp_path}/tree\n" in typed("add", "tree", tmp_path / "tree")
    typed("remove", "tree")
    assert "--signers: there is no file no_keys" in typed("add", "team", tmp_path / "team", "--signers", "no_keys")
    (tmp_path / "keys").touch()
    for signers in (("--signers", tmp_path / "keys"), ()):  # added again, it keeps them
        assert f"signed by keys of {tmp_path}/keys" in typed("add", "team", tmp_path / "team", *signers)
    entry = {"name": "net", "version": 1, "digest": "0" * 64, "facts": {"dataset": "digits", "accuracy": 1.0}}
    (tmp_path / "team" / "names" / "net").mkdir(parents=True)
    (tmp_path / "team" / "names" / "net" / "1.json").write_text(json.dumps({"entry": entry}))
    assert typed("list").splitlines()[1].split() == ["team/net@1", "digits", "-", "-", "-", "-", "100.00", "%", "-"]
    claim = {"metric": "top1", "kind": "accuracy", "value": 1.0, "status": "not run"}
    (tmp_path / "team" / "names" / "net" / "2.json").write_text(
        json.dumps({"entry": entry | {"version": 2, "claims": [claim]}})
    )
    assert "100.00 % (not run)" in typed("list")
    (tmp_path / "team" / "names" / "net" / "3.json").write_text(
        json.dumps({"entry": entry | {"version": 3, "facts": {"dataset": "digits"}}})
    )
    assert typed("list", "team").splitlines()[-1].split() == ["team/net@3", "digits", *"------"]
    assert typed("remove", "team") == f"removed team: {tmp_path}/team\n"
    assert (tmp_path / "team" / "names" / "net" / "1.json").is_file()
    assert typed("list").startswith("nothing;")
    assert "there is no registry team" in typed("remove", "team")
    (tmp_path / "gone").symlink_to("nowhere")  # no folder can be made there, as where the home is read-only
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    assert "cannot be written: File exists; set XDG_CONFIG_HOME" in typed("add", "team", tmp_path / "fresh")
    assert not (tmp_path / "fresh").exists()


def test_a_pulled_pack_is_written_into_a_file_only_where_nothing_else_is(tmp_path, typed):
    write_pack(tmp_path / "a.kilobatch", {}, {"recipe.yaml": b"kilobatch: 1\n"})
    entry = add_registry("team", str(tmp_path / "team"), signers=None).push(tmp_path / "a.kilobatch", "net")
    out = tmp_path / "out.kilobatch"
    for _ in range(2):  # the same bytes once more are no other file
        assert typed("pull", "team/net", "-o", out).startswith("pulled team/net@1")
        assert out.read_bytes() == (tmp_path / "a.kilobatch").read_bytes()
    (tmp_path / "mine.yaml").write_text("mine")
    assert "a pack's file ends in .kilobatch" in typed("pull", "team/net", "-o", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    assert "write -o " in (said := typed("pull", "team/net", "-o", tmp_path / "Mein Päck.kilobatch"))
    assert said.strip().endswith("/Mein_P_ck.kilobatch")
    out.write_text("mine")
    assert "out.kilobatch: exists and holds something else" in typed("pull", "team/net", "-o", out)
    assert out.read_text() == "mine"
    (tmp_path / "folder.kilobatch").mkdir()
    assert "exists and holds something else" in typed("pull", "team/net", "-o", tmp_path / "folder.kilobatch")
    assert "cannot be written: No such file" in typed("pull", "team/net", "-o", tmp_path / "away" / "a.kilobatch")
    (tmp_path / "kilobatch" / "packs" / entry.digest / "recipe.yaml").write_text("kilobatch: 2\n")
    assert typed("pull", "team/net", "-o", tmp_path / "new.kilobatch").startswith("pulled"), "got anew"
    assert not [*tmp_path.glob(".*kilobatch*")]
    assert "nobody's keys are trusted in team; give them: kilobatch registry add team" in typed(
        "pull", "team/net", "--require-signed"
    )
    (tmp_path / "keys").touch()
    typed("add", "team", tmp_path / "team", "--signers", tmp_path / "keys")
    assert "team/net@1 is not signed by a key in" in typed("pull", "team/net")
    assert typed("pull", "team/net", "-o", tmp_path / "look.kilobatch").startswith("pulled team/net@1")


def test_a_registry_that_is_away_hides_no_other_one(tmp_path, typed):
    recipe = {"recipe.yaml": b"kilobatch: 1\nextends: digits/large_batch\n"}
    write_pack(tmp_path / "a.kilobatch", {"facts": {"dataset": "digits"}}, recipe)
    for name in ("away", "team"):
        typed("add", name, tmp_path / name)
    typed("push", tmp_path / "a.kilobatch", "team/net")
    (tmp_path / "away").rmdir()
    site = ("site", "-o", tmp_path / "site", "--no-library")
    for words in (("list",), ("search", "dataset=digits"), site):
        shown = typed(*words)
        assert f"registry away: left out: {tmp_path}/away: there is no such folder; is it mounted?" in shown
        assert "team/net@1" in shown or "wrote 2 pages" in shown
    shutil.rmtree(tmp_path / "team")  # what the cache has of it are the pack and its entry, and no rerun
    for words in (("list",), site):
        shown = typed(*words)
        assert "registry team: " in shown
        assert "going on with what the cache has" in shown
        assert "team/net@1" in shown or "wrote 2 pages" in shown
    shutil.rmtree(tmp_path / "kilobatch" / "registries")
    assert "there is no such folder" in typed("list"), "none can be reached"
