"""What recipes of studies say: schedules of the optimizer, rates of single parameters, a growing batch, a goal, an end.

On ranks and over a resume they train the same bits, and the same as a loop in float64 that knows none of our formulas.
"""

import json
import math
from types import SimpleNamespace

import chainer
import chainer.functions as F
import numpy as np
import pytest
from mpi4py import MPI
from safetensors.numpy import load_file

from recipes.planning.stream import Stream
from recipes.reading.open import open_recipe
from recipes.schema import StopAt
from trainers.datasets import Digits
from trainers.launch.vocabulary import vocabulary
from trainers.runs.checkpoint import load_into, read_checkpoint
from trainers.runs.phase_clock import PhaseClock, RankSeconds
from trainers.tasks.score_run import score_run
from trainers.training.build import build
from trainers.training.extensions.evaluation import Evaluation, Score
from trainers.training.extensions.metrics import Metrics

pytestmark = pytest.mark.mpi

N, UPDATES = 1500, 14
METRICS = ("eval_top3_accuracy", "eval_macro_f1", "eval_balanced_accuracy")
SETTINGS = (
    "model={kind: SmallCNN, width: 4}",
    # 96, 128, ..., 224 samples: a straight line over the first epoch, which has 10 updates
    "batch={global: [{from: 0, size: 96, until: 1, grow_to: 224, by: 32}], norm_span: 32}",
    "learning_rate={reference: 0.1, per: 96, rule: none, warmup: null, schedule: {kind: PiecewiseLinear,"
    " points: [[0, 0.5], [0.5, 1], [0.5, 0.25], [2, 0.25]]}, factors: [{parameters: [norm, /fc/b], factor: 2}]}",
    "optimizer={kind: MomentumSGD, momentum: 0.9, weight_decay: 0.01, no_decay: [norm]}",
    "schedules={momentum: {kind: PiecewiseLinear, points: [[0, 0.5], [1, 1]]},"
    " weight_decay: {kind: CosineRestarts, first: 0.4}}",
    "augmentation={train: [{kind: RandomCrop, size: 8, padding: 1}, {kind: Normalize, with: digits}],"
    " mix: [{kind: Mixup, alpha: 0.4}], eval: [{kind: Normalize, with: digits}], end: {at: 0.8}}",
    "evaluation={every: 0.4ep, offset: 0.2ep, flipped: true, norm_statistics: pooled,"
    " metrics: [{kind: TopAccuracy, k: 3}, {kind: MacroF1}, {kind: BalancedAccuracy}], best: macro_f1}",
    "epochs=2",
)


def words(settings):
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module")
def alone(train, tmp_path_factory):
    return train(tmp_path_factory.mktemp("alone") / "run", 1, "--exact", *words(SETTINGS), stop_after=UPDATES)


def lines_of(run, *keys):
    lines = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["key"] in keys]


def timeless(run):
    names = ("value", "update", "samples", "learning_rate", "momentum", "global_batch_size")
    lines = lines_of(run, "train_loss", "eval_accuracy", "eval_loss", *METRICS)
    return [{key: line.get(key) for key in names} for line in lines]


def test_ranks_do_not_change_a_bit(alone, train, tmp_path):
    other = train(tmp_path / "run", 3, "--exact", *words(SETTINGS), stop_after=UPDATES)
    assert other.trace == alone.trace
    assert timeless(other) == timeless(alone)
    assert all((other.weights[path] == alone.weights[path]).all() for path in alone.weights)


def test_a_run_resumed_on_other_ranks_has_the_bits_of_the_uninterrupted_one(alone, train, tmp_path):
    train(tmp_path / "run", 2, "--exact", *words(SETTINGS), stop_after=6)
    other = train(tmp_path / "run", 1, "--exact", "--resume", *words(SETTINGS), stop_after=UPDATES)
    assert other.trace == alone.trace
    assert timeless(other) == timeless(alone)
    assert all((other.weights[path] == alone.weights[path]).all() for path in alone.weights)


