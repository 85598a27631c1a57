"""Which configuration is trained longer, and when: of the study alone."""

import dataclasses
from collections import Counter
from contextlib import ExitStack
from fractions import Fraction

import optuna
import pytest
from optuna.trial import TrialState

from recipes.schema import Budget, Search
from recipes.search_space.ranges import Float
from trainers.search.pruners import Median, SuccessiveHalving
from trainers.search.samplers import Random
from trainers.search.study import RUNG, comparable_rung, is_whole
from trainers.search.successive_halving import assigned_share, next_promoted, promote

SPACE = {"x": Float(low=0.0, high=1.0)}


def search_with(pruner):
    return Search(
        name="mine", recipe="digits/baseline", space=SPACE, sampler=Random(), pruner=pruner, budget=Budget(trials=999)
    )


def new_study(storage=None):
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name="mine",
        direction="maximize",
        sampler=optuna.samplers.RandomSampler(seed=0),
        storage=storage,
        load_if_exists=True,
    )


@pytest.fixture
def begun(tmp_path):
    """`begun()`: the study in a database of the test's; its connections are closed behind it."""
    with ExitStack() as stack:

        def begin_again():
            storage = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'study.db'}")
            stack.callback(storage.engine.dispose)
            stack.callback(storage.remove_session)
            return new_study(storage)

        yield begin_again


def begin(study, search):
    """A trial as a supervisor begins it, and the part of the epochs that it trains."""
    promote(study, search)
    trial = study.ask()
    share = assigned_share(trial, search)
    return trial, trial.suggest_float("x", 0.0, 1.0), share


def run(study, search, trials):
    """One trial after the other; the score is the value itself."""
    shares = []
    for _ in range(trials):
        trial, x, share = begin(study, search)
        study.tell(trial, x)
        shares.append(share)
    return shares


def test_the_best_third_goes_up_as_soon_as_it_has_earned_it():
    study, search = new_study(), search_with(SuccessiveHalving())
    shares = run(study, search, 4)
    assert shares == [Fraction(1, 9)] * 3 + [Fraction(1, 3)]
    first, *_, longer = study.trials
    best = max(study.trials[:3], key=lambda trial: trial.value)
    assert longer.params == best.params
    assert longer.user_attrs[RUNG] == {"at": 1, "of": best.number, "whole": False}


def test_a_ninth_of_the_configurations_is_trained_whole_and_none_twice_at_a_rung():
    study, search = new_study(), search_with(SuccessiveHalving())
    counts = Counter(run(study, search, 130))
    assert counts[Fraction(1, 9)] == 90
    assert counts[Fraction(1, 3)] == 30
    assert counts[Fraction(1)] == 10
    seen = [(trial.params["x"], trial.user_attrs[RUNG]["at"]) for trial in study.trials]
    assert len(set(seen)) == len(seen)
    whole = [trial for trial in study.trials if is_whole(trial)]
    # Asynchronous: some went up that would not have, had it waited; the best of all is among them.
    assert max(trial.value for trial in study.trials) == max(trial.value for trial in whole)


def test_promotion_does_not_wait_for_running_trials():
    study, search = new_study(), search_with(SuccessiveHalving())
    begin(study, search)  # never ends
    shares = run(study, search, 8)
    assert shares.count(Fraction(1, 3)) == 2
    assert Fraction(1) not in shares


def test_a_failed_configuration_is_the_last_of_its_rung():
    study, search = new_study(), search_with(SuccessiveHalving())
    for number in range(3):
        trial, x, _ = begin(study, search)
        study.tell(trial, x if number else None, state=TrialState.FAIL if not number else TrialState.COMPLETE)
    earned = next_promoted(study.trials, search, maximize=True)
    assert earned.number == max(study.trials[1:], key=lambda trial: trial.value).number


def test_the_lowest_goes_up_where_less_is_better():
    study, search = new_study(), search_with(SuccessiveHalving())
    run(study, search, 3)
    earned = next_promoted(study.trials, search, maximize=False)
    assert earned.value == min(trial.value for trial in study.trials)


def test_a_session_that_goes_on_decides_the_same(begun):
    """Killed between any two steps: what waits in the queue is taken, and nothing goes up twice."""
    search = search_with(SuccessiveHalving())
    run(begun(), search, 3)
    promote(begun(), search)
    promote(begun(), search)  # killed after it was queued
    study = begun()
    assert [trial.state for trial in study.trials].count(TrialState.WAITING) == 1
    trial = study.ask()  # killed before it had a share: its rung is that of the queue
    again = optuna.Trial(begun(), trial._trial_id)
    assert assigned_share(again, search) == Fraction(1, 3)
    promote(study, search)
    assert [trial.state for trial in study.trials].count(TrialState.WAITING) == 0
    fresh = study.ask()
    assert assigned_share(fresh, search) == assigned_share(fresh, search) == Fraction(1, 9)


def test_nothing_is_queued_that_the_budget_does_not_hold():
    study, search = new_study(), search_with(SuccessiveHalving())
    run(study, search, 3)
    promote(study, dataclasses.replace(search, budget=Budget(trials=3)))
    assert len(study.trials) == 3


def test_a_search_without_rungs_trains_everything_whole():
    study, search = new_study(), search_with(Median())
    assert run(study, search, 5) == [Fraction(1)] * 5
    assert all(is_whole(trial) for trial in study.trials)
    assert not any(RUNG in trial.user_attrs for trial in study.trials)


def test_a_sampler_learns_from_runs_of_the_greatest_length_of_which_there_are_enough():
    """One path: three complete trials at a rung are enough."""
    study, search = new_study(), search_with(SuccessiveHalving())
    seen = []
    for _ in range(40):
        seen.append(comparable_rung(study.get_trials(states=(TrialState.COMPLETE,)), search))
        run(study, search, 1)
    assert (seen[0], seen[-1]) == (0, 2)
    assert seen == sorted(seen)
    assert seen.index(1) >= 9  # three of them were promoted


def test_shares_by_hand():
    assert SuccessiveHalving().shares == (Fraction(1, 9), Fraction(1, 3), Fraction(1))
    assert SuccessiveHalving(reduction=2, rungs=2).shares == (Fraction(1, 2), Fraction(1))
