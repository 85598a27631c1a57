"""Law 2 without exact mode: on any workers, with any micro-batch, resumed or not, a run is the same up to rounding.

The bits of exact mode, the default, are in `test_exact_invariance.py`.
"""

import json

import numpy as np
import pytest

import trainers.compat  # noqa: F401
from recipes.reading.open import open_recipe
from trainers.augmentations.pipeline import Pipeline
from trainers.launch.vocabulary import vocabulary

pytestmark = pytest.mark.mpi

# 1,024 images of 32x32. The size grows alone at sample 300, inside update 3, and with the batch at sample 614.4, inside
# update 6: both hold from the next update on.
GROWING = """\
kilobatch: 1
name: growing
dataset: synthetic
model: {kind: SmallCNN, width: 4}
epochs: 2
batch: {global: [{from: 0, size: 96}, {from: 0.6, size: 192}], norm_span: 32}
learning_rate: {reference: 0.05, per: 96, warmup: {kind: GradualWarmup, epochs: 0.5, start: 0}}
optimizer: {kind: MomentumSGD, momentum: 0.9}
loss: {kind: SoftmaxCrossEntropy}
image_size: [{from: 0, size: 16}, {from: 300sp, size: 20}, {from: 0.6, size: 24}]
augmentation:
  train:
    - {kind: RandomResizedCrop, size: image_size}
    - {kind: ColorJitter, brightness: 0.4, contrast: 0.4, saturation: 0.4, hue: 0.1}
    - {kind: PcaLighting}
    - {kind: RandAugment, num_ops: 2, magnitude: 9, std: 0.5}
    - {kind: TrivialAugment}
    - {kind: Normalize, with: synthetic}
    - {kind: RandomErasing}
    - {kind: Cutout, size: 5}
  mix: [{kind: Mixup, alpha: 0.4}, {kind: CutMix, alpha: 1.0}]
  eval: [{kind: Normalize, with: synthetic}]
"""
SIZES = [16] * 4 + [20] * 3 + [24] * 3
BOTH = "augmentation.mix=[{kind: Mixup, alpha: 0.4}, {kind: CutMix, alpha: 1.0, probability: 0.8}]"
BINARY = "loss={kind: BinaryCrossEntropy, label_smoothing: 0.1, target_threshold: 0.2, head_bias: -2.2}"
SPANS = "batch.norm_span=[{from: 0, size: 32}, {from: 1, size: 64}]"
DROPPED = "model={kind: ResNet18, zero_last_gamma: false, blur_pool: true, stochastic_depth: 0.5}"
# The recipe's overrides, and how many updates are made; float64, but for the first.
METHODS = {
    "float32": ((), 24),
    "plain": ((), 18),  # 16 at 96, 2 at 192
    "last batch": (("evaluation.norm_statistics=last_batch",), 24),
    "growing span, pooled": (("evaluation.norm_statistics=pooled", SPANS), 20),
    "growing span, by group": (("evaluation.norm_statistics=by_group", SPANS), 20),
    "mixup": (("augmentation.mix=[{kind: Mixup, alpha: 0.4}]", "loss.label_smoothing=0.1"), 4),
    "cutmix": (("augmentation.mix=[{kind: CutMix, alpha: 1.0}]",), 4),
    "repeats": (("stream.repeats=4",), 4),
    "mixed and repeated": ((BOTH, BINARY, "stream.repeats=3"), 4),
    "growing images": ((), 10),
    "dropped branches": ((DROPPED,), 3),  # 11 million weights
}


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    """Trains by one of the methods: `run(folder, method, ranks, *options)`."""
    growing = tmp_path_factory.mktemp("recipe") / "growing.yaml"
    growing.write_text(GROWING)

    def run_method(folder, method, ranks, *options, stop_after=None):
        overrides, updates = METHODS[method]
        words = [word for override in overrides for word in ("--set", override)]
        more = {"recipe": str(growing)} if method == "growing images" else {}
        dtype = "float32" if method == "float32" else "float64"
        return train(folder, ranks, "--fast", *words, *options, dtype=dtype, stop_after=stop_after or updates, **more)

    return run_method


@pytest.fixture(scope="module")
def alone(tmp_path_factory, run):
    made = {}

    def alone_by(method):
        if method not in made:
            made[method] = run(tmp_path_factory.mktemp("alone") / "run", method, 1, "--micro-batch-size", 64)
        return made[method]

    return alone_by


@pytest.fixture
def assert_same(alone, assert_same_run):
    def compare(actual, method):
        float32 = method == "float32"
        assert actual.weights["/fc/W"].dtype == (np.float32 if float32 else np.float64)
        assert_same_run(actual, alone(method), loss=1e-5 if float32 else 1e-12, weights=1e-4 if float32 else 1e-12)

    return compare


