import json
import math
import os

import numpy as np
import pytest

from recipes.reports.metrics import RunError
from recipes.reports.page import page_text, write_page
from recipes.reports.record import open_run


def test_summary_by_hand(write_run):
    def update(number, loss):
        return {
            "key": "train_loss", "value": loss, "time_ms": 2000 + 1000 * number, "update": number, "epoch": number / 2,
            "samples": 720 * number, "learning_rate": 0.1, "momentum": None, "global_batch_size": 720,
            "update_seconds": 0.5,
        }  # fmt: skip

    def accuracy(updates, value):
        at = {"update": updates, "epoch": updates / 2, "samples": 720 * updates, "time_ms": 2500 + 1000 * updates}
        return {"key": "eval_accuracy", "value": value, **at}

    start = {"key": "run_start", "value": "x", "time_ms": 1000}
    stop = {"key": "run_stop", "value": "success", "time_ms": 6000, "reason": ""}
    lines = [
        start,
        update(0, 2.0),
        accuracy(1, 0.5),
        update(1, 1.0),
        accuracy(2, 0.9),
        update(2, 0.5),
        accuracy(3, 0.8),
        stop,
    ]
    run = open_run(write_run(lines=lines))
    assert run.seconds == 5.0
    assert run.outcome == "success"
    assert run.samples_per_second == 1440.0
    assert run.epochs_done == 1.5
    assert (run.final_accuracy, run.best) == (0.8, 1)
    assert run.final_loss is None
    assert np.isnan(run.updates.momentum).all()


def test_pause_between_sessions_is_no_time_of_the_run(write_run, metric_lines):
    first = metric_lines(stop="stopped", num_updates=10)
    hour = 3_600_000
    later = [{"key": "run_start", "value": "digits/large", "time_ms": first[-1]["time_ms"] + hour}]
    later += [{**line, "time_ms": line["time_ms"] + hour} for line in metric_lines() if line.get("update", 0) >= 10]
    run = open_run(write_run(lines=first + later))
    alone = open_run(write_run("alone", lines=metric_lines()))
    assert run.outcome == "success"
    assert run.reason == ""
    assert run.seconds == pytest.approx(alone.seconds, abs=1.0)
    assert len(run.updates) == 54


def sessions(*starts):
    """The first lines of a run's sessions, (update, workers)."""
    index = {"key": "run_start", "value": "digits/large", "time_ms": 5}
    return [{**index, "update": update, "workers": workers} for update, workers in starts]


@pytest.mark.parametrize(
    ("starts", "expected"),
    [
        ([(0, 3)], [(0, 3)]),
        ([(0, 4), (10, 3), (20, 3), (30, 1)], [(0, 4), (10, 3), (30, 1)]),
        ([(0, 4), (0, 2), (10, 4), (10, 2)], [(0, 2)]),  # killed before the first checkpoint, and right after it
        ([(0, 4), (10, None)], []),
        ([(0, 4), ("x", 3)], []),
    ],
)
def test_who_made_which_updates_is_known_of_sessions_with_other_numbers_of_workers(write_run, starts, expected):
    assert open_run(write_run(lines=sessions(*starts))).sessions == tuple(expected)


def test_the_page_has_numbers_of_workers_that_changed(write_run):
    changed = open_run(write_run(lines=sessions((0, 4), (10, 1), (12, 3))))
    same = open_run(write_run("same", lines=sessions((0, 3), (10, 3))))
    page = page_text([changed])
    assert "on 1 to 4 workers" in page
    shown = "updates 0 to 9 by 4 workers, 10 to 11 by 1 worker, and from 12 on by 3 workers."
    assert f"So the last session was planned; {shown}" in page
    assert "on 3 workers" in page_text([same])
    assert "session was" not in page_text([same])
    assert "<td>1 to 4</td>" in page_text([changed, same])


@pytest.mark.parametrize("text", ["", '{"key": "run_st'])
def test_a_run_that_was_killed_before_its_first_line_has_a_page(write_run, text):
    folder = write_run()
    (folder / "metrics.jsonl").write_text(text)
    run = open_run(folder)
    assert (run.seconds, run.outcome, len(run.updates)) == (0.0, "unfinished", 0)
    assert "it is still running, or was killed" in page_text([run])


def test_loss_that_is_not_finite_is_kept(write_run, metric_lines):
    lines = metric_lines(stop="failed", num_updates=3)
    lines[-1]["reason"] = "loss is not finite"
    lines[2]["value"], lines[3]["value"] = math.nan, None
    run = open_run(write_run(lines=lines))
    assert np.isnan(run.updates.loss).tolist() == [False, True, True]
    assert (run.outcome, run.reason) == ("failed", "loss is not finite")


@pytest.mark.parametrize("largest", [1e308, -1e308, 2**63 - 1, -(2**63)])
def test_the_largest_numbers_have_a_page(write_run, metric_lines, largest):
    lines = metric_lines(num_updates=20)
    for at, line in enumerate(lines):
        line |= {"gradient_noise": 1.0, "gradient_signal": 1.0} if line["key"] == "train_loss" else {}
        lines[at] = line | {name: largest for name in ("value", "learning_rate", "gradient_noise") if at % 2}
    lines[0]["time_ms"] = -1e308
    lines[-1] |= {"key": "run_stop", "time_ms": 1e308, "resident_bytes": [largest]}
    claims = [{"metric": "days", "kind": "time_to_train", "value": largest}]
    assert "<h2>Noise scale" in page_text([open_run(write_run(lines=lines, recipe={"claims": claims}))])


