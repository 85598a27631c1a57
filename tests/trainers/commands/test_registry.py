"""`kilobatch registry`, as a user types it."""

import json

from typer.testing import CliRunner

from kilobatch import app
from recipes.errors import InputRefused


def test_a_registry_is_added_where_its_folder_can_be_listed_and_removed(tmp_path, monkeypatch):
    def typed(*words):
        result = CliRunner().invoke(app, ["registry", *map(str, words)])
        return str(result.exception) if isinstance(result.exception, InputRefused) else result.output

    for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
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
    assert typed("remove", "team") == f"removed team: {tmp_path}/team\n"
    assert (tmp_path / "team" / "names" / "net" / "1.json").is_file()
    assert typed("list").startswith("nothing;")
    assert "there is no registry team" in typed("remove", "team")
    (tmp_path / "gone").symlink_to("nowhere")  # no folder can be made there, as where the home is read-only
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "gone"))
    assert "cannot be written: File exists; set XDG_CONFIG_HOME" in typed("add", "team", tmp_path / "team")