def test_the_trace_follows_the_formulas_by_hand(alone):
    """The batch is the line's, rounded down; the rate halves its way up to 0.5 epochs and jumps."""
    samples = 0
    for line in alone.trace:
        t = samples / N
        assert line["samples"] == samples
        assert line["global_batch_size"] == (96 + int(min(t, 1.0) * 4 + 1e-12) * 32)
        assert line["learning_rate"] == pytest.approx(0.1 * (0.5 + t if t < 0.5 else 0.25), rel=1e-12)
        assert line["momentum"] == pytest.approx(0.9 * min(0.5 + 0.5 * t, 1.0), rel=1e-12)
        samples += line["global_batch_size"]
    starts = [line["samples"] / N for line in alone.trace]
    scored = [line["update"] for line in lines_of(alone, "eval_loss")]
    assert all([line["update"] for line in lines_of(alone, metric)] == scored for metric in METRICS)
    assert scored == [next(n for n, start in enumerate(starts) if start >= at) for at in (0.2, 0.6, 1.0)]


def test_images_are_no_longer_augmented_or_mixed_after_the_end(alone, train, tmp_path):
    """From 0.8 epochs on the images are those of a run without augmentation."""
    plain = "augmentation={train: [{kind: Normalize, with: digits}], mix: null, end: null}"
    never = train(tmp_path / "never", 1, "--exact", *words([*SETTINGS, plain]), stop_after=UPDATES)
    for one, other in zip(never.trace, alone.trace, strict=True):
        assert one["sample_ids"] == other["sample_ids"]
        assert (one["images_sha256"] == other["images_sha256"]) == (one["samples"] >= 0.8 * N), one["update"]


@pytest.mark.slow
def test_loader_processes_end_augmentation_too(alone, train, tmp_path):
    other = train(tmp_path / "run", 2, "--exact", "--loader", "processes", *words(SETTINGS), stop_after=UPDATES)
    assert other.trace == alone.trace


