"""`kilobatch runs` on folders that were made by hand."""

import json
import os
from pathlib import Path

import pytest
import typer

from recipes.errors import InputRefused
from recipes.reports.metrics import RunError
from trainers.commands.runs import list_runs, remove, report, show
from trainers.frontier.run import FRONTIER
from trainers.runs.run_folder import FolderRefused, lock_folder
from trainers.search.folder import SEARCH


@pytest.fixture
def run(tmp_path):
    """A folder that counts as a run's."""
    run = tmp_path / "run"
    run.mkdir()
    for name in ("recipe.yaml", "run.yaml"):
        (run / name).touch()
    return run


def test_no_run_begins_in_a_folder_while_the_question_about_its_removal_waits(run, monkeypatch):
    def confirm(question, abort):
        with pytest.raises(FolderRefused, match="a run is being trained in"):
            lock_folder(run)

    monkeypatch.setattr(typer, "confirm", confirm)
    remove([run])
    assert not run.exists()


def test_a_run_that_is_being_trained_is_not_removed(run):
    with lock_folder(run), pytest.raises(FolderRefused, match=f"is being trained in {run}; wait until it has ended"):
        remove([run], yes=True)
    assert run.exists()


def test_the_working_directory_is_removed_as_a_run(run, monkeypatch, capsys):
    monkeypatch.chdir(run)
    remove([run.relative_to(run)], yes=True)
    assert capsys.readouterr().out == "removed .\n"
    assert not run.exists()


def test_a_run_and_one_inside_it_are_removed_together(run, capsys):
    inner = run / "runs" / "b"
    inner.mkdir(parents=True)
    for name in ("recipe.yaml", "metrics.jsonl"):
        (inner / name).touch()
    remove([run, inner], yes=True)
    assert capsys.readouterr().out == f"removed {inner}\nremoved {run}\n"
    assert not run.exists()


def test_a_folder_with_a_recipe_but_no_record_of_a_run_is_not_removed(run):
    (run / "run.yaml").unlink()
    with pytest.raises(InputRefused, match=r"has a recipe\.yaml, but no run\.yaml and no metrics\.jsonl"):
        remove([run], yes=True)
    assert [path.name for path in run.iterdir()] == ["recipe.yaml"]


def test_a_line_break_in_a_name_breaks_no_table(run, capsys):
    run = run.rename(run.with_name("a\nb"))
    (run / "metrics.jsonl").write_text('{"key": "run_start", "value": "r", "time_ms": 1}\n')
    (run / "c\nd").touch()
    list_runs(run.parent)
    assert len(capsys.readouterr().out.splitlines()) == 2
    show(run)
    shown = capsys.readouterr().out
    assert ("a\\nb" in shown, "c\\nd" in shown) == (True, True)


def test_a_damaged_run_is_listed_as_such_beside_the_others(run, capsys):
    whole = run.with_name("whole")
    for folder, more in ((run, "\0\0\0\n"), (whole, "")):
        folder.mkdir(exist_ok=True)
        (folder / "recipe.yaml").touch()
        (folder / "metrics.jsonl").write_text('{"key": "run_start", "value": "r", "time_ms": 1}\n' + more)
    list_runs(run.parent, as_json=True)
    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows[str(run)]["ended"].startswith("damaged: metrics.jsonl:2: not JSON")
    assert (rows[str(whole)]["ended"], rows[str(whole)]["recipe"]) == ("killed", "r")
    assert {*rows[str(run)]} == {*rows[str(whole)]}
    list_runs(run.parent)
    assert "damaged: metrics.jsonl:2" in capsys.readouterr().out


@pytest.mark.parametrize(
    "metrics",
    ["[" * 100_000, '{"key": "run_start", "value": 1, "time_ms": 1%s}' % ("0" * 400), Path("none"), Path("loop"), None],
    ids=["brackets", "time", "dangling", "loop", "pipe"],
)
def test_a_run_whose_beginning_cannot_be_read_is_listed_beside_the_others(run, capsys, metrics):
    whole = run.with_name("whole")
    for folder in (run, whole):
        folder.mkdir(exist_ok=True)
        (folder / "recipe.yaml").touch()
        (folder / "metrics.jsonl").write_text('{"key": "run_start", "value": "r", "time_ms": 1}\n')
        (folder / "loop").symlink_to("loop")
    (run / "metrics.jsonl").unlink()
    if metrics is None:
        os.mkfifo(run / "metrics.jsonl")
    elif isinstance(metrics, Path):
        (run / "metrics.jsonl").symlink_to(metrics)
    else:
        (run / "metrics.jsonl").write_text(metrics + "\n")
    list_runs(run.parent, as_json=True)
    first, second = json.loads(capsys.readouterr().out)
    assert (first["run"], first["ended"]) == (str(whole), "killed")
    assert (second["run"], second["ended"][:8]) == (str(run), "damaged:")
    show(whole)
    assert "ended: killed" in capsys.readouterr().out


def test_a_run_that_is_removed_while_runs_are_listed_is_left_out(run, capsys):
    (run / "metrics.jsonl").touch()
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").symlink_to("removed")  # seen in the folder, and not there
    list_runs(run.parent)
    assert capsys.readouterr().out.startswith("no runs in ")


@pytest.mark.parametrize(("epoch", "value"), [("1", '"high"'), ('"one"', "0.5"), ("1", "1" + "0" * 400)])
def test_a_figure_that_is_no_number_is_damage(run, capsys, epoch, value):
    text = f'{{"key": "eval_accuracy", "value": {value}, "time_ms": 1, "update": 1, "epoch": {epoch}}}\n'
    (run / "metrics.jsonl").write_text(text)
    list_runs(run.parent)
    assert "damaged: metrics.jsonl:1: " in capsys.readouterr().out
    with pytest.raises(RunError, match=r"metrics\.jsonl:1: "):
        show(run)


def test_files_that_a_running_run_removes_meanwhile_are_left_out_of_its_size(run, capsys, monkeypatch):
    text = '{"key": "run_start", "value": "r", "time_ms": 1}\n'
    (run / "metrics.jsonl").write_text(text)
    for number in range(2):
        (run / f"{number}.partial").touch()
    real = os.stat

    def stat(path, *more, **how):
        found = real(path, *more, **how)
        if str(path).endswith(".partial"):
            for number in range(2):
                (run / f"{number}.partial").unlink(missing_ok=True)
        return found

    monkeypatch.setattr(os, "stat", stat)
    list_runs(run.parent, as_json=True)
    (row,) = json.loads(capsys.readouterr().out)
    assert row["bytes"] == len(text)


@pytest.mark.parametrize(("kind", "file"), [("search", SEARCH), ("frontier", FRONTIER)])
def test_a_report_on_a_search_or_frontier_names_its_page(run, kind, file, monkeypatch):
    folder = run.parent
    monkeypatch.chdir(folder.parent)
    (run / "metrics.jsonl").touch()
    (folder / "report.html").touch()
    with pytest.raises(InputRefused, match=f"holds 1 run, and is none; type: kilobatch report {folder.name}/run$"):
        report([folder.name])
    (folder / file).touch()
    with pytest.raises(InputRefused, match=f"folder of a {kind}, not of a run; its page is {folder}/report.html"):
        report([str(folder)])
