"""What is recorded of trials: their ends, reports and costs, and the hours of a search."""

import time

import optuna
import pytest
from optuna.trial import TrialState, create_trial
from rich.console import Console

from recipes.schema import Budget, Search
from recipes.search_space.open_search import open_search
from recipes.search_space.ranges import Float
from trainers.launch.vocabulary import search_vocabulary
from trainers.search.display import Display
from trainers.search.samplers import Random
from trainers.search.study import FOLDER, REASON, SECONDS, TrialResult, new_study, store_spent_seconds, tell_complete
from trainers.search.trial_recorder import TrialRecorder, UsedBudget, report_costs
from trainers.search.trial_run import Report, SearchOptions


def recorder_of(opened, folder):
    """Of a new study in memory; with its display."""
    display = Display(search=opened.search, folder=folder, console=Console(quiet=True), groups=1)
    options = SearchOptions(folder=folder, stop_file=folder / "stop", hang_seconds=60.0)
    return TrialRecorder(opened, new_study(opened.search), options, display, before_tell=lambda trial: None), display


def test_trials_of_other_supervisors_count_and_may_be_the_best(tmp_path):
    recorder, display = recorder_of(open_search("digits", vocabulary=search_vocabulary()), tmp_path)
    study = recorder.study

    mine, theirs, running = study.ask(), study.ask(), study.ask()
    display.began(mine.number, {}, resumed=False)
    for trial in (theirs, running):
        trial.set_user_attr(FOLDER, f"trials/trial-{trial.number:04d}")
        trial.set_user_attr(SECONDS, 5.0)
    tell_complete(study, theirs, TrialResult(values=[0.9], violations={}))
    recorder.tell_failed(mine, "why")
    assert "trial 0 failed: why; best 90.00 % (trial 1); 2/24 trials" in (tmp_path / "log.txt").read_text()

    tell_complete(study, running, TrialResult(values=[0.95], violations={}))
    recorder.tell_failed(study.ask(), "why")
    assert "trial 3 failed: why; best 95.00 % (trial 2); 4/24 trials" in (tmp_path / "log.txt").read_text()


def test_a_pruned_trial_has_its_report_as_reason(tmp_path):
    recorder, _ = recorder_of(open_search("digits", vocabulary=search_vocabulary()), tmp_path)
    recorder.tell_pruned(recorder.study.ask(), 3)
    (trial,) = recorder.study.get_trials()
    assert (trial.state, trial.user_attrs[REASON]) == (TrialState.PRUNED, "pruned at report 3 of 10")


def test_reports_of_a_search_for_two_objectives_are_for_the_display_alone(tmp_path):
    """Optuna takes none."""
    text = "kilobatch: 1\nname: mine\nrecipe: digits/batch_256\nsampler: {kind: Random}\nbudget: {trials: 2}\n"
    text += "space: {optimizer.weight_decay: {kind: Float, low: 0.1, high: 1}}\n"
    (tmp_path / "mine.yaml").write_text(text + "objective: [{metric: loss, direction: minimize}, {metric: accuracy}]\n")
    recorder, _ = recorder_of(open_search(tmp_path / "mine.yaml", vocabulary=search_vocabulary()), tmp_path)
    trial = recorder.study.ask()
    recorder.report(trial, Report(number=1, value=0.5, epoch=1.0))
    assert recorder.reporting["metric"] == "accuracy"
    assert recorder.study.get_trials()[0].intermediate_values == {}


def test_costs_of_reports_leave_out_what_lies_between_sessions():
    def line(key, ms, **more):
        return {"key": key, "time_ms": ms, "value": 0.5, **more}

    lines = [
        line("run_start", 0),
        {"key": "note"},  # of no time
        line("eval_accuracy", 3_600_000, epoch=5.0, samples=7500),
        line("run_stop", 3_700_000),
        line("run_start", 90_000_000),
        line("eval_accuracy", 93_500_000, epoch=10.0, samples=15000),
    ]
    assert report_costs(lines, ranks=4, reports=2, epochs=10.0) == {"1": [7500, 4.0], "2": [15000, 8.0]}


def search(**limits):
    budget = Budget(trials=100, **limits)
    space = {"epochs": Float(low=1.0, high=2.0)}
    return Search(
        name="mine", recipe="digits/baseline", space=space, sampler=Random(), budget=budget, ranks_per_trial=2
    )


@pytest.fixture
def used():
    """Two sessions have worked for half an hour each; a trial has taken half an hour of each of its two ranks."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    made = optuna.create_study()
    for session in ("one", "other"):
        store_spent_seconds(made, 1800.0, session=session)
    made.add_trial(create_trial(value=1.0, user_attrs={SECONDS: 1800.0}))
    return made


@pytest.mark.parametrize(
    ("limits", "working", "over"),
    [
        ({}, 1e9, False),
        ({"hours": 1.0}, 0.0, True),
        ({"hours": 1.01}, 1e9, False),  # what the ranks do meanwhile is no time of its own
        ({"device_hours": 1.0}, 0.0, True),
        ({"device_hours": 2.0}, 1799.0, False),
        ({"device_hours": 2.0}, 1800.0, True),
        ({"hours": 1.01, "device_hours": 1.0}, 0.0, True),
    ],
)
def test_the_limit_that_is_reached_first_ends_the_search(used, limits, working, over):
    assert UsedBudget(search(**limits), used).is_spent(working) is over


def test_a_session_counts_from_its_beginning_and_once_however_often_it_is_noted(used):
    limited = UsedBudget(search(hours=1.0 + 0.6 / 3600), used)
    assert not limited.is_spent(0.0)
    time.sleep(0.3)
    for _ in range(3):
        limited.store()
    assert not limited.is_spent(0.0)
    assert UsedBudget(search(hours=1.0 + 0.2 / 3600), used).is_spent(0.0)  # by the next session
    time.sleep(0.35)
    assert limited.is_spent(0.0)


def test_hours_of_another_supervisor_count_once_they_are_noted(used):
    limited = UsedBudget(search(hours=1.5), used)
    store_spent_seconds(used, 1800.0, session="third")
    assert not limited.is_spent(0.0)
    limited.store()
    assert limited.is_spent(0.0)