def test_a_run_equals_a_loop_in_float64(alone, train, tmp_path):
    """From the weights after update 10 on, in the part of the run that draws nothing."""
    before = train(tmp_path / "run", 1, "--exact", *words(SETTINGS), stop_after=10)
    kept = before.folder / "checkpoints" / "update-000010"
    weights, state = (load_file(kept / f"{name}.safetensors") for name in ("weights", "optimizer"))
    w = {path: chainer.Variable(weights[path].astype(np.float64)) for path in weights if f"{path}:v" in state}
    v = {path: state[f"{path}:v"].astype(np.float64) for path in w}
    images_NCHW, labels = digits()
    for line in alone.trace[10:]:
        t, size = line["samples"] / N, line["global_batch_size"]
        momentum, rate = 0.9 * min(0.5 + 0.5 * t, 1.0), 0.1 * 0.25
        decay = 0.01 * (1 + math.cos(math.pi * (t / 0.4 % 1))) / 2
        groups = np.split(Stream(seed=0, num_samples=N).samples(line["samples"], size)[1], size // 32)
        losses = [F.softmax_cross_entropy(logits_of(w, images_NCHW[group]), labels[group]) for group in groups]
        loss = sum(losses) / len(losses)
        assert float(loss.array) == pytest.approx(line["loss"], rel=1e-5)
        for path, gradient in zip(w, chainer.grad([loss], [*w.values()]), strict=True):
            is_norm = path.endswith(("gamma", "beta"))
            g = gradient.array + (0 if is_norm else decay) * w[path].array
            v[path] = momentum * v[path] - (2 if is_norm or path == "/fc/b" else 1) * rate * g
        for path in w:
            w[path] = chainer.Variable(w[path].array + v[path])
    moved = max(np.abs(alone.weights[path] - before.weights[path]).max() for path in w)
    for path in w:
        np.testing.assert_allclose(alone.weights[path], w[path].array, rtol=0, atol=1e-4 * moved, err_msg=path)


def logits_of(w, images_NCHW):
    """SmallCNN in training mode."""
    h = images_NCHW
    for layer in "123":
        h = F.convolution_2d(h, w[f"/conv{layer}/W"], pad=1)
        h = F.relu(F.batch_normalization(h, w[f"/bn{layer}/gamma"], w[f"/bn{layer}/beta"], eps=2e-5))
        h = h if layer == "3" else F.max_pooling_2d(h, 2)
    return F.linear(F.average(h, axis=(2, 3)), w["/fc/W"], w["/fc/b"])


def test_a_goal_that_a_checkpoint_has_reached_ends_only_a_run_that_has_it():
    """A branch resumes its parent's checkpoint and has no goal: it was over before its first update."""
    reached = {"goal": {"accuracy": 0.6, "update": 20}}
    assert Evaluation(lambda: None, None, stop_at=StopAt(accuracy=0.5), resumed=reached).goal == reached["goal"]
    assert Evaluation(lambda: None, None, resumed=reached).goal is None


def test_a_goal_is_the_first_evaluation_that_reaches_it_whatever_comes_after(tmp_path):
    scores, lines = [Score(accuracy=accuracy, loss=0.1, num_samples=10) for accuracy in (0.4, 0.6, 0.9)], []
    ranks = RankSeconds(PhaseClock(), MPI.COMM_SELF, counts_lost=False)
    metrics = Metrics(tmp_path / "metrics.jsonl", writes=True, ranks=ranks, memory=dict, observe=lines.append)
    evaluation = Evaluation(lambda: scores.pop(0), metrics, stop_at=StopAt(accuracy=0.5))
    recipe = SimpleNamespace(evaluation=SimpleNamespace(metrics=()))
    plan = SimpleNamespace(timeline=SimpleNamespace(samples_at=lambda update: 10 * update), recipe=recipe)
    for update in (1, 2, 3):
        evaluation(SimpleNamespace(updater=SimpleNamespace(iteration=update, epoch_detail=update / 2, plan=plan)))
    metrics.close()
    assert [(line["update"], line["value"]) for line in lines if line["key"] == "goal"] == [(2, 0.6)]
    assert evaluation.goal == {"accuracy": 0.6, "loss": 0.1, "update": 2, "epoch": 1.0, "samples": 20}


def digits():
    samples = Digits().open(None, "train")
    images, labels = zip(*(samples[index] for index in range(N)), strict=True)
    images_NCHW = np.stack(images).astype(np.float64).transpose(0, 3, 1, 2) / 255
    return (images_NCHW - 0.305622) / 0.376256, np.array(labels, np.int32)


def test_a_goal_ends_the_run_with_a_checkpoint_and_a_resume_does_nothing_more(kilobatch, tmp_path):
    recipe = ["digits/baseline", "--set", "model.width=4", "--set", "evaluation={every: 20up, flipped: true}"]
    recipe += ["--no-report"]
    goal = ["--set", "stop_at.accuracy=0.5", "--out", tmp_path / "run", "--profile", 900]
    runs = []
    for more in ([], ["--resume"]):
        done = kilobatch("train", *recipe, *goal, *more, ranks=2)
        assert done.returncode == 0, done.stderr
        runs.append([json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()])
    for lines in runs:
        scores = {line["update"]: line["value"] for line in lines if line["key"] == "eval_accuracy"}
        reached = min(update for update, accuracy in scores.items() if accuracy >= 0.5)
        (goal,) = [line for line in lines if line["key"] == "goal"]
        assert (goal["update"], goal["samples"]) == (reached, reached * 32)
        assert max(scores) == reached < 20 * N // 32
        assert sum(line["key"] == "train_loss" for line in lines) == reached
        stop = lines[-1]
        assert (stop["key"], stop["value"], stop["reason"]) == ("run_stop", "success", "goal reached")
        where = {name: goal[name] for name in ("loss", "update", "epoch", "samples")}
        assert stop["goal"] == {"accuracy": scores[reached], **where}
        assert (tmp_path / "run" / "checkpoints" / f"update-{reached:06d}" / "weights.safetensors").is_file()
    assert (tmp_path / "run" / "profile.json").is_file(), "of the updates up to the goal"
    score = score_run(tmp_path / "run")
    assert (score["accuracy"], score["loss"]) == (goal["value"], goal["loss"])
    opened = open_recipe(tmp_path / "run" / "recipe.yaml", vocabulary=vocabulary())
    parts = build(opened.recipe, opened.dataset)
    load_into(parts.model, None, read_checkpoint(tmp_path / "run" / "checkpoints" / f"update-{reached:06d}"))
    images, labels = zip(*(parts.load_eval(0, index) for index in range(parts.num_eval)), strict=True)
    with chainer.using_config("train", False), chainer.no_backprop_mode():
        logits = parts.model(np.stack(images)).array + parts.model(np.stack(images)[..., ::-1].copy()).array
    assert float((logits.argmax(axis=1) == labels).mean()) == pytest.approx(goal["value"])
