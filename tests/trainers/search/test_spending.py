"""When the hours of a search are spent: by all its sessions and supervisors, and by all ranks of its trials."""

import time

import optuna
import pytest
from optuna.trial import create_trial

from recipes.schema import Budget, Search
from recipes.search_space.ranges import Float
from trainers.search.samplers import Random
from trainers.search.study import SECONDS, store_spent_seconds
from trainers.search.trial_recorder import UsedBudget


def search(**limits):
    budget = Budget(trials=100, **limits)
    space = {"epochs": Float(low=1.0, high=2.0)}
    return Search(
        name="mine", recipe="digits/baseline", space=space, sampler=Random(), budget=budget, ranks_per_trial=2
    )


@pytest.fixture
def study():
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
def test_the_limit_that_is_reached_first_ends_the_search(study, limits, working, over):
    assert UsedBudget(search(**limits), study).is_spent(working) is over


def test_a_session_counts_from_its_beginning_and_once_however_often_it_is_noted(study):
    limited = UsedBudget(search(hours=1.0 + 0.6 / 3600), study)
    assert not limited.is_spent(0.0)
    time.sleep(0.3)
    for _ in range(3):
        limited.store()
    assert not limited.is_spent(0.0)
    assert UsedBudget(search(hours=1.0 + 0.2 / 3600), study).is_spent(0.0)  # by the next session
    time.sleep(0.35)
    assert limited.is_spent(0.0)


def test_hours_of_another_supervisor_count_once_they_are_noted(study):
    limited = UsedBudget(search(hours=1.5), study)
    store_spent_seconds(study, 1800.0, session="third")
    assert not limited.is_spent(0.0)
    limited.store()
    assert limited.is_spent(0.0)
