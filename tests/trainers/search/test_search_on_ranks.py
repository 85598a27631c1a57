"""A search on real ranks: trials side by side, a best recipe that trains, and the same command twice."""

import json
import operator
import re
import shlex
from statistics import fmean

import pytest
import yaml
from optuna.trial import TrialState

from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.search.outcome import evaluations, metrics_lines

pytestmark = pytest.mark.mpi
TINY = """\
objective: {metric: loss}
fixed: {epochs: 2, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 1}
reports: 4
budget: {trials: 4}
ranks_per_trial: 2
enqueue: [{learning_rate.reference: 1e-5}, {learning_rate.reference: 2e-5}, recipe]
confirm: {top: 2, seeds: 2}
"""
SPACE = """\
space:
  learning_rate.reference: {kind: Float, low: 1e-5, high: 0.5, log: true}
  loss.label_smoothing: {kind: Categorical, choices: [0.0, 0.1]}
"""


def test_four_trials_on_four_ranks_in_two_groups_then_fresh_seeds_and_the_best_alone(searching, kilobatch):
    search = searching(SPACE + TINY, "-n", 4, "--cluster", "laptop")
    output = search.complete()
    assert "A new study created" not in output  # as Optuna would say
    trials = search.trials()
    assert [trial.number for trial in trials] == list(range(4))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert trials[2].params == {"learning_rate.reference": 0.05, "loss.label_smoothing": 0.0}
    for trial in trials:
        assert sorted(trial.intermediate_values) == [1, 2, 3, 4]
        run = yaml.safe_load((search.run_folder(trial.number) / "run.yaml").read_text())
        assert (run["plan"]["workers"], run["plan"]["cluster"]) == (2, "laptop")
        assert run["origins"]["learning_rate.reference"] == f"search mine trial {trial.number}"
        assert run["recipe"]["learning_rate"]["reference"] == trial.params["learning_rate.reference"]
        scores = [line["value"] for line in search.metrics(trial.number) if line["key"] == "eval_loss"]
        assert list(trial.intermediate_values.values()) == scores
        assert trial.value == scores[-1]
    assert len({tuple(search.pids(trial.number)) for trial in trials}) == 2  # each group's ranks are kept

    runs = sorted((search.folder / "confirm").glob("trial-*/seed-*"))
    assert len(runs) == 4
    assert {yaml.safe_load((run / "run.yaml").read_text())["recipe"]["seed"] for run in runs} == {1000, 1001}
    means = {path.parent.name: [] for path in runs}
    for path in runs:
        means[path.parent.name].append(evaluations(metrics_lines(path))[-1]["loss"])
    best = trials[int(min(means, key=lambda name: fmean(means[name])).removeprefix("trial-"))]
    assert best.number > 1  # the first two can learn nothing: it came after another one in its group's ranks
    text = (search.folder / "best.yaml").read_text()
    assert "by 2 fresh seeds" in text.splitlines()[0]
    assert f"# search mine trial {best.number}\n" in text
    (packed,) = re.findall(r"to share it with its mean: kilobatch recipes pack (.*)/seed-\*", output)
    assert packed == str(search.folder / "confirm" / f"trial-{best.number:04d}")
    alone = search.folder / "alone"
    words = shlex.split(re.search(r"to train it: kilobatch (.*)", output)[1])
    assert words == ["train", str(search.folder / "best.yaml"), "-n", "2", "--cluster", "laptop"]
    done = kilobatch(*words[:2], "-n", 1, "--out", alone)
    assert done.returncode == 0, done.stdout + done.stderr
    recipe = yaml.safe_load((alone / "run.yaml").read_text())["recipe"]
    assert recipe["learning_rate"]["reference"] == best.params["learning_rate.reference"]
    assert (recipe["evaluation"]["every"], recipe["claims"], recipe["card"]) == (1, [], None)
    weights = "checkpoints/update-000012/weights.safetensors"  # bit for bit those of a rank of its own
    assert (alone / weights).read_bytes() == (search.run_folder(best.number) / weights).read_bytes()

    before = {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in runs}
    assert "search mine: 4 of 4 trials are done" in search.complete()
    assert len(search.trials()) == 4  # the budget is spent: nothing is done again
    assert before == {run: (run / "metrics.jsonl").stat().st_mtime_ns for run in runs}


