"""What the terminal, the log and `kilobatch search status` show of a search."""

import io
import json
import math
import os
import shutil
import time
from dataclasses import replace

import pytest
from optuna.trial import TrialState
from rich.console import Console

from recipes.schema import Budget, Confirm, Objective, Rungs
from recipes.search_space.ranges import Categorical, Float, suggested
from trainers.commands.search import search_status
from trainers.runs.progress_lines import RunState
from trainers.runs.run_folder import FolderRefused
from trainers.search.results import Confirmed, confirm_folder, running_row, trials_text
from trainers.search.status import Display, status_text, status_tree
from trainers.search.study import DIVERGED, RUNG, SECONDS, new_study, store_constraints

LARS = {"optimizer.kind": "Lars", "optimizer.trust_coefficient": 0.01}
SPACE = {
    "optimizer.kind": Categorical(choices=("MomentumSGD", "Lars")),
    "optimizer.trust_coefficient": Float(low=0.0, high=1.0, when={"optimizer.kind": ("Lars",)}),
}


@pytest.fixture
def display(tmp_path, made, opened_as):
    """`display(*objectives)`: that of a search for them, by default for the accuracy, on two groups of two ranks."""

    def display(*objectives):
        budget = Budget(trials=4, device_hours=1.0)
        search = made(space=SPACE, budget=budget, ranks_per_trial=2, objective=objectives or Objective())
        console = Console(width=150, force_terminal=True, color_system=None)
        return Display(opened_as(search), new_study(search), tmp_path, console, groups=2)

    return display


def begin(shown, values=LARS, **attributes):
    """A trial with these values that has begun."""
    shown.study.enqueue_trial(values)
    trial = shown.study.ask()
    suggested(shown.search.space, trial)
    for name, value in attributes.items():
        trial.set_user_attr(name, value)
    return trial


def status(folder):
    """The lines before the log."""
    return status_text(status_tree(folder)).partition("\nlog:")[0].splitlines()


def test_a_full_disk_does_not_end_a_search(display, tmp_path, largest_file):
    shown = display()
    shown.console.file = io.StringIO()  # not a file of pytest's
    with shown:
        begin(shown)
        with largest_file(1):
            shown.say("trial 0 begins")
            shown.show()
    assert status(tmp_path)[0].startswith("search ")


def test_the_status_has_the_states_the_best_what_runs_and_device_hours(display, tmp_path):
    shown = display()
    with shown:
        shown.study.tell(begin(shown, **{SECONDS: 1800.0}), 0.975)
        shown.study.tell(begin(shown, **{DIVERGED: 7}), 0.0)
        trial = begin(shown, {"optimizer.kind": "MomentumSGD"}, **{SECONDS: 60.0})
        trial.report(0.5, 3)
        shown.set_aside["node3"] = "two trials failed on it"
        shown.running = {
            (2, None): running_row(180.0, 360.0, RunState(total_updates=20, total_samples=160, num_train=32))
        }
        shown.show()
        first, *lines = status(tmp_path)
        assert first == f"search mine over digits/baseline: running, as process {os.getpid()} on {os.uname().nodename}"
        assert lines == [
            "trials: 2 of 4 ended (1 complete, 1 diverged, 1 running)",
            "device-hours: 1.1 of 1",
            "best: trial 0, 97.50 %, with optimizer.kind Lars, optimizer.trust_coefficient 0.01",
            "running: trial 2, for 3 min 00 s, 50.00 %, report 3 of 20",
            "set aside: node3, two trials failed on it",
        ]
    stopped, counts, *_, last, _ = status(tmp_path)
    assert stopped == "search mine over digits/baseline: stopped; the same command goes on with it"
    assert counts == "trials: 2 of 4 ended (1 complete, 1 diverged, 1 stopped)"
    assert last == "stopped: trial 2, for 3 min 00 s, 50.00 %, report 3 of 20"
    assert "running" not in (tmp_path / "report.html").read_text().partition('id="now"')[2].partition("<script")[0]


def test_time_left_is_that_of_the_budget_that_ends_first(display):
    """Trials of 90 s on 2 ranks, which are 0.05 device-hours: three are left, for two groups."""
    shown = display()
    shown.study.tell(begin(shown, **{SECONDS: 90.0}), 0.9)
    for budget, seconds in (
        (Budget(trials=4, device_hours=10.0, hours=1.0), 3 * 90 / 2),
        (Budget(trials=4, device_hours=0.1), (0.1 - 0.05) * 3600 / 4),
        (Budget(trials=4, hours=60 / 3600), 60),
    ):
        shown.search = replace(shown.search, budget=budget)
        assert shown.seconds_left(shown.rows()) == pytest.approx(seconds, abs=2)


