"""The display of a run on a terminal and in a log."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import pytest
from rich.console import Console

from trainers.runs.metrics_file import session_starts
from trainers.runs.progress import Screen, Tail, follow
from trainers.runs.progress_lines import RunState

WRITE = """
import json, pathlib, sys, time
folder, seconds, code = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
time.sleep(seconds)
with open(folder / "metrics.jsonl", "a") as file:
    for line in open(folder / "script"):
        file.write(line)
sys.exit(code)
"""


def train(update, *, time_ms=None, loss=1.0, size=100, epoch_samples=200):
    return {
        "key": "train_loss", "value": loss, "time_ms": 1000 * update if time_ms is None else time_ms, "update": update,
        "epoch": update * size / epoch_samples, "samples": update * size, "learning_rate": 0.5, "momentum": 0.9,
        "global_batch_size": size, "update_seconds": 0.5,
    }  # fmt: skip


def evaluated(updates, accuracy, *, size=100, epoch_samples=200):
    samples = updates * size
    at = {"time_ms": 1000 * updates, "update": updates, "epoch": samples / epoch_samples, "samples": samples}
    return [{"key": "eval_accuracy", "value": accuracy, **at}, {"key": "eval_loss", "value": 1 - accuracy, **at}]


def stopped(updates, value="success", reason=""):
    end = {"key": "run_stop", "value": value, "time_ms": 9_000_000, "reason": reason}
    return {**end, "update": updates, "epoch": updates / 2}


def six_updates():
    lines = [{"key": "run_start", "value": "x", "time_ms": 0}]
    for update in range(6):
        lines.append(train(update, loss=1 / (update + 1)))
        lines += evaluated(update + 1, 0.5 + update / 20) if update % 2 else []
    return [*lines, stopped(6)]


def followed(folder, process, console, *, total_updates=6, total_samples=None, earlier=None, printed=(), verbosity=0):
    return follow(
        folder,
        process,
        console,
        RunState(total_updates=total_updates, total_samples=total_samples or 100 * total_updates, num_train=200),
        earlier=earlier,
        printed=printed,
        verbosity=verbosity,
    )


@pytest.fixture
def played(tmp_path):
    """Follows a process that writes these lines at once; gives the text shown and the exit code."""

    def play(lines, *, seconds=0.3, code=0, end="\n", terminal=False, total_updates=6, **options):
        (tmp_path / "metrics.jsonl").unlink(missing_ok=True)
        (tmp_path / "script").write_text("\n".join(map(json.dumps, lines)) + end)
        command = [sys.executable, "-c", WRITE, str(tmp_path), str(seconds), str(code)]
        shown = io.StringIO()
        console = Console(file=shown, force_terminal=terminal, width=80, legacy_windows=False, _environ={})
        with subprocess.Popen(command) as process:
            status = followed(tmp_path, process, console, total_updates=total_updates, **options)
        return shown.getvalue(), status

    return play


def test_log_has_a_line_after_the_first_update_one_an_evaluation_and_one_at_the_end(played):
    text, status = played(six_updates())
    lines = text.splitlines()
    assert status == 0
    assert len(lines) == 5
    assert lines[0] == "update 1/6  epoch 0.50  batch 100  rate 0.5  loss 1.0000  200 samples/s"
    assert lines[1] == (
        "update 2/6  epoch 1.00  batch 100  rate 0.5  loss 0.7500  accuracy 55.00 %  200 samples/s  left 4.0 s"
    )
    assert lines[3].startswith("update 6/6  epoch 3.00")
    assert "left" not in lines[3]
    assert lines[4] == "finished: 6 of 6 updates, epoch 3.00, accuracy 75.00 %"


def test_a_loss_without_bounds_is_written_in_a_few_digits():
    state = RunState(total_updates=6, total_samples=600, num_train=200)
    state.take(train(0, loss=690400245392.3301))
    assert "loss 6.904e+11  " in state.figures


def test_mixed_precision_shows_its_scale_and_what_was_done_again(played):
    scales = [{"loss_scale": 65536.0 / 2 ** min(update, 2), "overflows": int(0 < update < 3)} for update in range(6)]
    text, _ = played([{**train(update), **scale} for update, scale in enumerate(scales)], verbosity=1)
    assert "loss 1.0000  loss scale 16,384  overflows 2  200 samples/s" in text.splitlines()[-1]
    assert "loss scale" not in played([train(update) for update in range(6)])[0]


def test_large_numbers_have_separators_in_lines_and_in_the_bar(played):
    assert played([train(1233)], total_updates=20_000)[0].startswith("update 1,234/20,000  epoch 617.00  batch 100")
    assert "1,234/20,000 updates" in played([train(1233)], total_updates=20_000, terminal=True)[0]


def shown_updates(text):
    return [int(number) for number in re.findall(r"^update (\d+)/", text, re.MULTILINE)]


def test_log_has_a_line_every_30_seconds_and_one_for_each_evaluation(played):
    text, _ = played([train(update, time_ms=11_000 * update) for update in range(9)])
    assert shown_updates(text) == [1, 4, 7]
    lines = [line for update in range(4) for line in (train(update), *evaluated(update + 1, 0.5))]
    assert shown_updates(played(lines)[0]) == [1, 1, 2, 3, 4]


def test_quiet_shows_how_it_ended_and_verbose_each_update(played):
    start = {"key": "run_start", "value": "x", "time_ms": 0, "notes": [], "training": "training x on 2 workers"}
    lines = [start, *(train(update) for update in range(3)), *evaluated(3, 0.5), stopped(3)]
    assert played(lines)[0].startswith("training x on 2 workers\n")
    assert played(lines, verbosity=-1)[0] == "finished: 3 of 6 updates, epoch 1.50, accuracy 50.00 %\n"
    for terminal in (False, True):
        assert shown_updates(played(lines, verbosity=1, terminal=terminal)[0]) == [1, 2, 3, 3]


def test_a_warning_that_was_printed_before_the_ranks_started_is_not_shown_again(played):
    start = {"key": "run_start", "value": "x", "time_ms": 0, "notes": ["warning: seen", "new"]}
    assert played([start, stopped(0)], printed=["warning: seen"])[0].startswith("new\n")


@pytest.mark.parametrize("seconds", [0.0, 0.05, 0.25])
def test_last_lines_are_shown_however_fast_the_process_ends(played, seconds):
    for terminal in (False, True):
        text, _ = played(six_updates(), seconds=seconds, terminal=terminal)
        assert "6/6" in text
        assert "finished: 6 of 6 updates" in text


def test_last_line_without_a_newline_is_shown_and_half_a_line_is_not(played):
    assert "finished" in played(six_updates(), end="")[0]
    text, _ = played([train(0), *evaluated(1, 0.5)], end='\n{"key": "run_st')
    assert shown_updates(text) == [1, 1]


def test_a_line_of_brackets_is_passed_over_and_a_link_to_itself_is_no_file(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("[" * 100_000 + "\n" + json.dumps(train(0)) + "\n")
    with closing(Tail(tmp_path / "metrics.jsonl", None)) as tail:
        assert tail.lines() == [train(0)]
    (tmp_path / "loop").symlink_to("loop")
    assert Tail(tmp_path / "loop", None).lines() == []


def test_process_that_writes_nothing_is_followed_to_its_end_and_its_exit_code_returned(played):
    assert played([], seconds=0.3, code=2) == ("", 2)
    assert "starting the ranks" in played([], terminal=True)[0]


def test_why_a_run_ended_is_printed(played):
    assert played([train(0), stopped(1, "stopped")])[0].splitlines()[-1] == "stopped: 1 of 6 updates, epoch 0.50"
    text, _ = played([train(0), stopped(1, "failed", "loss is not finite at [rank] 2")], code=3)
    assert text.splitlines()[-1] == "failed: 1 of 6 updates, epoch 0.50; loss is not finite at [rank] 2"


def test_loss_that_is_null_is_shown_as_nan(played):
    assert "loss nan" in played([train(0, loss=None), *evaluated(1, 0.1)])[0]


def test_time_left_counts_samples(played):
    lines = [train(0, time_ms=0), train(1, time_ms=10_000), *evaluated(2, 0.5)]
    assert "left 20.0 s" in played(lines, total_updates=4)[0]
    assert "left 40.0 s" in played(lines, total_updates=4, total_samples=600)[0]


def test_bar_shows_progress_and_numbers_in_two_lines_of_80_columns(played):
    lines = [train(0), train(1), train(2), *evaluated(3, 0.9)]
    text, _ = played(lines, terminal=True, total_updates=60)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "3/60 updates  epoch 1.50 57.0 s left" in plain
    assert "batch 100  rate 0.5  loss 1.0000  accuracy 90.00 %  200 samples/s" in plain
    assert all(len(line) <= 80 for part in plain.split("\n") for line in part.split("\r"))
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is back


@pytest.mark.parametrize(("term", "has_bar"), [("xterm", True), ("dumb", False)])
def test_a_dumb_terminal_gets_lines_because_a_bar_would_show_only_at_the_end(term, has_bar, monkeypatch):
    monkeypatch.setenv("TERM", term)
    assert Screen(force_terminal=True).is_terminal == has_bar


def test_bar_moves_while_the_process_runs(tmp_path):
    """The ranks wait until the first update has been shown, so the bar cannot come from the end alone."""
    shown = io.StringIO()
    wait = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.02)"
    (tmp_path / "metrics.jsonl").write_text(json.dumps(train(0)) + "\n")

    def release():
        deadline = time.monotonic() + 20
        while "1/6 updates" not in shown.getvalue() and time.monotonic() < deadline:
            time.sleep(0.02)
        saw.append("1/6 updates" in shown.getvalue())
        (tmp_path / "go").touch()

    saw = []
    thread = threading.Thread(target=release)
    with subprocess.Popen([sys.executable, "-c", wait, str(tmp_path / "go")]) as process:
        thread.start()
        followed(tmp_path, process, Console(file=shown, force_terminal=True, width=80, _environ={}))
    thread.join()
    assert saw == [True]


RESUME = """
import json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
time.sleep(0.5)
kept = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)[:4]
(folder / "partial").write_text("".join(kept))
os.replace(folder / "partial", folder / "metrics.jsonl")
time.sleep(0.5)
with open(folder / "metrics.jsonl", "a") as file:
    file.write((folder / "script").read_text())