@pytest.mark.slow
def test_a_trial_is_the_mean_of_its_seeds_and_one_that_cannot_beat_it_is_ended_on_all_its_ranks(searching):
    """The rate of the second is a thousandth of what trains: it never reaches the target, and its first run ends."""
    text = """\
objective: {metric: epochs_to, target: 0.25}
space:
  learning_rate.reference: {kind: Float, low: 1e-6, high: 0.5, log: true}
fixed: {epochs: 10, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 3, seed: 7}
reports: 10
budget: {trials: 2}
ranks_per_trial: 2
seeds_per_trial: 2
enqueue: [recipe, {learning_rate.reference: 1e-6}]
"""
    search = searching(text, "-n", 2)
    output = search.complete()
    good, bad = search.trials()
    assert (good.state, bad.state) == (TrialState.COMPLETE, TrialState.PRUNED), output
    folders = [search.run_folder(0) / f"run-{index}" for index in range(2)]
    assert [yaml.safe_load((folder / "run.yaml").read_text())["recipe"]["seed"] for folder in folders] == [7, 8]
    lines = list(map(metrics_lines, folders))
    reached = [next(each for each in evaluations(own) if each["accuracy"] >= 0.25) for own in lines]
    assert good.value == fmean(own["epoch"] for own in reached) < 10
    lacking = [0.25 - own["accuracy"] for own in evaluations(lines[0])]
    assert list(good.intermediate_values.values()) == lacking  # those of the first run are reported
    assert all("goal" in own[-1] for own in lines)  # they end there

    number = bad.user_attrs["pruned_at"]
    taken = 2 * good.value  # of both runs together: the second run of the bad one might take hardly any
    assert number - 1 < taken <= number + 0.2  # a report an epoch
    run = search.run_folder(1) / "run-0"
    last = metrics_lines(run)[-1]
    assert (last["key"], last["value"], last["reason"]) == ("run_stop", "stopped", "search")
    assert taken <= last["epoch"] < 10
    of_ranks = [json.loads(heartbeat.read_text())["update"] for heartbeat in (run / "ranks").glob("*.json")]
    assert of_ranks == [last["update"]] * 2
    assert not (search.run_folder(1) / "run-1").exists()
    assert f"best: trial {good.number}" in output


OBJECTIVES = """\
objective:
  - {metric: train_loss}
  - {metric: device_hours}
space:
  optimizer.weight_decay: {kind: Categorical, choices: [1e-4, 1e-2]}
  optimizer.kind: {kind: Categorical, choices: [MomentumSGD, Lars]}
  optimizer.trust_coefficient: {kind: Float, low: 1e-3, high: 0.1, log: true, when: {optimizer.kind: [Lars]}}
fixed: {epochs: 2, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 1}
constraints:
  - {value: optimizer.weight_decay * 1000, at_most: 1}
  - {metric: accuracy, at_most: 1.0, at_least: 0.01}
budget: {trials: 3}
reports: 2
enqueue:
  - {optimizer.kind: MomentumSGD, optimizer.weight_decay: 1e-4}
  - {optimizer.kind: Lars, optimizer.trust_coefficient: 0.02, optimizer.weight_decay: 1e-4}
  - {optimizer.kind: MomentumSGD, optimizer.weight_decay: 1e-2}
"""


@pytest.mark.slow
def test_two_objectives_with_constraints_and_a_conditional_range(searching):
    search = searching(OBJECTIVES, "-n", 1)
    output = search.complete()
    *trained, third = search.trials()

    assert third.state == TrialState.PRUNED  # its decay breaks a constraint, which is known before
    assert third.user_attrs["reason"] == "not trained: not optimizer.weight_decay * 1000 <= 1"
    assert not (search.run_folder(2) / "metrics.jsonl").exists()
    assert "trial 2 infeasible: not trained" in output

    for trial in trained:
        assert trial.values[0] == evaluations(search.metrics(trial.number))[-1]["train_loss"]
        assert trial.values[1] == evaluations(search.metrics(trial.number))[-1]["hours"]
        assert trial.constraints["optimizer.weight_decay * 1000 <= 1"] == pytest.approx(-0.9)
        assert trial.constraints["accuracy <= 1"] <= 0

    runs = [yaml.safe_load((search.run_folder(number) / "run.yaml").read_text()) for number in range(2)]
    own, lars = (run["recipe"]["optimizer"] for run in runs)
    assert (lars["kind"], lars["trust_coefficient"], lars["weight_decay"]) == ("Lars", 0.02, 1e-4)
    assert own["kind"] == "MomentumSGD"

    one, other = (trial.values for trial in trained)
    better = [any(map(operator.lt, own, others)) for own, others in ((one, other), (other, one))]
    paths = [search.folder / "pareto" / f"trial-{number:04d}.yaml" for number in range(2) if better[number]]
    assert sorted((search.folder / "pareto").iterdir()) == paths
    for path in paths:
        assert open_recipe(path, vocabulary=vocabulary()).recipe.name == f"mine-trial-{int(path.stem[-4:])}"
        assert f"kilobatch train {path}" in output
    assert "Not beaten in everything" in (search.folder / "report.html").read_text()
