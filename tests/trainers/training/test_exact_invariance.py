"""Exact mode: the same bits on any number of ranks, with any micro-batch, before and after a resume on others."""

import hashlib
import json
import os
import re
import subprocess
import sys

import pytest

from trainers.runs.mpi_ranks import THREADS

pytestmark = pytest.mark.mpi

# Batch 96, from update 7 on 192: 3 norm groups, then 6.
RAMP = "batch={global: [{from: 0, size: 96}, {from: 0.4, size: 192}], norm_span: 32}"
# The same from update 2 on, of digits and of synthetic.
SOON = "batch={global: [{from: 0, size: 96}, {from: 2up, size: 192}], norm_span: 32}"
# Batch 96, from update 50 on 192.
LONG_RAMP = "batch={global: [{from: 0, size: 96}, {from: 50up, size: 192}], norm_span: 32}"
DIGITS = ("gradient.clip_norm=0.5", "weight_average={keep: 0.9, per: 96}", "model.width=4", "evaluation.every=5up")
IMAGES = (
    "dataset=synthetic",
    "optimizer={kind: Lars, momentum: 0.9, trust_coefficient: 0.01, weight_decay: 1e-4}",
    "augmentation={train: [{kind: RandomCrop, size: 32, padding: 4}, {kind: HorizontalFlip}], eval: []}",
    "evaluation={every: 50up, norm_statistics: moving_average}",
)
LONG_IMAGES = (*IMAGES, "model.width=4")
METHODS = (
    "updater={double_buffering: true}",
    "evaluation={every: 5ep, norm_statistics: by_group}",
    "augmentation.mix=[{kind: Mixup, alpha: 0.4}]",
    "model={kind: WideResNet, depth: 10, widen: 1, dropout: 0.3}",
    "optimizer={kind: Lamb}",
)
TIMES = re.compile(r"time_ms|.*_seconds|slowest_rank")
MIXED = ("precision={compute: mixed16, loss_scale: 1073741824, double_after: 1}", "model={kind: SmallCNN, width: 4}")


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    with pytest.MonkeyPatch.context() as patch:
        for name in THREADS:
            patch.setenv(name, "1")
        yield


@pytest.fixture(scope="module")
def exact(train, tmp_path_factory):
    def run(ranks, settings, *, update, micro_batch_size=32, ramp=RAMP, resumed_from=None, measure=False):
        folder = tmp_path_factory.mktemp("exact") / "run"
        words, timeout = ["--exact", *(["--noise-scale"] if measure else [])], 60 + 20 * update
        for setting in (ramp, "learning_rate.warmup.target_batch=192", *settings):
            words += ["--set", setting]
        if resumed_from is not None:
            first, at = resumed_from
            train(folder, first, *words, stop_after=at, timeout=timeout)
            words += ["--resume"]
        train(folder, ranks, *words, "--micro-batch-size", micro_batch_size, stop_after=update, timeout=timeout)
        return bits_of(folder, update)

    return run


def bits_of(folder, update):
    """Digests of all files of a checkpoint and of the trace, and what the metrics say but for times."""
    checkpoint = folder / "checkpoints" / f"update-{update:06d}"
    files = [*sorted(checkpoint.iterdir()), folder / "trace.jsonl"]
    assert {"weights.safetensors", "optimizer.safetensors", "state.json"} <= {file.name for file in files}
    actual = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(line["key"] == "train_loss" for line in lines) == update
    output = [line for line in lines if line["key"] == "train_loss" or line["key"].startswith("eval_")]
    timeless = [{k: v for k, v in line.items() if not TIMES.fullmatch(k)} for line in output]
    return actual | {"metrics": timeless}


@pytest.fixture(scope="module")
def digits_alone(exact):
    return exact(1, DIGITS, update=12)


def test_the_run_alone_moves_evaluates_and_averages(digits_alone):
    lines = digits_alone["metrics"]
    batches = [line["global_batch_size"] for line in lines if line["key"] == "train_loss"]
    assert batches == [96] * 7 + [192] * 5
    assert sum(line["key"] == "eval_loss" for line in lines) >= 1
    assert "averages.safetensors" in digits_alone


@pytest.mark.parametrize(("ranks", "micro_batch_size"), [(2, 96), (3, 32), pytest.param(5, 96, marks=pytest.mark.slow)])
def test_ranks_and_micro_batches_do_not_change_a_bit(exact, digits_alone, ranks, micro_batch_size):
    assert exact(ranks, DIGITS, update=12, micro_batch_size=micro_batch_size) == digits_alone


def test_a_loss_that_is_called_for_each_group_has_the_same_bits_too(exact):
    settings = ("loss={kind: BinaryCrossEntropy, label_smoothing: 0.1}", "model.width=4")
    group_by_group, together = (exact(1, settings, update=2, micro_batch_size=size) for size in (32, 192))
    assert together == group_by_group


