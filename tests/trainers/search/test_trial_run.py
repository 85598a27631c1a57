"""What a supervisor reads of a trial: its reports."""

import json
from pathlib import Path

import pytest

from recipes.schema import Budget, Search
from recipes.search_space.ranges import Int
from trainers.launch.request import TrainRequest, prepare
from trainers.search.outcome import has_ended, metrics_lines
from trainers.search.samplers import RandomSampler
from trainers.search.trial_run import reports_in

SPACE = {"epochs": Int(low=1, high=2)}
SEARCH = Search(
    name="mine", recipe="digits/batch_256", space=SPACE, sampler=RandomSampler(), budget=Budget(trials=1), reports=4
)


@pytest.fixture(scope="module")
def prepared():
    """Ten epochs of 1,500 samples at batch 256: 59 updates."""
    request = TrainRequest(recipe="digits/batch_256", overrides=("epochs=10", "evaluation.every=0.25run"))
    return prepare(request, workers=1)


def line(epoch, update, value=0.5, key="eval_accuracy"):
    return {"key": key, "value": value, "epoch": epoch, "update": update, "time_ms": 1}


def test_a_report_has_the_number_of_the_last_point_that_was_reached(prepared):
    lines = [
        line(2.56, 15, 0.2),
        line(2.56, 15, 1.7, "eval_loss"),
        line(5.12, 30, 0.4),
        line(7.51, 44),
        line(10.07, 59),
    ]
    reports = list(reports_in(lines, prepared, SEARCH))
    assert [(report.number, report.value) for report in reports] == [(1, 0.2), (2, 0.4), (3, 0.5), (4, 0.5)]


def test_the_end_of_a_run_is_its_last_report(prepared):
    (report,) = reports_in([line(9.9, 59)], prepared, SEARCH)
    assert report.number == 4


def test_a_line_cut_off_by_a_crash_is_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line(1, 6)) + '\n{"key": "train_l')
    assert metrics_lines(tmp_path) == [line(1, 6)]
    assert not has_ended(tmp_path, "success")
    assert metrics_lines(Path("/nowhere")) == []
