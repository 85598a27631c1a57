"""`kilobatch runs` on folders that were made by hand."""

import pytest
import typer

from trainers.commands.runs import remove
from trainers.runs.run_folder import FolderRefused, lock_folder


@pytest.fixture
def run(tmp_path):
    """A folder that counts as a run's."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").touch()
    return run


def test_no_run_begins_in_a_folder_while_the_question_about_its_removal_waits(run, monkeypatch):
    def confirm(question, abort):
        with pytest.raises(FolderRefused, match="a run is being trained in"):
            lock_folder(run)

    monkeypatch.setattr(typer, "confirm", confirm)
    remove([run])
    assert not run.exists()


def test_the_working_directory_is_removed_as_a_run(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    remove([run.relative_to(run)], yes=True)
    assert capsys.readouterr().out == "removed .\n"
    assert not run.exists()
