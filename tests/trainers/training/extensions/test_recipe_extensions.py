"""Extensions that a recipe names: when they run, what they write, and that a resumed run goes on with their state."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from chainer.training.triggers import ManualScheduleTrigger, OnceTrigger
from safetensors.numpy import load_file

from trainers.training.extensions.evaluation import going_on

RECIPE = """\
kilobatch: 1
extends: digits/large_batch
epochs: 6
seed: 3
extensions:
  - {kind: WeightNorms, every: 2ep}
  - {kind: own_extensions_of_a_test.Mean, rate: 0.5}
"""
CODE = '''\
from chainer.training import Extension


class Mean(Extension):
    """The running mean of the loss, whose state a resumed run needs."""

    trigger = (3, "iteration")

    def __init__(self, rate: float):
        self.state, self.rate = {"calls": 0, "mean": 0.0}, rate

    def __call__(self, trainer):
        calls, mean = self.state["calls"] + 1, self.state["mean"]
        mean += self.rate * (trainer.updater.record.loss - mean)
        self.state = {"calls": calls, "mean": mean}
        trainer.get_extension("Metrics").write("mean_loss", mean, update=trainer.updater.iteration, calls=calls)
'''

ENDING = '''\
from chainer.training import Extension


class Ending(Extension):
    """Changes the weights of one rank after two updates, and ends the run."""

    trigger = (2, "iteration")

    def __call__(self, trainer):
        if trainer.updater.mpi.rank == 1:
            trainer.updater.get_optimizer("main").target.fc.b.array[0] += 1
        trainer.updater.stopping = True
'''


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.yaml").write_text(RECIPE)
    (tmp_path / "own_extensions_of_a_test.py").write_text(CODE)
    return tmp_path


def lines(run, key):
    actual = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: line[name] for name in ("update", "value")} for line in actual if line["key"] == key]


@pytest.mark.mpi
def test_a_resumed_run_writes_the_lines_of_an_uninterrupted_one(folder, kilobatch):
    words = ("train", "mine.yaml", "--allow-code", "--exact", "--no-report")
    assert kilobatch(*words, "--out", "whole", ranks=2, cwd=folder).returncode == 0
    assert kilobatch(*words, "--out", "parts", "--stop-after", "7up", ranks=2, cwd=folder).returncode == 0
    assert kilobatch(*words, "--out", "parts", "--resume", ranks=2, cwd=folder).returncode == 0
    whole, parts = folder / "whole", folder / "parts"
    means = lines(whole, "mean_loss")
    assert [line["update"] for line in means] == list(range(3, 19, 3))
    assert lines(parts, "mean_loss") == means
    assert lines(parts, "weight_norms") == lines(whole, "weight_norms")


@pytest.mark.parametrize(
    ("trigger", "fires"),
    [
        ((10, "iteration"), [30, 40]),
        ((2, "epoch"), [32]),
        (ManualScheduleTrigger([10, 30, 40], "iteration"), [30, 40]),
        (OnceTrigger(), []),
        (OnceTrigger(call_on_resume=True), [26]),
    ],
)
def test_triggers_of_chainer_go_on_where_they_were(trigger, fires):
    """A run of 8 updates an epoch is resumed after 25; each extension of a trigger has its own."""

    def at(update):
        return SimpleNamespace(
            iteration=update,
            epoch_detail=update / 8,
            previous_epoch_detail=(update - 1) / 8,
            is_new_epoch=update % 8 == 0,
        )

    for _ in range(2):
        own = going_on(trigger, at(25))
        assert [update for update in range(26, 41) if own(SimpleNamespace(updater=at(update)))] == fires


@pytest.mark.mpi
@pytest.mark.slow
def test_weights_that_an_extension_makes_differ_as_it_ends_the_run_are_no_checkpoint(folder, kilobatch):
    (folder / "own_extensions_of_a_test.py").write_text(ENDING)
    (folder / "mine.yaml").write_text(RECIPE.replace("Mean, rate: 0.5", "Ending"))
    words = ("train", "mine.yaml", "--allow-code", "--no-report", "-n", "2", "--out", "run")
    done = kilobatch(*words, cwd=folder)
    assert done.returncode == 3, done.stdout
    assert "is not the same on all ranks: rank 1 on " in done.stderr
    assert not list((folder / "run" / "checkpoints").glob("update-*"))


@pytest.mark.mpi
@pytest.mark.slow
def test_weight_norms_are_those_of_the_checkpoint(folder, kilobatch):
    assert kilobatch("train", "mine.yaml", "--allow-code", "--no-report", "--out", "run", cwd=folder).returncode == 0
    norms = lines(folder / "run", "weight_norms")
    assert [line["update"] for line in norms] == [6, 12, 18]
    checkpoint = max((folder / "run" / "checkpoints").glob("update-*"))
    weights = {f"/{path.lstrip('/')}": array for path, array in load_file(checkpoint / "weights.safetensors").items()}
    assert norms[-1]["value"].keys() < weights.keys()
    for path, norm in norms[-1]["value"].items():
        assert norm == pytest.approx(np.linalg.norm(weights[path].astype("d")), rel=1e-12)


@pytest.mark.parametrize(
    ("entry", "place", "message"),
    [
        ("{kind: WeightNorms, every: 0}", "6:32", "must be above 0"),
        ("{kind: WeightNorm}", "6:12", "there is no extension called WeightNorm"),
        ("{kind: own_extensions_of_a_test.Mean}", "6:5", "is missing"),
        ("{kind: own_extensions_of_a_test.Extension.update}", "6:12", "cannot be used"),
    ],
)
def test_a_wrong_extension_is_refused_where_it_stands(folder, kilobatch, entry, place, message):
    (folder / "mine.yaml").write_text(RECIPE.partition("  - ")[0] + f"  - {entry}\n")
    refused = kilobatch("train", "mine.yaml", "--allow-code", "--out", "run", cwd=folder)
    assert refused.returncode == 2
    assert f"mine.yaml:{place}: " in refused.stderr
    assert message in refused.stderr
    assert not (folder / "run").exists()