APART = """
from dataclasses import dataclass
import chainer
import chainer.functions as F
import chainer.links as L

KEPT = []


@dataclass(frozen=True, kw_only=True)
class Penalised:
    def build(self):
        return lambda logits, targets: F.softmax_cross_entropy(logits, targets) + 0.01 * F.sum(KEPT[-1].head.W ** 2)

    def initialize(self, model):
        KEPT.append(model)


class Plain(chainer.Chain):
    def __init__(self, num_classes, channels):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(channels, 6, 3, pad=1)
            self.norm = L.BatchNormalization(6)
            self.head = L.Linear(6, num_classes)
            self.classes = chainer.Parameter(chainer.initializers.Normal(), (num_classes, 6))

    def features(self, x):
        return F.mean(F.relu(self.norm(self.conv(x))), axis=(2, 3))

    def forward(self, x):
        return self.head(self.features(x))


class Prototypes(Plain):
    def forward(self, x):
        return F.matmul(self.features(x), F.linear(self.classes, self.head.W[:6], self.head.b[:6]), transb=True)
"""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ("model: {kind: own.Plain}\nloss: {kind: own.Penalised}\n", "the loss reads a parameter"),
        ("model: {kind: own.Prototypes}\n", "the model fails on several at once: "),  # its 10 rows are no 4 groups
    ],
    ids=["penalty", "rows of classes"],
)
def test_what_cannot_be_computed_for_several_groups_is_computed_for_each(tmp_path, kilobatch, changes, why):
    (tmp_path / "own.py").write_text(APART)
    text = "kilobatch: 1\nextends: digits/large_batch\nbatch: {global: 128, norm_span: 32}\n" + changes
    (tmp_path / "mine.yaml").write_text(text)
    found = []
    for size in (32, 128):
        out = tmp_path / f"of-{size}"
        words = ["train", tmp_path / "mine.yaml", "--allow-code", "--exact", "--no-report", "--stop-after", "2up"]
        done = kilobatch(*words, "--micro-batch-size", size, "--out", out, ranks=1)
        assert done.returncode == 0, done.stdout + done.stderr
        found.append((out / "checkpoints/update-000002/weights.safetensors").read_bytes())
    assert f"each norm group is a forward of its own, which takes longer where it is small: {why}" in done.stdout
    assert found[0] == found[1]


def test_measured_norms_have_the_same_bits_too(exact, digits_alone):
    actual = exact(2, DIGITS, update=12, micro_batch_size=192, measure=True)
    assert "gradient_noise" in actual["metrics"][0]
    assert actual["weights.safetensors"] == digits_alone["weights.safetensors"]


def test_a_run_resumed_on_other_ranks_has_the_bits_of_the_uninterrupted_one(exact, digits_alone):
    assert exact(2, DIGITS, update=12, resumed_from=(4, 6), micro_batch_size=192) == digits_alone


@pytest.mark.slow
def test_images_of_32x32_with_another_optimizer(exact):
    alone = exact(1, IMAGES, update=4, ramp=SOON)
    assert exact(2, IMAGES, update=4, ramp=SOON, resumed_from=(3, 2)) == alone


@pytest.mark.slow
def test_methods_that_draw_mix_and_delay(exact):
    alone = exact(1, METHODS, update=4, ramp=SOON)
    assert "pending.safetensors" in alone
    assert exact(3, METHODS, update=4, ramp=SOON, micro_batch_size=96) == alone


@pytest.mark.slow
def test_mixed_precision_overflows_at_the_same_updates(exact):
    alone = exact(1, MIXED, update=6)
    assert sum(line.get("overflows", 0) for line in alone["metrics"]) > 0
    assert exact(2, MIXED, update=6, resumed_from=(3, 3)) == alone


@pytest.fixture(scope="module", params=[DIGITS, LONG_IMAGES], ids=["digits", "images"])
def long_run(request, exact):
    """100 updates across the ramp, alone, and the settings."""
    return request.param, exact(1, request.param, update=100, ramp=LONG_RAMP)


@pytest.mark.slow
@pytest.mark.parametrize("micro_batch_size", [32, 64, 192])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])
def test_100_updates_on_any_ranks_with_any_micro_batch(exact, long_run, ranks, micro_batch_size):
    settings, alone = long_run
    assert exact(ranks, settings, update=100, ramp=LONG_RAMP, micro_batch_size=micro_batch_size) == alone


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 8), (2, 3), (5, 4), (8, 1)])
def test_100_updates_resumed_half_way_on_another_number(exact, long_run, first, then):
    settings, alone = long_run
    assert exact(then, settings, update=100, ramp=LONG_RAMP, resumed_from=(first, 50), micro_batch_size=64) == alone


OWN = """\
kilobatch: 1
name: images
extends: digits/baseline
dataset: synthetic
epochs: 10
batch: {global: 192}
augmentation:
  train: [{kind: RandomCrop, size: 32, padding: 4}, {kind: HorizontalFlip}, {kind: Normalize, with: synthetic}]
  eval: [{kind: Normalize, with: synthetic}]
evaluation: {every: 1run}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("recipe", "updates"), [("digits/large_batch", 59), ("images.yaml", 54)])
def test_the_command_of_the_readme_gives_the_same_weights_on_eight_numbers_of_ranks(tmp_path, recipe, updates):
    """No option but -n and --out, as a user types it."""
    (tmp_path / "images.yaml").write_text(OWN)
    environment = {name: value for name, value in os.environ.items() if name not in THREADS}
    digests = {}
    for ranks in (1, 2, 3, 4, 5, 6, 8, 16):
        command = [sys.executable, "-P", "-m", "kilobatch", "train", recipe, "-n", str(ranks), "--out", f"runs/{ranks}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        weights = tmp_path / "runs" / str(ranks) / "checkpoints" / f"update-{updates:06d}" / "weights.safetensors"
        digests[ranks] = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert len(set(digests.values())) == 1, digests
