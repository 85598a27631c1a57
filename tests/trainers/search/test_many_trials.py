"""Many trials on many groups: what each group's ranks have, and when they leave a trial."""

import json

import pytest
from optuna.trial import TrialState

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
SPACE = """\
space:
  learning_rate.reference: {kind: Float, low: 0.005, high: 0.5, log: true}
  learning_rate.warmup.epochs: {kind: Int, low: 1, high: 5}
fixed: {epochs: 8, model: {kind: SmallCNN, width: 2, first_stride: 2}}
budget: {trials: 24}
ranks_per_trial: 2
reports: 4
"""


def test_24_trials_on_eight_ranks_in_four_groups_are_those_of_one_group(searching):
    many, one = searching(SPACE, "-n", 8), searching(SPACE, "-n", 2)
    one.folder = one.folder.with_name("one")
    for search in (many, one):
        search.complete()
        assert [trial.state for trial in search.trials()] == [TrialState.COMPLETE] * 24
    for trial, other in zip(many.trials(), one.trials(), strict=True):
        assert (trial.number, trial.params, trial.value) == (other.number, other.params, other.value)
        assert trial.intermediate_values == other.intermediate_values
    for search, groups in ((many, 4), (one, 1)):
        assert len({tuple(search.pids(number)) for number in range(24)}) == groups


def test_50_trials_that_cannot_be_the_best_are_ended_at_the_same_update_on_both_ranks(searching):
    bad = [
        {"learning_rate.reference": 1e-6 * (1 + n / 100), "learning_rate.warmup.epochs": 1 + n % 6} for n in range(50)
    ]
    good = {"learning_rate.reference": 0.05, "learning_rate.warmup.epochs": 1}
    text = f"""\
objective: {{metric: epochs_to, target: 0.3}}
space:
  learning_rate.reference: {{kind: Float, low: 1.0e-6, high: 0.5, log: true}}
  learning_rate.warmup.epochs: {{kind: Int, low: 1, high: 6}}
fixed: {{epochs: 20, model.blocks: [1], model.width: 4}}
budget: {{trials: 51}}
ranks_per_trial: 2
enqueue: {json.dumps([good, *bad])}
"""
    search = searching(text, "-n", 2)
    search.complete()
    first, *others = search.trials()
    assert first.state == TrialState.COMPLETE
    assert [trial.state for trial in others] == [TrialState.PRUNED] * 50
    for trial in others:
        last = search.metrics(trial.number)[-1]
        assert search.updates_of_ranks(search.run_folder(trial.number)) == [last["update"]] * 2
        assert trial.user_attrs["pruned_at"] >= int(first.value)  # a report in each of the 20 epochs
        assert first.value <= last["epoch"] < 20
