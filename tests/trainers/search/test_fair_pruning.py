"""Which trials a pruner compares, and from when on."""

import optuna
import pytest
from optuna.trial import TrialState, create_trial

from recipes.reading.open import open_recipe
from recipes.schema import Budget, Search
from recipes.search_space.ranges import Float
from trainers.launch.vocabulary import vocabulary
from trainers.search.fair_pruning import COMPARED, store_comparability
from trainers.search.pruners import Median
from trainers.search.samplers import Random


@pytest.fixture
def study():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", pruner=Median(startup_trials=1).build())


def ended(study, values, *, first=1, shape="Z", state=TrialState.COMPLETE):
    study.add_trial(
        create_trial(
            state=state,
            value=values[-1],
            intermediate_values=dict(enumerate(values, 1)),
            user_attrs={COMPARED: {"from": first, "shape": shape}} if first else {},
        )
    )


def verdicts(study, values, *, first=1, shape="Z"):
    """Numbers of the reports at which a trial would end."""
    trial = study.ask()
    if first:
        trial.set_user_attr(COMPARED, {"from": first, "shape": shape})
    pruned_at = []
    for number, value in enumerate(values, 1):
        trial.report(value, number)
        pruned_at += [number] if trial.should_prune() else []
    study.tell(trial, state=TrialState.FAIL)
    return pruned_at


GOOD, BAD = [0.5, 0.6, 0.7, 0.8, 0.85, 0.9], [0.1] * 6


def test_a_worse_trial_ends_at_the_first_reports_that_count(study):
    ended(study, GOOD)
    assert verdicts(study, BAD)[0] == 1
    assert verdicts(study, GOOD) == []


@pytest.mark.parametrize("first", [2, 3])
def test_never_before_its_own_slow_start_has_ended(study, first):
    ended(study, GOOD)
    assert all(number >= first for number in verdicts(study, BAD, first=first))
    assert verdicts(study, BAD, first=first)


def test_not_with_a_trial_that_is_still_slow_at_this_report(study):
    """At reports 1 to 4 the other one was in its warmup: no reason to keep a trial, or to end it."""
    ended(study, [0.0, 0.0, 0.0, 0.0, 0.8, 0.9], first=5)
    assert all(number >= 5 for number in verdicts(study, [0.1] * 6))
    ended(study, GOOD)
    assert verdicts(study, [0.1] * 4)[-1:] == [4]


def test_not_with_a_trial_whose_rate_moves_in_another_shape(study):
    ended(study, GOOD, shape="a")
    assert verdicts(study, BAD, shape="b") == []
    ended(study, GOOD, shape="b")
    assert verdicts(study, BAD, shape="b")


def test_a_trial_without_the_attribute_is_compared_with_none(study):
    ended(study, GOOD)
    assert verdicts(study, BAD, first=None) == []
    ended(study, [0.99] * 6, first=None)
    assert verdicts(study, GOOD) == []


def test_what_was_reported_while_slow_does_not_keep_a_trial():
    """Its best report so far is one of its warmup, which does not count."""
    study = optuna.create_study(direction="maximize", pruner=Median(startup_trials=1).build())
    ended(study, [0.5, 0.6, 0.7, 0.8])
    assert verdicts(study, [0.9, 0.1, 0.1, 0.1], first=2) == [2, 3, 4]


def test_the_first_report_that_counts_and_the_shape_are_stored_and_another_shape_is_logged_once():
    def recipe(*overrides):
        return open_recipe("digits/batch_256", vocabulary=vocabulary(), overrides=overrides).recipe

    study, range_ = optuna.create_study(), Float(low=0.01, high=0.1)
    mine = {"name": "mine", "recipe": "digits/batch_256", "sampler": Random(), "budget": Budget(trials=4)}
    search = Search(**mine, space={"learning_rate.reference": range_}, pruner=Median())
    schedules = [f"learning_rate.schedule={{kind: {kind}}}" for kind in ("Constant", "Polynomial")]
    kinds = [[], ["epochs=40"], *([schedule] for schedule in schedules)]
    trials = [study.ask() for _ in kinds]
    output = []
    for trial, more in zip(trials, kinds, strict=True):
        store_comparability(
            trial, recipe(*more), search, say=lambda text, trial=trial: output.append((trial.number, text))
        )
    assert [trial.user_attrs[COMPARED]["from"] for trial in trials] == [5, 3, 5, 5]  # epochs 5 of 20, 6 of 40
    ((number, text),) = output
    assert (number, text.partition(":")[0][:40]) == (2, "trial 2 moves its rate in another shape ")
