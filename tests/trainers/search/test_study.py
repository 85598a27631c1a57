"""The result, the state and the order of trials, by hand."""

import math

import optuna
import pytest

from recipes.schema import Budget, Constraint, Objective, Search
from recipes.search_space.ranges import Float
from trainers.search.samplers import Random
from trainers.search.study import check_constraints, pareto_front, state_counts, trial_result

LINES = [
    {"key": "run_start", "value": "x"},
    {"key": "train_loss", "value": 4.0},
    {"key": "eval_accuracy", "value": 0.5},
    {"key": "eval_loss", "value": 2.0},
    {"key": "train_loss", "value": 2.0},
    {"key": "train_loss", "value": 1.0},
    {"key": "eval_accuracy", "value": 0.75},
    {"key": "eval_loss", "value": 1.25},
    {"key": "run_stop", "value": "success"},
]
OTHER = [{**line, "value": 0.25} if line["key"] == "eval_accuracy" else line for line in LINES]
RECIPE = {"optimizer": {"kind": "Lars", "weight_decay": 0.002}, "learning_rate": {"reference": 0.5}}


def search(*constraints, metrics=("accuracy",)):
    directions = {"accuracy": "maximize"}
    return Search(
        name="mine",
        recipe="digits/baseline",
        objective=tuple(Objective(metric=each, direction=directions.get(each, "minimize")) for each in metrics),
        space={"learning_rate.reference": Float(low=0.1, high=1.0)},
        constraints=constraints,
        sampler=Random(),
        budget=Budget(trials=4),
    )


def test_objectives_are_those_of_the_end_in_their_order():
    """The training loss is the mean of 2 and 1, the updates since the evaluation before."""
    result = trial_result(
        search(metrics=("train_loss", "accuracy", "device_hours", "loss")), [LINES], RECIPE, device_hours=0.5
    )
    assert (result.values, result.state) == ([1.5, 0.75, 0.5, 1.25], "complete")


def test_several_runs_count_with_their_mean():
    assert trial_result(search(), [LINES, OTHER], RECIPE, device_hours=0.5).values == [0.5]


def test_an_objective_that_is_not_finite_is_an_error():
    lines = [*LINES, {"key": "eval_accuracy", "value": math.nan}]
    with pytest.raises(ValueError, match="the accuracy is nan"):
        trial_result(search(), [lines], RECIPE, device_hours=0.5)


@pytest.mark.parametrize(
    ("constraint", "violations", "state"),
    [
        (Constraint(metric="device_hours", at_most=0.25), {"device_hours <= 0.25": 1.0}, "infeasible"),
        (Constraint(metric="accuracy", at_least=0.6), {"accuracy >= 0.6": pytest.approx(-0.25)}, "complete"),
        (
            Constraint(value="optimizer.weight_decay * learning_rate.reference", at_most=0.002, at_least=0.001),
            {
                "optimizer.weight_decay * learning_rate.reference <= 0.002": -0.5,
                "optimizer.weight_decay * learning_rate.reference >= 0.001": 0.0,
            },
            "complete",
        ),
        (Constraint(value="optimizer.momentum", at_most=0.9), {}, "complete"),  # a Lars without one: nothing demanded
        (Constraint(metric="loss", at_most=0.0), {"loss <= 0": 1.25}, "infeasible"),
    ],
)
def test_a_constraint_is_measured_in_parts_of_its_end(constraint, violations, state):
    result = trial_result(search(constraint), [LINES], RECIPE, device_hours=0.5)
    assert (result.violations, result.state) == (violations, state)


def test_a_score_that_is_not_finite_breaks_its_constraint():
    lines = [*LINES, {"key": "eval_loss", "value": math.nan}]
    result = trial_result(search(Constraint(metric="loss", at_least=0.1)), [lines], RECIPE, device_hours=0.5)
    assert result.violated == "not loss >= 0.1"


def test_before_training_only_constraints_on_values_are_checked():
    both = search(
        Constraint(value="learning_rate.reference", at_most=0.4), Constraint(metric="device_hours", at_most=1)
    )
    assert check_constraints(both, RECIPE).violated == "not learning_rate.reference <= 0.4"


def test_a_constraint_on_a_value_that_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="optimizer.kind is 'Lars', which is no number"):
        check_constraints(search(Constraint(value="optimizer.kind * 2", at_most=1)), RECIPE)


@pytest.mark.parametrize(
    ("values", "directions", "numbers"),
    [
        ({0: (0.9,), 1: (0.95,), 2: (0.95,)}, ("maximize",), [1, 2]),
        ({0: (0.9, 3.0), 1: (0.8, 1.0), 2: (0.8, 2.0)}, ("maximize", "minimize"), [0, 1]),
        ({4: (1.0, 1.0), 2: (1.0, 1.0)}, ("minimize", "minimize"), [2, 4]),
        ({0: (1.0, 2.0, 3.0), 1: (2.0, 1.0, 3.0), 2: (2.0, 2.0, 3.0)}, ("minimize",) * 3, [0, 1]),
        ({}, ("minimize",), []),
    ],
)
def test_the_front_holds_what_no_other_beats(values, directions, numbers):
    assert pareto_front(values, directions) == numbers


def test_trials_are_counted_by_what_became_of_them():
    study = optuna.create_study()
    assert state_counts(study.get_trials()) == "no trial has ended yet"
    study.tell(study.ask(), 1.0)
    study.tell(study.ask(), state=optuna.trial.TrialState.FAIL)
    study.tell(study.ask(), 2.0)
    assert state_counts(study.get_trials()) == "3 trials: 2 complete, 1 failed"
