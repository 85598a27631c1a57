"""A run with `evaluation.held_out`: the same samples and bits on any ranks, and a test split that is not touched."""

import hashlib
import json

import pytest

from recipes.planning.stream import held_out
from recipes.reading.open import open_recipe
from trainers.datasets import Digits
from trainers.launch.vocabulary import vocabulary
from trainers.tasks.score_run import score_run
from trainers.training.build import build

pytestmark = pytest.mark.mpi

SETTINGS = ("evaluation.held_out=0.1", "evaluation.every=1ep", "epochs=2", "batch={global: 96, norm_span: 32}")
NUM_UPDATES = 29  # of 96, over twice 1,350 samples


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    """Trains on some ranks, in a first part on others: `trained(ranks, begun_on=None)`."""

    def run(ranks, begun_on=None):
        folder = tmp_path_factory.mktemp("held out") / "run"
        words = ["--exact", "--set", "learning_rate.warmup=null"]
        words += [word for setting in SETTINGS for word in ("--set", setting)]
        if begun_on is not None:
            train(folder, begun_on, *words, stop_after=9, recipe="digits/baseline")
            words += ["--resume"]
        return train(folder, ranks, *words, stop_after=NUM_UPDATES, recipe="digits/baseline")

    return run


@pytest.fixture(scope="module")
def alone(trained):
    return trained(1)


def bits_of(run):
    files = [*run.folder.glob("checkpoints/*/weights.safetensors"), run.folder / "trace.jsonl"]
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)][-2:]


def scores_of(run):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line["value"] for line in lines if line["key"] in ("eval_accuracy", "eval_loss")]


def test_an_epoch_trains_on_each_sample_that_is_left_once(alone):
    indices = [index for line in alone.trace for index in line["sample_ids"]]
    assert sorted(indices[:1350]) == sorted(indices[1350:2700]) == list(range(1350))


def test_ranks_and_a_resume_change_no_bit_of_the_weights_and_no_score(trained, alone):
    other = trained(3, begun_on=2)
    assert bits_of(other) == bits_of(alone)
    assert scores_of(other) == scores_of(alone)


def test_the_run_scores_what_it_held_out_and_test_scores_the_rest_of_the_data(alone, kilobatch):
    own, test = score_run(alone.folder), score_run(alone.folder, split="test")
    assert (own["split"], own["num_samples"], test["split"], test["num_samples"]) == ("held out", 150, "test", 297)
    assert scores_of(alone)[-2:] == pytest.approx([own["accuracy"], own["loss"]], rel=1e-6)
    assert own["loss"] != test["loss"]
    done = kilobatch("evaluate", alone.folder)
    assert done.stdout.endswith("over 150 held-out samples\n")
    assert "no split val; write run, test or all" in kilobatch("evaluate", alone.folder, "--split", "val").stderr


def test_the_run_says_what_it_held_out(alone, kilobatch):
    text = (alone.folder / "run.yaml").read_text()
    assert "held_out: 0.1" in text
    assert "held_out: 150" in text
    assert "fraction: 0.1" in text
    assert kilobatch("report", alone.folder).returncode == 0
    assert "150 others held out to be scored" in (alone.folder / "report.html").read_text()


@pytest.mark.parametrize("seed", [0, 7])
def test_every_seed_holds_out_the_same_samples_with_the_augmentation_of_evaluation(seed):
    overrides = (
        "evaluation.held_out=0.1",
        f"seed={seed}",
        "augmentation.train=[{kind: RandomCrop, size: 8, padding: 1}, {kind: Normalize, with: digits}]",
    )
    opened = open_recipe("digits/baseline", vocabulary=vocabulary(), overrides=overrides)
    parts, whole = build(opened.recipe, opened.dataset), Digits().open(None, "train")
    _, scored = held_out(1500, 150)
    mean, std = opened.dataset.mean[0], opened.dataset.std[0]
    for number, index in enumerate(scored[:20].tolist()):
        image_CHW, label = parts.load_eval(0, number)
        expected = (whole[index][0].transpose(2, 0, 1) / 255 - mean) / std
        assert image_CHW == pytest.approx(expected, abs=1e-5)
        assert label == whole[index][1]
