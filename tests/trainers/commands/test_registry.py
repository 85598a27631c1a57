"""`kilobatch registry`, as a user types it."""

import json

import pytest
from typer.testing import CliRunner

from kilobatch import app
from recipes.errors import InputRefused
from recipes.sharing.pack_file import write_pack
from recipes.sharing.registries import add_registry


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
    write_pack(tmp_path / "a.kilobatch", {"facts": {"dataset": forged}}, {"recipe.yaml": b"kilobatch: 1\n"})
    entry = add_registry("team", str(tmp_path / "team"), signers=None).push(tmp_path / "a.kilobatch", "net")
    evidence = tmp_path / "evidence.json"
    shown = "ok\\x1b[3A\\r\\nsigned by ann@team"
    evidence.write_text(json.dumps({"pack": entry.digest, "date": "2026", "verdict": forged}))
    assert typed("push", evidence, "team/net") == f"added to the record of team/net@1: {shown}\n"
    assert typed("verify", "team/net").splitlines()[1:] == ["not signed", f"rerun 2026: {shown}"]
    assert shown in typed("list")
    evidence.write_text(json.dumps({"pack": entry.digest}))
    assert "it has no verdict" in typed("push", evidence, "team/net")


def test_a_registry_is_added_where_its_folder_can_be_listed_and_removed(tmp_path, monkeypatch, typed):
    assert "cannot be made: No such file or directory" in typed("add", "team", tmp_path / "away" / "team")
    assert typed("add", "team", tmp_path / "team").startswith("added team: ")
    assert f"team is {tmp_path}/team; take another name, or: kilobatch" in typed("add", "team", tmp_path / "other")
    assert not (tmp_path / "other").exists()
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
    assert typed("remove", "team") == f"removed team: {tmp_path}/team\n"
    assert (tmp_path / "team" / "names" / "net" / "1.json").is_file()
    assert typed("list").startswith("nothing;")
    assert "there is no registry team" in typed("remove", "team")
    (tmp_path / "gone").symlink_to("nowhere")  # no folder can be made there, as where the home is read-only
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    assert "cannot be written: File exists; set XDG_CONFIG_HOME" in typed("add", "team", tmp_path / "team")


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
