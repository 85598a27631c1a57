"""The recipes that a search leaves, and the best trials once more: intervals by hand."""

import json
from pathlib import Path

import pytest

from recipes.reading.open import open_recipe
from recipes.search_space.ranges import suggested
from trainers.launch.vocabulary import vocabulary
from trainers.search.results import confirmed_in, confirmed_text, write_best
from trainers.search.study import best_trials, new_study, store_constraints

TWO = "objective: [{metric: accuracy}, {metric: device_hours}]\n"
TEXT = """\
kilobatch: 1
name: mine
recipe: digits/batch_256
sampler: {kind: RandomSampler}
budget: {trials: 6, hours: 2, device_hours: 4}
space:
  optimizer.weight_decay: {kind: Float, low: 1e-5, high: 1e-2, log: true}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 3, learning_rate.warmup.epochs: 1}
"""
LARS = {"optimizer.kind": "Lars", "optimizer.trust_coefficient": 0.01, "optimizer.weight_decay": 0.005}
MOMENTUM = {"optimizer.kind": "MomentumSGD", "optimizer.weight_decay": 0.001}


def tell(study, opened, params, *values, **violations):
    """A trial with these values, its recipe written where it is among the best."""
    study.enqueue_trial(params)
    trial = study.ask()
    assert suggested(opened.search.space, trial) == params
    store_constraints(trial, violations)
    study.tell(trial, values)
    if any(best.number == trial.number for best in best_trials(study)):
        write_best(Path(), opened, study)


def test_only_a_better_trial_that_keeps_the_constraints_takes_the_place(open_text):
    search = open_text(TEXT)
    study = new_study(search.search)
    for params, value, violations in ((LARS, 0.9, -1.0), (MOMENTUM, 0.8, -1.0), (MOMENTUM, 0.95, 1.0)):
        tell(study, search, params, value, loss=violations)
        assert "in trial 0 of" in Path("best.yaml").read_text()
    tell(study, search, MOMENTUM, 0.97, loss=-1.0)
    assert "in trial 3 of" in Path("best.yaml").read_text()


def test_several_objectives_leave_a_recipe_for_each_trial_of_the_front(open_text):
    search = open_text(TEXT + TWO)
    study = new_study(search.search)
    tell(study, search, LARS, 0.9, 0.5)
    tell(study, search, MOMENTUM, 0.8, 0.1)
    tell(study, search, MOMENTUM, 0.7, 0.2)
    assert sorted(path.name for path in Path("pareto").iterdir()) == ["trial-0000.yaml", "trial-0001.yaml"]
    assert Path("pareto/trial-0000.yaml").read_text().startswith("# accuracy 90.00 %, device-hours 0.5 in trial 0")
    tell(study, search, LARS, 0.95, 0.1)
    assert [path.name for path in Path("pareto").iterdir()] == ["trial-0003.yaml"]
    assert not Path("best.yaml").exists()
    assert open_recipe("pareto/trial-0003.yaml", vocabulary=vocabulary()).recipe.name == "mine-trial-3"


def write(folder, number, seed, accuracy, ending="success"):
    run = folder / "confirm" / f"trial-{number:04d}" / f"seed-{seed}"
    run.mkdir(parents=True)
    pairs = [("train_loss", 1.0), ("eval_accuracy", accuracy), ("run_stop", ending)]
    pairs = [pair for pair in pairs if pair[1] is not None]
    lines = [json.dumps({"key": key, "value": value, "time_ms": 0}) + "\n" for key, value in pairs]
    (run / "metrics.jsonl").write_text("".join(lines))


def test_the_best_mean_wins_with_its_interval(tmp_path, made):
    """Student's 0.975 quantile for 2 degrees of freedom is 4.303; the deviation of 0.8, 0.9, 1.0 is 0.1."""
    for seed, value in enumerate((0.8, 0.9, 1.0)):
        write(tmp_path, 3, seed, value)
        write(tmp_path, 11, seed, 0.95)
    write(tmp_path, 5, 0, 0.99)  # one run has no interval
    write(tmp_path, 7, 0, 0.99, "stopped")
    write(tmp_path, 2, 0, 0.9)
    write(tmp_path, 2, 1, None, "failed")  # it diverged before it was evaluated, and counts as the worst
    first, second, third = confirmed_in(tmp_path, made())
    assert first.trial == 11
    assert (first.mean, first.low, first.high) == pytest.approx((0.95, 0.95, 0.95))
    assert (second.trial, second.values) == (3, [0.8, 0.9, 1.0])
    assert (third.trial, third.values) == (2, [0.9, 0.0])
    assert second.mean - second.low == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    text = "trial 3: 90.00 % (95 %: 65.16 % to 100.00 %) by 3 fresh seeds, 80.00 %, 90.00 %, 100.00 %"
    assert confirmed_text(made(), second) == text
