"""A trial's reports, and what its runs come to, by hand."""

import math
from dataclasses import replace

import pytest

from recipes.schema import Constraint, Objective
from trainers.launch.request import TrainRequest, prepare
from trainers.search.outcome import diverged_result, goal_of, recipe_violations, reports_in, trial_result
from trainers.search.study import violated_text


def line(key, value, update=0, epoch=0.0, time_ms=0):
    return {"key": key, "value": value, "update": update, "epoch": epoch, "time_ms": time_ms}


LINES = [
    line("run_start", "x"),
    line("train_loss", 4.0),
    line("eval_accuracy", 0.5),
    line("eval_loss", 2.0),
    line("train_loss", 2.0),
    line("train_loss", 1.0),
    line("eval_accuracy", 0.75),
    line("eval_loss", 1.25),
    line("run_stop", "success"),
]
OTHER = [{**one, "value": 0.25} if one["key"] == "eval_accuracy" else one for one in LINES]
RECIPE = {"optimizer": {"kind": "Lars", "weight_decay": 0.002}, "learning_rate": {"reference": 0.5}}


@pytest.fixture
def search(made):
    return lambda *constraints, metrics=("accuracy",): made(
        objective=tuple(Objective(metric=each) for each in metrics), constraints=constraints
    )


def test_objectives_are_those_of_the_end_in_their_order_and_the_mean_of_several_runs(search):
    """The training loss is the mean of 2 and 1, the updates since the evaluation before."""
    own = search(metrics=("train_loss", "accuracy", "loss"))
    assert trial_result(own, [LINES]) == ([1.5, 0.75, 1.25], {})
    assert trial_result(search(), [LINES, OTHER])[0] == [0.5]


def test_device_hours_are_those_of_training_of_all_runs_together(search):
    """Three hours of one run, without the day between its sessions, and one of the other, on two ranks."""
    own = replace(search(metrics=("accuracy", "device_hours")), ranks_per_trial=2)
    assert trial_result(own, [WAY, WAY[:2]])[0] == [pytest.approx(0.7), 2 * (3 + 1)]


def test_a_trial_that_diverged_is_worse_than_any_other_and_so_is_a_score_that_is_no_number(search):
    own = search(metrics=("accuracy", "loss", "device_hours"))
    assert diverged_result(own)[0] == [0.0, math.inf, math.inf]
    lines = [*LINES, line("eval_accuracy", math.nan), line("eval_loss", math.nan)]
    assert trial_result(own, [lines])[0] == [0.0, math.inf, 0.0]
    own = search(Constraint(metric="loss", at_least=0.1))
    assert trial_result(own, [lines])[1] == {"loss >= 0.1": 1.0}


WAY = [
    line("run_start", 0, 0, 0.0, 0),
    line("eval_accuracy", 0.6, 10, 1.0, 3_600_000),
    line("run_start", 0, 10, 1.0, 90_000_000),  # a day later, after a resume
    line("eval_accuracy", 0.9, 20, 2.0, 93_600_000),
    line("eval_accuracy", 0.8, 30, 3.0, 97_200_000),
]


@pytest.mark.parametrize(
    ("metric", "target", "taken", "lacking"),
    [
        ("updates_to", 0.9, 20, 0.0),
        ("epochs_to", 0.5, 1.0, -0.2),
        ("hours_to", 0.85, 4.0, -0.05 / 0.85),  # two ranks, an hour in each session
        ("updates_to", 1.0, 30, 0.1),  # never: the whole run, and a tenth is lacking
    ],
)
def test_a_target_is_reached_at_the_first_evaluation_that_has_it(search, metric, target, taken, lacking):
    own = replace(search(), objective=Objective(metric=metric, target=target), ranks_per_trial=2)
    assert goal_of(WAY, own) == (taken, pytest.approx(lacking))


def test_a_trial_that_misses_its_target_breaks_a_constraint_by_what_it_lacks(search):
    own = replace(search(), objective=Objective(metric="updates_to", target=1.0))
    assert trial_result(own, [WAY]) == ([30.0], {"accuracy >= 1": pytest.approx(0.1)})
    assert diverged_result(own)[1] == {"accuracy >= 1": 1.0}


def test_a_constraint_is_measured_in_parts_of_its_end(search):
    ends = {"train_loss": {"at_most": 0.75}, "accuracy": {"at_least": 0.6}, "loss": {"at_most": 0.0}}
    own = search(*(Constraint(metric=metric, **end) for metric, end in ends.items()))
    violations = trial_result(own, [LINES])[1]
    assert violations == pytest.approx({"train_loss <= 0.75": 1.0, "accuracy >= 0.6": -0.25, "loss <= 0": 1.25})
    assert violated_text(violations) == "not train_loss <= 0.75, not loss <= 0"


def test_before_training_only_constraints_on_values_are_checked(search):
    """The recipe has no momentum: nothing is demanded of it."""
    product = "optimizer.weight_decay * learning_rate.reference"
    own = search(
        Constraint(value=product, at_most=0.002, at_least=0.001),
        Constraint(value="learning_rate.reference", at_most=0.4),
        Constraint(value="optimizer.momentum", at_most=0.9),
        Constraint(metric="device_hours", at_most=1),
    )
    expected = {f"{product} <= 0.002": -0.5, f"{product} >= 0.001": 0.0, "learning_rate.reference <= 0.4": 0.25}
    assert recipe_violations(own, RECIPE) == pytest.approx(expected)
    with pytest.raises(ValueError, match="optimizer.kind is 'Lars', which is no number"):
        recipe_violations(search(Constraint(value="optimizer.kind * 2", at_most=1)), RECIPE)


def test_a_report_has_the_number_of_the_last_point_that_was_reached_and_the_end_is_the_last(made):
    """Ten epochs of 1,500 samples at batch 256: 59 updates."""
    request = TrainRequest(recipe="digits/batch_256", overrides=("epochs=10", "evaluation.every=0.25run"))
    points = [(0.2, 15, 2.56), (0.4, 30, 5.12), (0.5, 44, 7.51), (0.5, 59, 9.9)]
    lines = [line(key, *point) for point in points for key in ("eval_accuracy", "eval_loss")]
    reports = reports_in(lines, prepare(request, workers=1), made(reports=4))
    assert list(reports) == [(1, 0.2), (2, 0.4), (3, 0.5), (4, 0.5)]
