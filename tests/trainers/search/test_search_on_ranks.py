"""A search on real ranks: trials side by side, a best recipe that trains, and the same command twice."""

import itertools
import re
import shlex
import subprocess
import sys

import pytest
import yaml
from optuna.trial import TrialState

from trainers.search import start
from trainers.search.start import SearchRequest

pytestmark = pytest.mark.mpi
TINY = """\
objective: {metric: loss, direction: minimize}
fixed: {epochs: 2, model: {kind: SmallCNN, width: 2, first_stride: 2}, learning_rate.warmup.epochs: 1}
reports: 4
budget: {trials: 4}
ranks_per_trial: 2
enqueue: [{learning_rate.reference: 1e-5}, {learning_rate.reference: 2e-5}, recipe]
"""
SLOW = """\
name: slow
source: assumed
nodes: 1
workers_per_node: 2
device: cpu
device_memory_bytes: 8000000000
exchange: {communicator: {kind: Ring}, wire: float16, overlap: false}
"""
SPACE = """\
space:
  learning_rate.reference: {kind: Float, low: 1e-5, high: 0.5, log: true}
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


def test_four_trials_on_four_ranks_in_two_groups_and_the_best_alone(searching, capsys, tmp_path):
    (tmp_path / "slow.yaml").write_text(SLOW)
    search = searching(SPACE + TINY, "-n", 4, "--cluster", tmp_path / "slow.yaml")
    code, said = search.run()
    assert code == 0, said
    trials = search.trials()
    assert [trial.number for trial in trials] == list(range(4))
    assert {trial.state for trial in trials} == {TrialState.COMPLETE}
    assert trials[2].params == {"learning_rate.reference": 0.05, "loss.label_smoothing": 0.0}
    for trial in trials:
        assert sorted(trial.intermediate_values) == [1, 2, 3, 4]
        run = yaml.safe_load((search.run_folder(trial.number) / "run.yaml").read_text())
        assert (run["plan"]["workers"], run["plan"]["cluster"]) == (2, "slow")
        assert "float16, after backward" in (search.run_folder(trial.number) / "log.txt").read_text()
        assert run["origins"]["learning_rate.reference"] == f"search mine trial {trial.number}"
        assert run["recipe"]["learning_rate"]["reference"] == trial.params["learning_rate.reference"]
        scores = [line["value"] for line in search.metrics(trial.number) if line["key"] == "eval_loss"]
        assert list(trial.intermediate_values.values()) == scores
        assert trial.value == scores[-1]
    require_kept_ranks(search, trials)

    best = min(trials, key=lambda trial: trial.value)
    assert best.number > 1  # the first two can learn nothing: it came after another one in its group's ranks
    text = (search.folder / "best.yaml").read_text()
    assert f"# search mine trial {best.number}\n" in text
    alone = search.folder / "alone"
    words = shlex.split(re.search(r"to train it: kilobatch (.*)", said)[1])
    assert words == ["train", str(search.folder / "best.yaml"), "-n", "2", "--cluster", str(tmp_path / "slow.yaml")]
    command = [sys.executable, "-P", "-m", "kilobatch", *words, "--out", str(alone)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr
    recipe = yaml.safe_load((alone / "run.yaml").read_text())["recipe"]
    assert recipe["learning_rate"]["reference"] == best.params["learning_rate.reference"]
    assert (recipe["evaluation"]["every"], recipe["claims"], recipe["card"]) == (1, [], None)
    weights = "checkpoints/update-000012/weights.safetensors"  # bit for bit those of ranks of its own
    assert (alone / weights).read_bytes() == (search.run_folder(best.number) / weights).read_bytes()

    assert start.search(SearchRequest(search=str(search.file), out=search.folder, workers=4)) == 0
    assert len(search.trials()) == 4  # the budget is spent: nothing is done again
    assert "search mine: 4 of 4 trials are done" in capsys.readouterr().out


def test_a_bad_trial_is_pruned_by_all_its_ranks_after_the_warmup(searching):
    """Its rate is a thousandth of what trains: it is behind at every report, also inside the warmup of five epochs."""
    text = """\
space:
  learning_rate.reference: {kind: Float, low: 1e-6, high: 0.5, log: true}
fixed: {epochs: 20, model: {kind: SmallCNN, width: 2, first_stride: 2}}
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
    assert (last["key"], last["value"], last["reason"]) == ("run_stop", "stopped", "search")
    assert 5 <= last["epoch"] < 20
    assert search.updates_of_ranks(1) == [last["update"]] * 2
    assert f"best: trial {good.number}" in said
