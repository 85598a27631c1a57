"""A trial of several runs, and a budget of device-hours."""

import json
from statistics import fmean

import pytest
import yaml
from optuna.trial import TrialState

pytestmark = pytest.mark.mpi
TEXT = """\
space: {learning_rate.reference: {kind: Float, low: 0.01, high: 0.1, log: true}}
fixed: {epochs: 2, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 1, seed: 7}
reports: 4
seeds_per_trial: 3
budget: {trials: 10, device_hours: 1.0e-6}
"""


def test_a_trial_is_the_mean_over_its_seeds_and_no_trial_begins_once_the_device_hours_are_spent(searching):
    search = searching(TEXT)
    code, said = search.run()
    assert code == 0, said
    (trial,) = search.trials()
    assert trial.state == TrialState.COMPLETE
    folders = [search.run_folder(0) / f"run-{run}" for run in range(3)]
    recipes = [yaml.safe_load((folder / "run.yaml").read_text())["recipe"] for folder in folders]
    assert [recipe["seed"] for recipe in recipes] == [7, 8, 9]
    assert len({recipe["learning_rate"]["reference"] for recipe in recipes}) == 1
    scores = [[line["value"] for line in lines if line["key"] == "eval_accuracy"] for lines in map(metrics, folders)]
    assert len({tuple(each) for each in scores}) > 1
    assert trial.value == fmean(each[-1] for each in scores)
    assert list(trial.intermediate_values.values()) == scores[0]  # those of the first run are compared
    assert len(trial.user_attrs["worked"]) == 3


def metrics(folder):
    return [json.loads(text) for text in (folder / "metrics.jsonl").read_text().splitlines()]
