"""A search on real ranks: trials side by side, a best recipe that trains, and the same command twice."""

import itertools
import subprocess
import sys

import pytest
import yaml
from optuna.trial import TrialState

pytestmark = pytest.mark.mpi
TINY = "fixed: {epochs: 2, model.blocks: [1], model.width: 4, learning_rate.warmup.epochs: 1}\nreports: 4\n"
SPACE = """\
space:
  learning_rate.reference: {kind: Float, low: 0.005, high: 0.5, log: true}
  loss.label_smoothing: {kind: Categorical, choices: [0.0, 0.1]}
"""


def require_kept_ranks(search, trials):
    """Each group's ranks are the same processes in all its trials; the groups work side by side."""
    pids, stretches = {}, {}
    for trial in trials:
        ((group, began, ended),) = trial.user_attrs["worked"]
        pids.setdefault(group, set()).add(tuple(search.pids(trial.number)))
        stretches.setdefault(group, []).append((began, ended))
        assert ended - began == pytest.approx(trial.user_attrs["seconds"], abs=0.1)
    assert [len(of_group) for of_group in pids.values()] == [1, 1]
    ((began, ended), *_), ((other_began, other_ended), *_) = stretches.values()
    assert began < other_ended
    assert other_began < ended
    for own in stretches.values():
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(own))


def require_run_alone_is_the_same(search, number):
    """The weights of a trial that came late are, bit for bit, those of its recipe in ranks of their own."""
    folder = search.run_folder(number)
    alone = search.folder / "alone"
    command = [sys.executable, "-P", "-m", "kilobatch", "train", str(folder / "recipe.yaml"), "-n", "2"]
    done = subprocess.run([*command, "--out", str(alone)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    weights = "checkpoints/update-000012/weights.safetensors"
    assert (alone / weights).read_bytes() == (folder / weights).read_bytes()


def test_six_trials_on_four_ranks_in_two_groups(searching):
    text = SPACE + TINY + "budget: {trials: 6}\nranks_per_trial: 2\nenqueue: [recipe]\n"
    search = searching(text, "-n", 4)
    code, said = search.run()
    assert code == 0, said
    trials = search.trials()
    assert [trial.number for trial in trials] == list(range(6))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert trials[0].params == {"learning_rate.reference": 0.05, "loss.label_smoothing": 0.0}
    for trial in trials:
        assert sorted(trial.intermediate_values) == [1, 2, 3, 4]
        run = yaml.safe_load((search.run_folder(trial.number) / "run.yaml").read_text())
        assert run["plan"]["workers"] == 2
        assert run["origins"]["learning_rate.reference"] == f"search mine trial {trial.number}"
        assert run["recipe"]["learning_rate"]["reference"] == trial.params["learning_rate.reference"]
        scores = [line["value"] for line in search.metrics(trial.number) if line["key"] == "eval_accuracy"]
        assert list(trial.intermediate_values.values()) == scores
        assert trial.value == scores[-1]
    require_kept_ranks(search, trials)

    require_run_alone_is_the_same(search, 5)
    best = max(trials, key=lambda trial: trial.value)
    text = (search.folder / "best.yaml").read_text()
    assert f"# search mine trial {best.number}\n" in text
    command = [sys.executable, "-P", "-m", "kilobatch", "train", str(search.folder / "best.yaml"), "--out"]
    again = search.folder / "again"
    done = subprocess.run([*command, str(again)], capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    recipe = yaml.safe_load((again / "run.yaml").read_text())["recipe"]
    assert recipe["learning_rate"]["reference"] == best.params["learning_rate.reference"]
    assert (recipe["evaluation"]["every"], recipe["claims"], recipe["card"]) == (1, [], None)

    code, said = search.run()  # the budget is spent: nothing is done again
    assert code == 0, said
    assert len(search.trials()) == 6
    assert "search mine: 6 of 6 trials are done" in said


def test_a_bad_trial_is_pruned_by_all_its_ranks_after_the_warmup(searching):
    """Its rate is a thousandth of what trains: it is behind at every report, also inside the warmup of five epochs."""
    text = """\
space:
  learning_rate.reference: {kind: Float, low: 1e-6, high: 0.5, log: true}
fixed: {epochs: 20, model.blocks: [1], model.width: 4}
pruner: {kind: Median, startup_trials: 1}
budget: {trials: 2}
ranks_per_trial: 2
enqueue: [recipe, {learning_rate.reference: 1e-6}]
"""
    search = searching(text, "-n", 2)
    code, said = search.run()
    assert code == 0, said
    good, bad = search.trials()
    assert (good.state, bad.state) == (TrialState.COMPLETE, TrialState.PRUNED), said
    assert bad.user_attrs["pruned_at"] == 5  # the report at epoch 5 and the first that may be compared
    assert bad.user_attrs["reason"] == "pruned at report 5 of 20"
    last = search.metrics(1)[-1]
    assert (last["key"], last["value"], last["reason"]) == ("run_stop", "stopped", "signal")
    assert 5 <= last["epoch"] < 20
    assert search.updates_of_ranks(1) == [last["update"]] * 2
    assert f"best: trial {good.number}" in said
