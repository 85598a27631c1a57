import json

import pytest

from trainers.runs.metrics_file import ending_of, has_diverged, truncate_records

UPDATE = dict.fromkeys(("value", "epoch", "samples", "learning_rate", "momentum", "update_seconds"), 1) | {
    "key": "train_loss",
    "update": 0,
    "time_ms": 1,
    "global_batch_size": 96,
}
EVALUATION = {"key": "eval_accuracy", "value": 0.5, "update": 1, "epoch": 0.1, "samples": 96, "time_ms": 1}


def line_of(fields):
    return json.dumps(fields).encode() + b"\n"


@pytest.mark.parametrize(
    ("text", "how"),
    [
        ('{"key": "run_stop", "value": "success"}\n', "success"),
        ('{"key": "run_stop", "value": "success"}', "success"),
        ('{"key": "run_stop", "value": "stopped"}\n\n{"key": "run_st', "stopped"),
        ('{"key": "run_stop", "value": "failed", "cause": "NotFinite"}\n{"key"', "diverged"),
        ('{"key": "run_stop", "value": "failed", "cause": "DiskFull"}\n', "failed"),
        ('{"key": "run_stop", "value": "success"}\n{"key": "run_start"}\n', ""),
        ('{"key": "run_stop", "value": "success"}\n{"key": "run_st\n', ""),
        ("[1]\n", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_how_a_run_ended_is_in_its_last_whole_line(tmp_path, text, how):
    if text is not None:
        (tmp_path / "metrics.jsonl").write_text('{"key": "train_loss"}\n' * 60_000 + text)
    assert ending_of(tmp_path) == how
    assert has_diverged(tmp_path) == (how == "diverged")


def test_cutting_back_leaves_what_the_resumed_run_will_not_do_again(tmp_path):
    lines = [{"key": "run_start", "value": "r", "update": 0, "time_ms": 1}]
    for update in range(4):
        lines.append(UPDATE | {"update": update})
        lines.append(EVALUATION | {"update": update + 1})
    text = "".join(json.dumps(line) + "\n" for line in lines) + '{"key": "train_loss", "val'
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps({"update": u}) + "\n" for u in range(4)))
    truncate_records(tmp_path, 2)
    kept = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["update"] for line in kept if line["key"] == "train_loss"] == [0, 1]
    assert [line["update"] for line in kept if line["key"] == "eval_accuracy"] == [1, 2]
    assert kept[0]["key"] == "run_start"
    assert [json.loads(line)["update"] for line in (tmp_path / "trace.jsonl").read_text().splitlines()] == [0, 1]


@pytest.mark.parametrize(
    "bad",
    [
        b'{"key": "train_loss", "update": "x"}\n',
        b"[1]\n",
        b"\xff\xfe\n",
        b"3\n",
        b"[" * 9999,
        line_of({key: value for key, value in UPDATE.items() if key != "learning_rate"} | {"update": 1}),
        line_of(UPDATE | {"update": 1, "samples": "x"}),
    ],
)
def test_metrics_that_were_cut_or_damaged_are_counted_and_the_rest_is_kept(tmp_path, bad):
    good = line_of(UPDATE)
    (tmp_path / "metrics.jsonl").write_bytes(good + bad)
    (warning,) = truncate_records(tmp_path, 2)
    assert (tmp_path / "metrics.jsonl").read_bytes() == good
    assert warning.endswith("metrics.jsonl was cut or damaged: the metrics of 1 of the first 2 updates are lost")


@pytest.mark.parametrize(
    "bad",
    [
        line_of(EVALUATION)[:-1],
        b'{"key": ["a"], "update": 1}\n',
        b"\xff\n",
        line_of({key: value for key, value in EVALUATION.items() if key != "epoch"}),
        line_of({"key": "checkpoint", "value": "update-000001", "update": 1}),
    ],
)
def test_a_line_of_the_metrics_that_cannot_be_read_is_named_where_all_losses_are_there(tmp_path, bad):
    good = line_of(UPDATE)
    (tmp_path / "metrics.jsonl").write_bytes(good + bad)
    (warning,) = truncate_records(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_bytes() == good
    assert warning.endswith("metrics.jsonl was cut or damaged: 1 of its lines cannot be read")


def test_lost_metrics_are_named(tmp_path):
    (warning,) = truncate_records(tmp_path, 2)
    assert warning.endswith("metrics.jsonl is missing: the metrics of the first 2 updates are lost")
