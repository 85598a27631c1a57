"""Rungs: which trial goes on, what a sampler learns from those that wait, and a search with rungs on real ranks."""

import dataclasses
import json
import math

import pytest
import yaml
from optuna.trial import TrialState

from recipes.schema import Budget, Objective, Rungs
from trainers.search.samplers import TPESampler
from trainers.search.study import (
    DIVERGED,
    PROMOTIONS,
    PRUNED_AT,
    RUNG,
    enqueue,
    left_running,
    new_study,
    next_rung,
    next_trial,
    promotable_trial,
    state_of,
)


@pytest.fixture
def on_rungs(made):
    """`on_rungs(scores, **keys)`: a search with rungs at reports 2 and 4 of 6, and its study, whose trials wait at the
    first rung with these scores; None: diverged on the way.
    """

    def on_rungs(scores, **keys):
        search = made(**{"reports": 6, "budget": Budget(trials=20), "rungs": Rungs(at=(2, 4)), **keys})
        study = new_study(search)
        for score in scores:
            come(search, study, next_trial(study, search), 2, score)
        return search, study

    return on_rungs


def come(search, study, trial, report, score):
    """A trial comes to a report, where it waits; or it diverged."""
    if score is None:
        trial.set_user_attr(DIVERGED, 3)
        study.tell(trial, search.objectives[0].worst)
        return
    trial.report(score / 2, report - 1)
    trial.report(score, report)
    rung = next_rung(search, trial)
    assert search.rungs.at[rung] == report
    trial.set_user_attr(RUNG, rung)


def go_on(search, study, *, score=None):
    """The number of the trial that goes on; with a score it comes to its next rung."""
    number = promotable_trial(search, study)
    if number is not None:
        (trial,) = [one for one in left_running(study) if one.number == number]
        trial.set_user_attr(PROMOTIONS, trial.user_attrs[RUNG] + 1)
        if score is not None:
            come(search, study, trial, search.rungs.at[next_rung(search, trial)], score)
    return number


def test_the_best_third_of_those_that_came_goes_on_the_best_first(on_rungs):
    search, study = on_rungs([0.1, 0.3])
    assert go_on(search, study) is None  # two trials: none is among the best third
    search, study = on_rungs([0.1, 0.3, 0.2, 0.5, 0.4, 0.35, 0.0, None])
    assert [go_on(search, study) for _ in range(3)] == [3, 4, None]
    assert [state_of(trial) for trial in study.trials[2:5]] == ["paused", "running", "running"]


@pytest.mark.parametrize("scores", [[math.nan, 0.1, 0.9], [0.1, math.nan, 0.9]])
def test_a_trial_whose_score_is_not_a_number_counts_as_the_worst_at_its_rung(on_rungs, scores):
    assert promotable_trial(*on_rungs(scores)) == 2


def test_a_trial_that_diverged_came_too_and_less_is_better_for_a_loss(on_rungs):
    search, study = on_rungs([0.3, None, None], objective=Objective(metric="loss"))
    assert [go_on(search, study) for _ in range(2)] == [0, None]
    search, study = on_rungs([0.3, 0.2, float("nan")], objective=Objective(metric="loss"))
    assert [go_on(search, study) for _ in range(2)] == [1, None]


def test_the_last_rung_comes_first_and_a_trial_that_passed_all_trains_to_its_end(on_rungs):
    search, study = on_rungs([i / 20 for i in range(12)])
    assert [go_on(search, study, score=score) for score in (0.6, 0.9, 0.7)] == [11, 10, 9]
    assert go_on(search, study) == 10  # of three at the second rung, before the fourth of twelve at the first
    (best,) = [trial for trial in left_running(study) if trial.number == 10]
    assert next_rung(search, best) is None
    assert [go_on(search, study) for _ in range(2)] == [8, None]