def test_with_rungs_time_left_is_that_of_the_parts_of_runs_that_are_left(display):
    """Nine trials take 3.5 whole runs. Two quarters took 40 s: six times as long is left, on two groups."""
    shown = display()
    shown.search = replace(shown.search, reports=8, budget=Budget(trials=9), rungs=Rungs(at=(2, 4)))
    assert shown.seconds_left(shown.rows()) is None
    for _ in range(2):
        trial = begin(shown, **{SECONDS: 20.0, RUNG: 0})
        trial.report(0.5, 2)
    assert [(row["state"], row["text"], row["note"]) for row in shown.rows()] == [
        ("paused", "50.00 %", "report 2 of 8")
    ] * 2
    assert shown.seconds_left(shown.rows()) == pytest.approx(40 * (3.5 - 0.5) / 0.5 / 2)
    assert trials_text({"paused": 2}, 9) == "trials: 0 of 9 ended (2 paused)"


def test_several_objectives_have_a_column_each_and_all_that_are_not_beaten_are_named(display, tmp_path):
    shown = display(Objective(), Objective(metric="device_hours"))
    trials = [begin(shown) for _ in range(4)] + [begin(shown, reason="rank 1: ValueError")]
    store_constraints(trials[3], {"loss <= 1": 0.5, "accuracy >= 0": -1.0})
    for trial, values in zip(trials, [(0.9, 0.5), (0.8, 0.1), (0.7, 0.2), (0.99, 0.01), None], strict=True):
        shown.study.tell(trial, values, state=None if values else TrialState.FAIL)
        shown.ended(trial.number)
    *_, complete, infeasible, failed = (tmp_path / "log.txt").read_text().splitlines()
    assert "trial 2 complete: accuracy 70.00 %, device-hours 0.2; trials not beaten: 0, 1; 3/4 trials" in complete
    assert "trial 3 infeasible: accuracy 99.00 %, device-hours 0.01, not loss <= 1; trials not" in infeasible
    assert failed.endswith("trial 4 failed: rank 1: ValueError; trials not beaten: 0, 1; 5/4 trials")
    shown.show()
    assert [row["scores"] for row in status_tree(tmp_path)["best"]] == [[0.9, 0.5], [0.8, 0.1]]


def test_a_trial_without_its_target_has_no_score(display, tmp_path):
    """It reports what it lacks, 0.2, which is no number of updates."""
    shown = display(Objective(metric="updates_to", target=0.9))
    trial = begin(shown, pruned_at=3)
    trial.report(0.2, 3)
    assert [(row["scores"], row["note"]) for row in shown.rows()] == [((), "report 3 of 20")]
    shown.study.tell(trial, state=TrialState.PRUNED)
    assert [(row["scores"], row["state"]) for row in shown.rows()] == [((), "pruned")]
    shown.study.tell(begin(shown), 210.0)
    shown.ended(1)
    assert "trial 1 complete: 210 updates; best 210 updates (trial 1)" in (tmp_path / "log.txt").read_text()


def test_a_running_trial_has_its_update_its_epoch_and_its_time_left_also_in_a_copy_that_cannot_be_written(
    display, tmp_path
):
    """Of 20 updates of 1 s, 5 are done; the copy's supervisor is silent."""
    state = RunState(total_updates=20, total_samples=160, num_train=32)
    line = {"key": "train_loss", "value": 2.0, "global_batch_size": 8, "learning_rate": 0.1, "update_seconds": 1.0}
    for update in range(5):
        at = {"update": update, "time_ms": 2000 + 1000 * update, "epoch": update / 4, "samples": 8 * update}
        state.take(line | at)
    with display() as shown:
        begin(shown)
        shown.running = {(0, None): running_row(5.0, 10.0, state)}
        shown.show()
        running = "running: trial 0, update 5 of 20, epoch 1.25, for 5.0 s, about 15.0 s left"
        assert status(tmp_path)[-1] == running
        copy = shutil.copytree(tmp_path, tmp_path.parent / f"{tmp_path.name}-copy")
    tree = json.loads((copy / "status.json").read_text())
    (copy / "status.json").write_text(json.dumps({**tree, "written": time.time() - 120, "host": "elsewhere"}))
    before = sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*"))
    first, *others = status(copy)
    assert "not running: its last sign of life was 2 min 00 s ago; the same command goes on with it" in first
    assert others[-1] == running.replace("running", "stopped")
    assert sorted((path, path.stat().st_mtime_ns) for path in copy.rglob("*")) == before