# Norm groups are 32: whole groups on a rank (32, 96), or groups on teams of two (16) or, unevenly, of three (11) ranks.
# Of the three groups of an update four ranks have none or one, of the six one or two.
@pytest.mark.parametrize(
    ("method", "ranks", "micro_batch_size"),
    [
        *(("float32", ranks, size) for ranks, size in [(4, 32)]),
        *(slow("float32", ranks, size) for ranks in (2, 3, 5) for size in (32, 96, 16) if (ranks, size) != (3, 16)),
        *(slow("float32", 4, size) for size in (16, 96)),
        ("plain", 3, 32),
        *(slow("plain", 5, size) for size in (96, 16)),
        slow("last batch", 3, 32),
        ("growing span, pooled", 3, 32),
        slow("growing span, by group", 4, 16),
        ("mixup", 3, 11),
        ("mixed and repeated", 2, 16),
        slow("repeats", 3, 32),
        slow("cutmix", 2, 16),
        *(slow("mixed and repeated", ranks, size) for ranks, size in [(1, 96), (2, 32), (3, 32), (3, 11)]),
        ("growing images", 3, 32),
        *(slow("growing images", ranks, size) for ranks, size in [(1, 96), (2, 16)]),
        *(slow("dropped branches", ranks, size) for ranks, size in [(3, 32), (2, 16)]),
    ],
)
def test_ranks_and_micro_batches_change_nothing(run, tmp_path, assert_same, method, ranks, micro_batch_size):
    assert_same(run(tmp_path / "run", method, ranks, "--micro-batch-size", micro_batch_size), method)


@pytest.mark.parametrize(
    ("method", "first", "at", "then"),
    [
        ("float32", 2, 13, 3),
        *(slow("float32", first, 13, then) for first, then in [(3, 1), (2, 2)]),
        ("mixed and repeated", 2, 2, 3),
        slow("mixed and repeated", 3, 2, 1),
        ("growing images", 2, 4, 3),  # where the size grows
    ],
)
def test_a_resumed_run_is_the_uninterrupted_one(run, tmp_path, assert_same, method, first, at, then):
    run(tmp_path / "run", method, first, stop_after=at)
    assert_same(run(tmp_path / "run", method, then, "--resume"), method)


def test_the_run_alone_is_what_the_recipe_says(alone):
    trace = alone("float32").trace
    sizes = [line["global_batch_size"] for line in trace]
    assert sizes == [96] * 16 + [192] * 8
    assert [len(line["sample_ids"]) for line in trace] == sizes
    stream = [index for line in trace for index in line["sample_ids"]]
    assert sorted(stream[:1500]) == list(range(1500)), "an epoch holds each sample once"
    assert trace[-1]["loss"] < 0.95 * trace[0]["loss"], "it trains"
    assert any(path.endswith("avg_var") for path in alone("plain").weights), "compared as weights are"


def test_each_mix_changes_what_the_model_sees(alone):
    methods = ("mixup", "cutmix", "repeats", "mixed and repeated")
    assert len({alone(method).trace[0]["images_sha256"] for method in methods}) == len(methods)


def test_a_repeated_sample_comes_so_often_in_a_row(alone):
    stream = np.array([index for line in alone("repeats").trace for index in line["sample_ids"]])
    assert (stream.reshape(-1, 4) == stream[::4, None]).all()
    assert len(set(stream)) == 4 * 96 // 4


def test_an_update_has_the_image_size_and_the_batch_of_its_start(alone):
    growing = alone("growing images")
    assert [line["image_size"] for line in growing.trace] == SIZES
    assert [line["global_batch_size"] for line in growing.trace] == [96] * 7 + [192] * 3
    metrics = [json.loads(line) for line in (growing.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["image_size"] for line in metrics if line["key"] == "train_loss"] == SIZES


def test_each_augmentation_changes_what_the_model_sees(tmp_path):
    (tmp_path / "growing.yaml").write_text(GROWING)
    opened = open_recipe(tmp_path / "growing.yaml", vocabulary=vocabulary())
    samples = opened.dataset.reader.open(None, "train")
    parts, seen = opened.recipe.augmentation.train, set()
    for kept in (parts, *(parts[:index] + parts[index + 1 :] for index in range(1, len(parts)))):
        pipeline = Pipeline(parts=kept, dataset=opened.dataset, seed=0)
        images = [pipeline(samples[index][0], epoch=0, index=index, image_size=16) for index in range(32)]
        seen.add(b"".join(image.tobytes() for image in images))
    assert len(seen) == len(parts)
