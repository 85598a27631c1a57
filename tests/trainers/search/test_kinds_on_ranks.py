"""A search with several objectives, constraints and a conditional range on real ranks."""

import pytest
import yaml
from optuna.trial import TrialState

from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.search.study import pareto_front

pytestmark = pytest.mark.mpi
TEXT = """\
objective:
  - {metric: train_loss, direction: minimize}
  - {metric: device_hours, direction: minimize}
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


def test_two_objectives_with_constraints_and_a_conditional_range(searching):
    search = searching(TEXT, "-n", 2)
    code, said = search.run()
    assert code == 0, said
    *trained, third = search.trials()

    assert third.state == TrialState.PRUNED  # its decay breaks a constraint, which is known before
    assert third.user_attrs["reason"] == "not trained: not optimizer.weight_decay * 1000 <= 1"
    assert not (search.run_folder(2) / "metrics.jsonl").exists()
    assert "trial 2 infeasible: not trained" in said

    for trial in trained:
        lines = search.metrics(trial.number)
        evaluated = [place for place, line in enumerate(lines) if line["key"] == "eval_accuracy"]
        last = [line["value"] for line in lines[evaluated[-2] : evaluated[-1]] if line["key"] == "train_loss"]
        assert trial.values[0] == pytest.approx(sum(last) / len(last))
        assert trial.values[1] == pytest.approx(trial.user_attrs["seconds"] / 3600)
        assert trial.constraints["optimizer.weight_decay * 1000 <= 1"] == pytest.approx(-0.9)
        assert trial.constraints["accuracy <= 1"] <= 0

    own, lars = (optimizer_of(search.run_folder(number)) for number in range(2))
    assert (lars["kind"], lars["trust_coefficient"], lars["weight_decay"]) == ("Lars", 0.02, 1e-4)
    assert own["kind"] == "MomentumSGD"
    assert "trust_coefficient" not in own

    numbers = pareto_front({trial.number: trial.values for trial in trained}, ("minimize", "minimize"))
    paths = [search.folder / "pareto" / f"trial-{number:04d}.yaml" for number in numbers]
    assert sorted((search.folder / "pareto").iterdir()) == sorted(paths)
    for number, path in zip(numbers, paths, strict=True):
        assert open_recipe(path, vocabulary=vocabulary()).recipe.name == f"mine-trial-{number}"
        assert f"kilobatch train {path}" in said
    assert "Not beaten in everything" in (search.folder / "report.html").read_text()


def optimizer_of(folder):
    return yaml.safe_load((folder / "run.yaml").read_text())["recipe"]["optimizer"]
