"""Many trials on many groups: what each group's ranks have, and when they leave a trial."""

import json

import pytest
from optuna.trial import TrialState

pytestmark = [pytest.mark.mpi, pytest.mark.slow]
NET = '''\
import hashlib
import json
import os
from pathlib import Path

import chainer
import chainer.links as L

WEIGHTS = Path("weights")


class Net(chainer.Chain):
    """Writes a hash of its weights at a forward outside of training, if they have changed."""

    def __init__(self, num_classes: int):
        super().__init__()
        with self.init_scope():
            self.output = L.Linear(64, num_classes)
        self.written = None

    def __call__(self, images):
        if not chainer.config.train:
            arrays = [parameter.array for _, parameter in sorted(self.namedparams())]
            digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()
            if digest != self.written:
                self.written = digest
                with open(WEIGHTS / f"{os.getpid()}.jsonl", "a") as file:
                    file.write(json.dumps(digest) + "\\n")
        return self.output(images)
'''
RECIPE = "kilobatch: 1\nextends: digits/batch_256\nmodel: {kind: net.Net}\nepochs: 8\n"
SPACE = """\
space:
  learning_rate.reference: {kind: Float, low: 0.005, high: 0.5, log: true}
  learning_rate.warmup.epochs: {kind: Int, low: 1, high: 5}
budget: {trials: 24}
ranks_per_trial: 2
reports: 4
"""


@pytest.fixture
def own_net(tmp_path):
    (tmp_path / "net.py").write_text(NET)
    (tmp_path / "net.yaml").write_text(RECIPE)
    (tmp_path / "weights").mkdir()


def with_own_net(searching, name, *options):
    search = searching(SPACE, "--allow-code", *options)
    search.file.write_text(search.file.read_text().replace("digits/batch_256", "net.yaml"))
    search.folder = search.folder.with_name(name)
    return search


def written_hashes(search, number):
    """Of each rank of a trial the process and what it written_hashes of its weights over all its trials."""
    weights = search.file.parent / "weights"
    return {pid: (weights / f"{pid}.jsonl").read_text().splitlines() for pid in search.pids(number)}


def test_24_trials_on_eight_ranks_in_four_groups_are_those_of_one_group(searching, own_net):
    many, one = with_own_net(searching, "many", "-n", 8), with_own_net(searching, "one", "-n", 2)
    for search in (many, one):
        search.complete()
        assert [trial.state for trial in search.trials()] == [TrialState.COMPLETE] * 24
    pairs = list(zip(many.trials(), one.trials(), strict=True))
    for trial, other in pairs:
        assert (trial.number, trial.params, trial.value) == (other.number, other.params, other.value)
        assert trial.intermediate_values == other.intermediate_values
    for number in range(24):
        hashes = list(written_hashes(many, number).values())
        assert len(hashes) == 2
        assert hashes[0] == hashes[1]
        assert len(hashes[0]) > 4
    assert len({tuple(many.pids(number)) for number in range(24)}) == 4
    assert len({tuple(one.pids(number)) for number in range(24)}) == 1


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
        assert search.updates_of_ranks(trial.number) == [last["update"]] * 2
        assert trial.user_attrs["pruned_at"] >= int(first.value)  # a report in each of the 20 epochs
        assert first.value <= last["epoch"] < 20
