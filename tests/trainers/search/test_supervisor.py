"""When a trial or a search ends before its budget is spent, without ranks."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from optuna.trial import TrialState

from recipes.errors import InputRefused
from recipes.reading.open import open_recipe
from recipes.schema import Budget, Confirm, Objective
from trainers.launch.request import open_request
from trainers.runs.identity import recipe_and_code_id
from trainers.runs.stop_request import STOP_FILE
from trainers.search.group import Group, RunEnd
from trainers.search.outcome import trial_request
from trainers.search.start import _search_study
from trainers.search.study import CONFIRM_RANK_SECONDS, DIVERGED, PRUNED_AT, new_study, next_trial
from trainers.search.supervisor import _Work
from trainers.training.request import TrainRequest


@pytest.fixture
def supervisor(made, opened_as, supervised):
    """`supervisor(**keys)`: that of a search with these keys."""
    return lambda **keys: supervised(opened_as(made(**keys)))


@pytest.mark.parametrize(
    ("seeds", "epoch", "pruned"), [(1, 2.0, False), (1, 3.0, True), (2, 5.0, False), (2, 6.0, True)]
)
def test_a_trial_ends_early_only_if_even_the_mean_over_its_seeds_cannot_be_better(
    supervisor, write_metrics, tmp_path, seeds, epoch, pruned
):
    """The best trial took 3 epochs in the mean; of a trial with two seeds the other one may take hardly any."""
    own = supervisor(objective=Objective(metric="epochs_to", target=0.9), seeds_per_trial=seeds)
    own.study.tell(own.study.ask(), 3.0)
    work = _Work(own.study.ask(), [tmp_path / f"run-{seed}" for seed in range(seeds)])
    write_metrics(work.folder, {"key": "eval_accuracy", "value": 0.5, "update": 9, "epoch": epoch})
    recipe = SimpleNamespace(evaluation=SimpleNamespace(every=1.0))
    plan = SimpleNamespace(timeline=SimpleNamespace(num_updates=99))
    work.prepared = SimpleNamespace(opened=SimpleNamespace(recipe=recipe), plan=plan)
    own._judge(work)
    assert (PRUNED_AT in work.trial.user_attrs) == (work.folder / "stop").exists() == pruned


@pytest.mark.parametrize("best", [None, 0])
def test_patience_ends_a_search_after_so_many_trained_trials_without_a_better_one(supervisor, best):
    """Also where no trial at all is complete; those whose values no recipe takes, and failed ones, say nothing."""
    own = supervisor(budget=Budget(trials=9, patience=3))
    if best is not None:
        own.study.tell(own.study.ask(), 0.5)
    for state in [TrialState.PRUNED, TrialState.FAIL] * 2:
        own.study.tell(own.study.ask(), state=state)
    for _ in range(3):
        assert not own.spent_limit()
        trial = own.study.ask()
        trial.set_user_attr(DIVERGED, 7)
        own.study.tell(trial, 0.0)
    assert own.spent_limit() == "patience 3"


@pytest.mark.parametrize(("limit", "begins"), [({"patience": 1}, True), ({"device_hours": 0.5}, False)])
def test_runs_with_fresh_seeds_count_in_device_hours_and_begin_none_once_these_are_spent(
    supervisor, tmp_path, limit, begins
):
    own = supervisor(budget=Budget(trials=9, **limit), confirm=Confirm(top=1, seeds=2))
    for value in (0.5, 0.4):
        own.study.tell(next_trial(own.study, own.search), value)
    own.groups = [Group(0, tmp_path, None)]
    own.study.set_user_attr(CONFIRM_RANK_SECONDS, {"trial 0 with seed 1000": 1800.0})
    own._waiting, started = [_Work(own.study.trials[0], [tmp_path], seed) for seed in (1001, 1002)], []
    own._start = started.append
    assert own._begin_next() == begins
    assert [work.name for work in started] == ["trial 0 with seed 1001"] * begins
    assert own.spent_limit() == "{} {:g}".format(*limit.popitem())


@pytest.mark.parametrize(
    ("trials", "limit", "way_out"),
    [
        (2, {}, "the same command trains the rest"),
        (9, {"patience": 1}, "the same command trains the rest"),
        (9, {"device_hours": 0.5}, "raise budget.device_hours, with budget.trials at 2"),
    ],
)
def test_a_search_whose_runs_with_fresh_seeds_have_no_result_says_how_they_get_one(supervisor, trials, limit, way_out):
    own = supervisor(budget=Budget(trials=trials, **limit), confirm=Confirm(top=1, seeds=2))
    for value in (0.5, 0.4):
        own.study.tell(next_trial(own.study, own.search), value)
    own.study.set_user_attr(CONFIRM_RANK_SECONDS, {"trial 0 with seed 1000": 1800.0})
    own.display.rows()
    own.run()
    assert own.display.unconfirmed == f"confirmation: 0 of 2 runs; {way_out}"
    assert own.display.stopped_by == "2 of 2 runs with fresh seeds are left" * ("device_hours" not in limit)


def test_a_run_that_misses_the_target_is_the_last_of_its_trial(open_text, supervised, write_metrics, tmp_path):
    opened = open_text(
        "objective: {metric: updates_to, target: 0.9}\nseeds_per_trial: 2\nbudget: {trials: 1}\n"
        "space: {learning_rate.reference: {kind: Float, low: 0.1, high: 0.5}}\n"
    )
    own = supervised(opened)
    work = _Work(next_trial(own.study, opened.search), [tmp_path / f"run-{run}" for run in range(2)])
    last = {"key": "eval_accuracy", "value": 0.6, "update": 9, "epoch": 1.5}
    write_metrics(work.folder, last, {"key": "run_stop", "value": "success"})
    own._start(work)
    (trial,) = own.study.trials
    assert (trial.value, trial.constraints) == (9.0, {"accuracy >= 0.9": pytest.approx(1 / 3)})


@pytest.fixture
def over_own_recipe(open_text):
    """A search over own.yaml beside it."""
    Path("own.yaml").write_text("kilobatch: 1\nextends: digits/batch_256\n")
    head = "kilobatch: 1\nrecipe: own.yaml\nsampler: {kind: RandomSampler}\nbudget: {trials: 1}\n"
    return open_text("space: {learning_rate.reference: {kind: Float, low: 0.1, high: 1}}\n", head)


@pytest.mark.parametrize("text", ["epochs: 7\n", "epochs: [\n"])
def test_no_trial_begins_with_a_recipe_that_was_edited_since_the_search_opened_it(
    over_own_recipe, supervised, tmp_path, text
):
    own = supervised(over_own_recipe)
    running, begins = (_Work(next_trial(own.study, own.search), [tmp_path / f"trial-{number}"]) for number in range(2))
    running.folder.mkdir()
    own._running.append(running)
    assert not own.recipe_changed()
    with open("own.yaml", "a") as file:
        file.write(text)
    own._start(begins)
    assert own.stopped_by == "a change of what own.yaml trains"
    assert (running.folder / STOP_FILE).exists()  # it keeps its checkpoint
    assert not begins.folder.exists()
    assert own.study.get_trials()[1].state == TrialState.RUNNING  # it begins in the next session


def test_ranks_refuse_a_recipe_that_was_edited_after_it_had_been_checked_and_the_trial_begins_anew(
    over_own_recipe, supervised, tmp_path
):
    own = supervised(over_own_recipe)
    request = trial_request(over_own_recipe, 0, over_own_recipe.valid_point, tmp_path / "trial", own.options)
    checked = replace(request, checked_id=recipe_and_code_id(open_request(request)))
    received = TrainRequest.from_tree(json.loads(json.dumps(checked.as_tree())))
    assert open_request(received).recipe.name == "mine-trial-0"
    with open("own.yaml", "a") as file:
        file.write("seed: 7\n")
    with pytest.raises(InputRefused, match="what own.yaml trains was changed after it had been checked"):
        open_request(received)
    work = _Work(next_trial(own.study, own.search), [tmp_path / "trial"])
    work.hung, work.state = False, SimpleNamespace(updates=0)
    own._finish(work, RunEnd(how="failed", reason="own.yaml was changed after it had been checked"))
    assert own.study.get_trials()[0].state == TrialState.RUNNING
    assert own.stopped_by == "a change of what own.yaml trains"


def test_the_best_recipe_is_never_one_that_was_edited_while_the_search_ran(
    over_own_recipe, supervised, tmp_path, capsys
):
    study, folder, own = new_study(over_own_recipe.search), tmp_path / "out", Path("own.yaml").read_text()
    folder.mkdir()
    study.tell(next_trial(study, over_own_recipe.search), 0.5)
    Path("own.yaml").write_text(f"{own}epochs: 7\n")
    assert _search_study(supervised(over_own_recipe, study, folder)) == 3
    assert "what own.yaml trains was changed while the search ran: epochs: 20" in capsys.readouterr().err
    assert not (folder / "best.yaml").exists()
    Path("own.yaml").write_text(own)
    assert _search_study(supervised(over_own_recipe, study, folder)) == 0
    best = open_recipe(folder / "best.yaml", vocabulary=over_own_recipe.options["vocabulary"]).recipe
    assert best.epochs == over_own_recipe.base.recipe.epochs