"""


@pytest.mark.parametrize("clock_ms", [100_000, -100_000])
def test_resumed_run_shows_nothing_of_the_sessions_before_though_the_clock_went_back(tmp_path, clock_ms):
    start = {"key": "run_start", "value": "x", "time_ms": 0}
    before = [start, train(0), train(1), *evaluated(2, 0.11), train(2)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, before)) + "\n")
    now = [{**line, "time_ms": clock_ms} for line in (start, train(2), train(3), *evaluated(4, 0.77))]
    (tmp_path / "script").write_text("\n".join(map(json.dumps, now)) + "\n")
    shown = io.StringIO()
    with subprocess.Popen([sys.executable, "-c", RESUME, str(tmp_path)]) as process:
        earlier = session_starts(tmp_path / "metrics.jsonl")
        followed(tmp_path, process, Console(file=shown, _environ={}), earlier=earlier)
    assert shown_updates(shown.getvalue()) == [3, 4]
    assert "77.00 %" in shown.getvalue()
    assert "11.00 %" not in shown.getvalue()


@pytest.fixture
def ctrl_c():
    """SIGINT raises KeyboardInterrupt, also where the suite was started in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_ctrl_c_gives_the_terminal_back(tmp_path):
    shown = io.StringIO()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True) as process:
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            followed(tmp_path, process, Console(file=shown, force_terminal=True, _environ={}))
        process.kill()
        timer.join()
    assert shown.getvalue().rstrip().endswith("\x1b[?25h")


def test_an_evaluation_that_an_extension_wrote_without_an_epoch_leaves_the_epoch_as_it_was():
    state = RunState(total_updates=10, total_samples=None, num_train=200)
    for line in (train(0), {"key": "eval_accuracy", "value": 0.25}, {"key": "eval_loss", "value": 1.0}):
        state.take(line)
    assert (state.accuracy, state.epoch) == (0.25, 0.5)