@pytest.mark.parametrize("text", ["{}", "[]", "7", "not json", '{"ended": true, "running": {}, "budget": []}'])
def test_a_file_that_is_not_the_status_of_a_search_is_refused(tmp_path, text):
    (tmp_path / "status.json").write_text(text)
    with pytest.raises(FolderRefused, match="there is no status.json of a search in .*; name the folder of one"):
        status_tree(tmp_path)


def test_the_status_of_a_stranger_sends_no_commands_to_the_terminal(display, tmp_path):
    with display() as shown:
        shown.set_aside["node\x1b[31m"] = "gone\x07"
    assert status(tmp_path)[-1] == r"set aside: node\x1b[31m, gone\x07"


def test_the_status_is_json_and_has_the_end_of_the_log_and_what_was_confirmed(display, tmp_path, capsys):
    with pytest.raises(FolderRefused, match="name the folder of one"):
        status_tree(tmp_path)
    with display(Objective(metric="loss")) as shown:
        shown.study.tell(begin(shown, **{DIVERGED: 7}), float("inf"))
        shown.show()
        shown.confirmed = [Confirmed(trial=0, values=(0.25, 0.75), mean=0.5, low=0.125, high=math.inf)]
        for number in range(9):
            shown.say(f"{os.fsdecode(bytes([0xFC]))} line {number}")  # such as of a folder's name
    capsys.readouterr()
    search_status(tmp_path, as_json=True)
    tree = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (tree["state"], tree["states"], tree["best"]) == ("ended", {"diverged": 1}, [])
    assert [text[-13:] for text in tree["log"]] == [f"\\udcfc line {number}" for number in range(4, 9)]
    (one,) = tree["confirmed"]
    assert one.pop("text") == "trial 0: 0.5 (95 %: 0.125 to inf) by 2 fresh seeds, 0.25, 0.75"
    assert one == {"trial": 0, "values": [0.25, 0.75], "mean": 0.5, "low": 0.125, "high": None, "broken": 0}
    file = tmp_path / "status.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "confirmed": ["trial 0: as older versions wrote it"]}))
    assert "confirmed: trial 0: as older versions wrote it" in status(tmp_path)


def test_the_best_is_that_by_fresh_seeds_once_all_their_runs_have_ended(display, write_metrics, tmp_path):
    """Until then the runs that confirm have lines of their own."""
    shown = display()
    shown.search = replace(shown.search, confirm=Confirm(top=2, seeds=2))
    for kind, value in (("MomentumSGD", 0.9), ("Lars", 0.8)):
        shown.study.tell(begin(shown, {**LARS, "optimizer.kind": kind}), value)

    def confirm(number, seed, accuracy):
        run = confirm_folder(tmp_path, number) / f"seed-{seed}"
        write_metrics(run, {"key": "eval_accuracy", "value": accuracy}, {"key": "run_stop", "value": "success"})
        shown.find_best()

    with shown:
        shown.show()
        assert status(tmp_path)[-1] == "confirmation: 0 of 4 runs"
        for seed in (1000, 1001):
            confirm(0, seed, 0.7)
        state = RunState(total_updates=20, total_samples=160, num_train=32)
        shown.running = {(1, seed): running_row(5.0, 10.0, state) for seed in (1000, 1001)}
        shown.stopped_by = "a signal"
        shown.show(ended=True)
        *_, best, count, first, second = status(tmp_path)
        assert best.startswith("best: trial 0, 90.00 %")
        assert count == "confirmation: 2 of 4 runs; the same command trains the rest"
        assert first == "stopped: trial 1, with seed 1000, for 5.0 s"
        assert [row["seed"] for row in status_tree(tmp_path)["running"]] == [1000, 1001]
        shown.running = {}
        for seed in (1000, 1001):
            confirm(1, seed, 0.75)
    assert [line.partition(",")[0] for line in status(tmp_path)[-3:]] == [
        "best: trial 1",
        "confirmed: trial 1: 75.00 % (95 %: 75.00 % to 75.00 %) by 2 fresh seeds",
        "confirmed: trial 0: 70.00 % (95 %: 70.00 % to 70.00 %) by 2 fresh seeds",
    ]