def test_where_a_run_has_fewer_updates_than_reports_the_next_report_counts(on_rungs):
    """Of six reports, updates 1, 2 and 3 of three are reports 2, 4 and 6; the rung is at 3."""
    search, study = on_rungs([], rungs=Rungs(at=(3,), reduction_factor=2))
    for score in (0.2, 0.1):
        trial = next_trial(study, search)
        trial.report(1 - score, 2)
        trial.report(score, 4)
        trial.set_user_attr(RUNG, 0)
    assert promotable_trial(search, study) == 0


def test_tpe_learns_from_trials_that_wait_as_from_those_that_were_pruned_there(on_rungs):
    scores = [0.1, 0.5, 0.3, 0.9, 0.2, 0.6]
    search, waiting = on_rungs(scores, sampler=TPESampler(n_startup_trials=4))
    _, pruned = on_rungs([], sampler=TPESampler(n_startup_trials=4))
    for score in scores:
        trial = next_trial(pruned, search)
        come(search, pruned, trial, 2, score)
        trial.set_user_attr(PRUNED_AT, 2)
        pruned.tell(trial, state=TrialState.PRUNED)
    assert [trial.params for trial in waiting.trials] == [trial.params for trial in pruned.trials]
    at_random = new_study(dataclasses.replace(search, sampler=TPESampler(n_startup_trials=9)))
    enqueue(at_random, [trial.params for trial in waiting.trials])
    for _ in scores:
        next_trial(at_random, search)
    proposals = [next_trial(study, search).params for study in (waiting, pruned, at_random)]
    assert proposals[0] == proposals[1] != proposals[2]


def test_whole_runs_by_hand():
    """Nine trials make a third of a run, three of them another sixth, one the rest."""
    assert Rungs(at=(2, 3)).whole_runs(9, reports=6) == 9 * 2 / 6 + 3 * 1 / 6 + 3 / 6


TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.001, high: 0.5, log: true}}
fixed: {epochs: 2, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 1}
reports: 4
rungs: {at: [1, 2], reduction_factor: 2}
budget: {trials: 5}
"""


@pytest.mark.slow
@pytest.mark.mpi
def test_the_trial_that_goes_on_at_every_rung_has_the_weights_of_a_run_that_never_waited(
    searching, kilobatch, tmp_path
):
    whole = searching(TEXT, "-n", 1)
    assert "trial 0 waits at report 1 of 4" in whole.complete()
    trials = whole.trials()
    assert sorted(state_of(trial) for trial in trials) == ["complete", *["pruned"] * 4]
    assert sorted(trial.last_step for trial in trials) == [1, 1, 1, 2, 4]
    (best,) = [trial for trial in trials if trial.state == TrialState.COMPLETE]
    assert json.loads((whole.folder / "status.json").read_text())["states"] == {"complete": 1, "pruned": 4}
    assert yaml.safe_load((whole.folder / "search.yaml").read_text())["search"]["rungs"]["at"] == [1, 2]
    assert whole.updates(best.number) == list(range(12))
    done = kilobatch("train", whole.folder / "best.yaml", "-n", 1, "--out", tmp_path / "alone")
    assert done.returncode == 0, done.stdout + done.stderr
    weights = "checkpoints/update-000012/weights.safetensors"
    assert (tmp_path / "alone" / weights).read_bytes() == (whole.run_folder(best.number) / weights).read_bytes()


@pytest.mark.mpi
@pytest.mark.slow
def test_a_search_with_rungs_that_is_killed_proposes_and_lets_go_on_what_one_that_is_not_does(searching, tmp_path):
    whole = searching(TEXT, "-n", 1)
    whole.complete()
    killed = searching(TEXT, "-n", 1, "--storage", "journal")
    killed.folder = tmp_path / "killed"
    for number in (1, 3):
        with killed.start() as process:
            killed.wait_for(killed.run_folder(number) / "metrics.jsonl")
            process.kill()
            process.communicate(timeout=600)
    killed.complete()
    for one, other in zip(whole.trials(), killed.trials(), strict=True):
        assert (one.params, one.state) == (other.params, other.state)
        assert one.intermediate_values == other.intermediate_values