@pytest.mark.parametrize("name", ["run.yaml", "metrics.jsonl", "environment.json"])
def test_missing_file_is_named(write_run, name):
    folder = write_run()
    (folder / name).unlink()
    with pytest.raises(RunError, match=f"^{folder / name}: missing"):
        open_run(folder)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(RunError, match="nowhere: no such folder"):
        open_run(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("run.yaml", "recipe: [1\nplan: {}\n", r"run\.yaml:2:5: not YAML"),
        ("run.yaml", "recipe: !!python/object/apply:os.getcwd []\n", r"run\.yaml:1:9: not YAML"),
        ("run.yaml", "- 1\n", r"run\.yaml:1: expected keys"),
        ("run.yaml", "recipe: {}\norigins: {}\nplan: 3\n", r"run\.yaml: `plan` is missing or not a mapping"),
        ("run.yaml", "a: &a [*a]\n", r"run\.yaml: over 1,000,000 values or 60 levels"),
        ("run.yaml", "recipe: \xff", r"run\.yaml: cannot be read"),
        ("environment.json", '{"a": 1\n', r"environment\.json:2:1: not JSON"),
        ("run.yaml", f"recipe: {{seed: {2**63}}}\n", r"run\.yaml: a whole number of more than 64 bits"),
        ("run.yaml", f"recipe: !!set {{0x{'f' * 5000}}}\n", r"run\.yaml: a whole number of more than 64 bits"),
        ("environment.json", "[]", r"environment\.json:1: expected an object"),
        ("environment.json", f'{{"cores": 1{"0" * 400}}}', r"environment\.json: .* has more than 64 bits"),
        ("environment.json", f'{{"cores": 1{"0" * 5000}}}', r"environment\.json: .* has more than 64 bits"),
        ("metrics.jsonl", "[]\n", r"metrics\.jsonl:1: expected an object"),
    ],
)
def test_damaged_file_is_named_with_its_line(write_run, name, text, message):
    folder = write_run()
    (folder / name).write_text(text, encoding="latin-1")
    with pytest.raises(RunError, match=message):
        open_run(folder)


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.yaml", "environment.json"])
def test_a_named_pipe_is_not_waited_for(write_run, name):
    folder = write_run()
    (folder / name).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(RunError, match=f"{name}: cannot be read: it is no file"):
        open_run(folder)


def test_billion_laughs_are_refused_and_not_laughed(write_run):
    folder = write_run()
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    (folder / "run.yaml").write_text("\n".join(lines))
    with pytest.raises(RunError, match="over 1,000,000 values"):
        open_run(folder)


def test_run_without_updates_opens(write_run):
    lines = [{"key": "run_start", "value": "x", "time_ms": 5}]
    run = open_run(write_run(lines=lines))
    assert (len(run.updates), len(run.evaluations), run.epochs_done) == (0, 0, 0.0)
    assert (run.best, run.final_accuracy, run.samples_per_second) == (None, None, None)


def test_environment_is_read(write_run):
    run = open_run(write_run(environment={"cpu": "another"}))
    assert run.environment["cpu"] == "another"
    assert json.dumps(run.environment)


def test_notes_of_all_sessions_are_kept_once(write_run, metric_lines):
    first, *rest = metric_lines(stop="stopped")
    notes = ["resuming from update-000007", "warning: a thing"]
    again = {"key": "run_start", "value": "x", "time_ms": 2_000_000, "notes": notes}
    run = open_run(write_run(lines=[{**first, "notes": notes[1:]}, *rest, again]))
    assert run.notes == ("warning: a thing", "resuming from update-000007")
    assert "<li>a thing</li>" in page_text([run])
    assert "resuming" not in page_text([run])


def test_the_peak_memory_is_that_of_all_sessions(write_run, metric_lines):
    first = metric_lines()
    first[-1]["resident_bytes"] = [210_000_000, 250_000_000]
    resumed = [first[0], {**first[-1], "resident_bytes": [90_000_000]}]  # it was done, and trained no more
    assert open_run(write_run(lines=[*first, *resumed])).memory == (
        "peak memory of a rank: resident set 250 MB (rank 1)"
    )


@pytest.mark.parametrize("folder", [".", ".."])
def test_a_folder_is_no_file_for_a_page(write_run, tmp_path, monkeypatch, folder):
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    run = open_run(write_run())
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="busy|irectory"):
        write_page([run], folder)
    assert sorted(tmp_path.rglob("*")) == before


def test_of_runs_that_end_alike_none_is_called_the_best(write_run, metric_lines):
    runs = [open_run(write_run(name)) for name in "ab"]
    assert "2 runs end alike, with 98.57&nbsp;% accuracy." in page_text(runs)
    runs[1] = open_run(write_run("c", lines=metric_lines(num_updates=1)))
    assert "digits/large (a) alone was evaluated, and ends with 98.57&nbsp;% accuracy." in page_text(runs)
