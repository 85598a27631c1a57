from inspect import signature
from math import isnan

import pytest

from recipes.errors import InputRefused
from recipes.reports import metrics
from trainers.commands import python_run
from trainers.commands.python_run import Run, runs
from trainers.runs.run_folder import lock_folder
from trainers.tasks.export_run import export_run
from trainers.tasks.predict_run import predict_run
from trainers.tasks.run_model import model_of_run, samples_of_run
from trainers.tasks.score_run import score_run

SCORED = '{"key": "eval_accuracy", "value": %s, "time_ms": 1, "update": 1, "epoch": 1}'


def test_a_run_is_found_from_every_folder_and_says_how_it_ended(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").touch()
    (tmp_path / "run" / "metrics.jsonl").write_text(SCORED % "0.5" + "\n")
    monkeypatch.chdir(tmp_path)
    run = Run("run")
    assert repr(run) == "<run run: accuracy 50.00 %>"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert (run.accuracy, run.ended) == (0.5, "killed")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"key": "run_stop", "value": "stopped", "time_ms": 1}\n')
    assert run.ended == run.facts["ended"] == "stopped"
    with pytest.raises(InputRefused, match="^None is no path; write one as a text or a Path"):
        Run(None)


def test_a_run_shows_the_options_of_its_functions_and_they_are_those_of_the_commands():
    for own, command, given in (
        (Run.evaluate, score_run, {"self", "folder"}),
        (Run.predict, predict_run, {"self", "folder", "images"}),
        (Run.export, export_run, {"self", "folder", "form"}),
        (Run.model, model_of_run, {"self", "folder"}),
        (Run.samples, samples_of_run, {"self", "folder"}),
    ):
        one, other = (
            {name: each.default for name, each in signature(function).parameters.items() if name not in given}
            for function in (own, command)
        )
        assert one == other


def test_a_curve_of_values_that_are_no_numbers_is_refused(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    line = '{"key": "%s", "value": %s, "time_ms": 1, "update": 1, "epoch": 1}\n'
    (tmp_path / "metrics.jsonl").write_text(line % ("norms", "[1, 2]") + line % ("loss", "null"))
    with pytest.raises(InputRefused, match=r"^norms has the value \[1, 2\], which is no number"):
        Run(tmp_path).curve("norms")
    assert isnan(Run(tmp_path).curve("loss")[0][1])


def test_a_run_that_trains_is_told_from_one_that_was_killed(tmp_path):
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "metrics.jsonl").write_text(
        '{"key": "train_loss", "value": 1, "time_ms": 1, "update": 6, "epoch": 0.5}\n'
    )
    with lock_folder(tmp_path):
        assert Run(tmp_path).ended == "training"
    facts = Run(tmp_path).facts
    assert (facts["ended"], facts["update"]) == ("killed", 7)  # the line of update 6 is that of the seventh


def test_runs_of_no_folder_are_refused(tmp_path):
    assert runs(tmp_path) == []
    with pytest.raises(InputRefused, match="none is no folder"):
        runs(tmp_path / "none")
    (tmp_path / "mine.kilobatch").touch()
    with pytest.raises(InputRefused, match=r"mine.kilobatch is a file, not a folder"):
        runs(tmp_path / "mine.kilobatch")
    with pytest.raises(InputRefused, match=r"mine.kilobatch is no run's folder"):
        Run(str(tmp_path / "mine.kilobatch"))


def test_a_damaged_run_is_shown_beside_the_others(tmp_path):
    lines = {"damaged": "{]", "other": SCORED % '"high"', "new": ""}
    for name, line in lines.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "recipe.yaml").touch()
        (tmp_path / name / "metrics.jsonl").write_text(f"{line}\n" if line else "")
    shown = {run.folder.name: repr(run) for run in runs(tmp_path)}
    assert shown["new"] == f"<run {tmp_path / 'new'}: not evaluated yet>"
    assert shown["damaged"].startswith(f"<run {tmp_path / 'damaged'}: damaged: metrics.jsonl")
    assert shown["other"].startswith(f"<run {tmp_path / 'other'}: damaged: ")


def test_branches_of_a_run_which_have_its_first_lines_are_in_the_order_of_their_numbers(tmp_path):
    names = ["mine", "mine-branches-9/batch-64-seed-2", "mine-branches-9/batch-128-seed-1", "mine-branches-10/batch-64"]
    for name in reversed(names):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "recipe.yaml").touch()
        (tmp_path / name / "metrics.jsonl").write_text(SCORED % "0.5" + "\n")
    assert [str(run.folder.relative_to(tmp_path)) for run in runs(tmp_path)] == names


def test_facts_read_the_metrics_once(tmp_path, monkeypatch):
    (tmp_path / "recipe.yaml").touch()
    (tmp_path / "metrics.jsonl").write_text(SCORED % "0.5" + "\n")
    read, real = [], metrics.read_metrics
    monkeypatch.setattr(python_run, "read_metrics", lambda path, **how: read.append(path) or real(path, **how))
    assert Run(tmp_path).facts["accuracy"] == 0.5
    assert len(read) == 1
