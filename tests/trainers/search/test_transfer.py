"""From a small batch to a large one: two searches and a scaling between them, ended in both."""

import signal

import pytest
from optuna.trial import TrialState

from recipes.reading.open import open_recipe
from trainers.launch.vocabulary import vocabulary
from trainers.search.transfer import check_transfer

TEXT = """\
kilobatch: 1
name: mine
recipe: digits/baseline
sampler: {kind: Random}
space:
  learning_rate.reference: {kind: Float, low: 0.01, high: 0.2, log: true}
  loss.label_smoothing: {kind: Categorical, choices: [0.0, 0.1]}
fixed: {epochs: 4, model: {kind: SmallCNN, width: 2, first_stride: 2}}
transfer: {from_batch: 32, to_batch: 512, trials: [4, 2]}
budget: {trials: 6}
reports: 4
"""


def test_the_large_batch_is_searched_around_what_the_rules_derive(open_text):
    """The rate of the recipe is 0.05 at 32; four epochs have a warmup of one, a quarter of the run."""
    large = check_transfer(open_text(TEXT))
    space = large.tree["space"]
    assert list(space) == ["learning_rate.reference", "learning_rate.warmup.epochs", "optimizer.momentum"]
    assert (space["learning_rate.reference"]["low"], space["learning_rate.reference"]["high"]) == (0.0125, 0.2)
    assert (space["learning_rate.warmup.epochs"]["low"], space["learning_rate.warmup.epochs"]["high"]) == (0.25, 2.0)
    assert (space["optimizer.momentum"]["low"], space["optimizer.momentum"]["high"]) == (0.8, 0.95)
    assert [range_["log"] for range_ in space.values()] == [True, True, False]
    first = {"learning_rate.reference": 0.05, "learning_rate.warmup.epochs": 1, "optimizer.momentum": 0.9}
    assert (large.enqueued, large.search.budget.trials, large.search.fixed) == ((first,), 2, {})
    assert large.base.recipe.batch.global_.sizes == (512,)


def test_a_range_of_the_user_is_kept_and_what_it_does_not_hold_is_not_tried(open_text, tmp_path):
    own = "space:\n  optimizer.momentum: {kind: Categorical, choices: [0.5, 0.8]}\n"
    own += "  learning_rate.warmup.epochs: {kind: Float, low: 0.5, high: 1.5}\n"
    warmup = "learning_rate: {warmup: {kind: GradualWarmup, epochs: 1}}\n"
    (tmp_path / "own.yaml").write_text(f"kilobatch: 1\nextends: digits/baseline\nname: own\n{warmup}")
    text = TEXT.replace("recipe: digits/baseline", "recipe: own.yaml").replace("space:\n", own)
    large = check_transfer(open_text(text))
    assert large.search.space["optimizer.momentum"].choices == (0.5, 0.8)
    assert "optimizer.momentum" not in large.enqueued[0]
    warmup = large.search.space["learning_rate.warmup.epochs"]
    assert (warmup.low, warmup.high) == (0.5, 1.5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("from_batch: 32", "from_batch: 64", "is 64, and the recipe begins with a batch of 32"),
        (
            "reports: 4",
            "pruner: {kind: SuccessiveHalving, rungs: 2}",
            r"mine.yaml:1:1: transfer: the second search: budget",
        ),
        ("to_batch: 512", "to_batch: 2048", "2,048 samples an update, and there are 1,500"),
        ("fixed: {", "fixed: {optimizer: {kind: Lars}, ", "LARS|Lars"),
    ],
)
def test_what_could_not_be_scaled_is_refused_before_anything_starts(open_text, old, new, message):
    search = open_text(TEXT.replace(old, new))
    with pytest.raises(ValueError, match=message):
        check_transfer(search)


@pytest.mark.mpi
@pytest.mark.slow
def test_a_search_killed_and_one_asked_to_stop_go_on_where_they_were(searching):
    search = searching("", "-n", 2)
    search.file.write_text(TEXT.replace("[4, 2]", "[2, 2]").replace("6}", "4}"))
    for stage, end in (("from-32", -signal.SIGKILL), ("to-512", 4)):
        with search.start() as process:
            search.wait_for(search.folder / stage / "trials" / "trial-0000" / "checkpoints" / "update-*")
            process.kill() if end < 0 else (search.folder / "stop").touch()
            process.communicate(timeout=600)
        assert process.returncode == end
    search.complete()
    small = search.part("from-32").trials()
    large = search.part("to-512").trials()
    assert [trial.state for trial in small] == [TrialState.COMPLETE] * 2
    assert [trial.state for trial in large] == [TrialState.COMPLETE] * 2
    best_small, best_large = (max(trials, key=lambda trial: trial.value) for trials in (small, large))
    rate = best_small.params["learning_rate.reference"]
    assert large[0].params["learning_rate.reference"] == pytest.approx(rate)  # as derived, first

    best = open_recipe(search.folder / "best.yaml", vocabulary=vocabulary()).recipe
    assert best.batch.global_.sizes == (512,)
    assert best.learning_rate.reference == best_large.params["learning_rate.reference"]
    assert best.loss.label_smoothing == best_small.params["loss.label_smoothing"]
    assert (best.epochs, best.model.width, best.claims) == (4, 2, ())
    lines = {line.split(":")[0].strip(): line for line in (search.folder / "best.yaml").read_text().splitlines()}
    assert lines["reference"].endswith(f"# search mine-to-512 trial {best_large.number}")
    assert lines["label_smoothing" if "label_smoothing" in lines else "loss"].endswith(
        f"# search mine-from-32 trial {best_small.number}"
    )
    assert "# scaled to batch 512: as asked" in lines["global" if "global" in lines else "batch"]

    page = (search.folder / "report.html").read_text()
    assert "The full rate of every trial at its batch" in page
    assert 'href="to-512/report.html"' in page

    again, _ = search.run()  # nothing is left to do
    assert again == 0
    assert len(search.part("to-512").trials()) == 2


READER = '''\
from dataclasses import dataclass
from pathlib import Path

from trainers.datasets.synthetic import Synthetic


@dataclass(frozen=True, kw_only=True)
class Seen(Synthetic):
    """Synthetic images that record each check of a sample."""

    def open(self, root, split):
        return _Samples(super().open(root, split))


class _Samples:
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]

    def require_readable(self, index):
        with open("seen.txt", "a") as file:
            file.write("seen\\n")
'''


@pytest.mark.mpi
def test_samples_are_looked_at_once_for_a_whole_transfer(searching, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(READER)
    reader = "reader: {kind: mine.Seen, num_train: 64, num_eval: 16, size: 8}\n"
    (tmp_path / "own.yaml").write_text(f"channels: 3\nnum_train: 64\nnum_eval: 16\nnum_classes: 10\n{reader}")
    recipe = "kilobatch: 1\nextends: digits/baseline\ndataset: own.yaml\naugmentation: null\n"
    (tmp_path / "net.yaml").write_text(f"{recipe}model: {{kind: SmallCNN, width: 2}}\n")
    search = searching("", "-n", 1, "--allow-code")
    text = TEXT.replace("digits/baseline", "net.yaml").replace("trials: [4, 2]", "trials: [1, 1]")
    text = text.replace("to_batch: 512", "to_batch: 64").replace("trials: 6", "trials: 2")
    search.file.write_text(text.replace(", model: {kind: SmallCNN, width: 2, first_stride: 2}", ""))
    search.complete()
    assert len((tmp_path / "seen.txt").read_text().split()) == 64 + 16
