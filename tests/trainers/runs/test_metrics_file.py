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
    assert warning.endswith("metrics.jsonl was cut or damaged: 1 of its lines cannot be read or are there twice")


def test_lost_metrics_are_named(tmp_path):
    (warning,) = truncate_records(tmp_path, 2)
    assert warning.endswith("metrics.jsonl is missing: the metrics of the first 2 updates are lost")


@pytest.mark.parametrize(
    ("updates", "said"),
    [
        ([0, 1, 2, 0, 1, 2], "3 of its lines cannot be read or are there twice"),
        ([0, 0, 2], "the metrics of 1 of the first 3 updates are lost"),
        ([0, 2, 1], "the metrics of 1 of the first 3 updates are lost"),
    ],
    ids=["twice", "one for another", "order"],
)
def test_lines_that_are_there_twice_are_dropped_and_stand_for_no_others(tmp_path, updates, said):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b"".join(line_of(UPDATE | {"update": update}) for update in updates))
    (warning,) = truncate_records(tmp_path, 3)
    assert warning.endswith(f"was cut or damaged: {said}")
    kept = [json.loads(line)["update"] for line in path.read_text().splitlines()]
    assert kept == sorted(set(kept))
    assert truncate_records(tmp_path, 3) == ([] if len(kept) == 3 else [warning])


def test_a_trace_with_a_hole_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b"".join(line_of(UPDATE | {"update": update}) for update in range(4)))
    (tmp_path / "trace.jsonl").write_bytes(b"".join(line_of({"update": update}) for update in (0, 3)) + b'{"upd')
    (warning,) = truncate_records(tmp_path, 4)
    assert "trace.jsonl lacks 2 of the first 4 updates" in warning


def test_records_are_cut_on_a_full_disk_where_only_their_end_goes(tmp_path, largest_file):
    path = tmp_path / "metrics.jsonl"
    lines = [line_of(UPDATE | {"update": update}) for update in range(3)]
    path.write_bytes(b"".join(lines))
    with largest_file(1):
        truncate_records(tmp_path, 2)
    assert path.read_bytes() == lines[0] + lines[1]
    damaged = lines[0] + b"?\n" + lines[2]
    path.write_bytes(damaged)
    path.chmod(0o640)
    with largest_file(1), pytest.raises(OSError, match="File too large"):
        truncate_records(tmp_path, 3)
    assert (path.read_bytes(), [*tmp_path.iterdir()]) == (damaged, [path])
    truncate_records(tmp_path, 3)
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (lines[0] + lines[2], 0o640)
