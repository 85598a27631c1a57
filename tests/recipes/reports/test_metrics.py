import json
import math

import numpy as np
import pytest

from recipes.reports.metrics import RunError, read_metrics
from recipes.reports.record import open_run


def test_columns_are_what_was_written(write_run, metric_lines):
    run = open_run(write_run())
    written = [line for line in metric_lines() if line["key"] == "train_loss"]
    assert len(run.updates) == 54
    assert run.updates.update.tolist() == list(range(54))
    assert run.updates.samples.dtype == np.int64
    for column, field in [("loss", "value"), ("epoch", "epoch"), ("learning_rate", "learning_rate")]:
        assert getattr(run.updates, column).tolist() == [line[field] for line in written]
    assert run.updates.global_batch_size.tolist() == [240] * 36 + [480] * 18


def test_accuracy_and_loss_of_one_evaluation_share_an_entry(write_run, metric_lines):
    run = open_run(write_run())
    lines = metric_lines()
    assert run.evaluations.update.tolist() == [*range(6, 37, 6), *range(39, 55, 3)]
    assert run.evaluations.accuracy.tolist() == [line["value"] for line in lines if line["key"] == "eval_accuracy"]
    assert run.evaluations.loss.tolist() == [line["value"] for line in lines if line["key"] == "eval_loss"]


@pytest.mark.parametrize("tail", [b'{"key": "train_lo', b'{"key": "x", "value": "\xc3', b"{"])
def test_half_written_last_line_is_passed_over(write_run, metric_lines, tail):
    folder = write_run(lines=metric_lines(stop=None, num_updates=5))
    with open(folder / "metrics.jsonl", "ab") as file:
        file.write(tail)
    run = open_run(folder)
    assert len(run.updates) == 5
    assert run.outcome == "unfinished"


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_all_updates_but_the_last_can_be_passed_over(write_run, metric_lines, separators):
    path = write_run() / "metrics.jsonl"
    texts = [json.dumps(line, separators=separators) for line in metric_lines()]
    path.write_text("\n".join([*texts, texts[1][:20]]))
    few = dict(read_metrics(path, all_updates=False))
    over = [line["update"] for number, line in read_metrics(path) if few.get(number) != line]
    assert over == list(range(53))


def test_half_written_line_in_the_middle_is_an_error_with_its_number(write_run):
    folder = write_run()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    lines[3] = lines[3][:20]
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError, match=r"metrics\.jsonl:4: not JSON"):
        open_run(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"key": ["train_loss"]}, r"metrics\.jsonl:2: `key` is \[\"train_loss\"\], expected a text"),
        ({"key": {}}, r"metrics\.jsonl:2: `key` is \{\}, expected a text"),
        ({"epoch": "one"}, r"metrics\.jsonl:2: `epoch` is \"one\", expected a number"),
        ({"samples": None}, r"metrics\.jsonl:2: `samples` is null"),
        ({"update": 0.5}, r"metrics\.jsonl:2: `update` is 0.5, expected a whole number"),
        ({"update": 1e300}, r"metrics\.jsonl:2: `update` is 1e\+300, expected a whole number"),
        ({"learning_rate": True}, r"`learning_rate` is true"),
        ({"update_seconds": math.inf}, r"`update_seconds` is Infinity"),
        ({"update": 10**400}, r"metrics\.jsonl:2: .*10{19}\.\.\. has more than 64 bits"),
        ({"anything": [-(2**63) - 1]}, r"-9223372036854775809\.\.\. has more than 64 bits"),
        ({"time_ms": "now"}, r"metrics\.jsonl:2: `time_ms`"),
        ({"update": 7}, r"metrics\.jsonl:3: update 1 follows 7; resumed without a cut\?"),
    ],
)
def test_wrong_field_is_named_with_its_line(write_run, metric_lines, change, message):
    lines = metric_lines()
    lines[1].update(change)
    with pytest.raises(RunError, match=message):
        open_run(write_run(lines=lines))


def test_missing_field_is_named_with_its_line(write_run, metric_lines):
    lines = metric_lines()
    del lines[1]["learning_rate"]
    with pytest.raises(RunError, match=r"metrics\.jsonl:2: train_loss has no `learning_rate`"):
        open_run(write_run(lines=lines))
