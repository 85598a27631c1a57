"""Law 2 for drawn augmentations and growing, mixed images: the same images and weights on any ranks, resumed or not."""

import json

import numpy as np
import pytest

import trainers.compat  # noqa: F401
from recipes.reading.open import open_recipe
from trainers.augmentations.pipeline import Pipeline
from trainers.launch.vocabulary import vocabulary

pytestmark = pytest.mark.mpi

UPDATES = 10
# 1,024 images of 32x32. The size grows alone at sample 300, inside update 3, and with the batch at sample 614.4, inside
# update 6: both hold from the next update on.
RECIPE = """\
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
# Whole norm groups of 32 on a rank (32, 96), and spread over teams of two (16).
SPLITS = [pytest.param(1, 96, marks=pytest.mark.slow), pytest.param(2, 16, marks=pytest.mark.slow), (3, 32)]


@pytest.fixture(scope="module")
def run(tmp_path_factory, train):
    """Trains the recipe in float64."""
    recipe = tmp_path_factory.mktemp("recipe") / "growing.yaml"
    recipe.write_text(RECIPE)

    def run_recipe(folder, ranks, *options, stop_after=UPDATES):
        return train(folder, ranks, *options, recipe=str(recipe), dtype="float64", stop_after=stop_after)

    return run_recipe


@pytest.fixture(scope="module")
def alone(tmp_path_factory, run):
    return run(tmp_path_factory.mktemp("alone") / "run", 1, "--micro-batch-size", 32)


def test_an_update_has_the_size_and_the_batch_of_its_start(alone):
    assert [line["image_size"] for line in alone.trace] == SIZES
    assert [line["global_batch_size"] for line in alone.trace] == [96] * 7 + [192] * 3
    metrics = [json.loads(line) for line in (alone.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["image_size"] for line in metrics if line["key"] == "train_loss"] == SIZES


@pytest.mark.parametrize(("ranks", "micro_batch_size"), SPLITS)
def test_images_and_weights_are_the_same(alone, run, tmp_path, assert_same_run, ranks, micro_batch_size):
    actual = run(tmp_path / "run", ranks, "--micro-batch-size", micro_batch_size)
    assert [line["image_size"] for line in actual.trace] == SIZES
    assert actual.weights["/fc/W"].dtype == np.float64
    assert_same_run(actual, alone, loss=1e-13, weights=1e-12)


def test_a_run_resumed_where_the_size_grows_is_the_uninterrupted_one(alone, run, tmp_path, assert_same_run):
    run(tmp_path / "run", 2, stop_after=4)
    actual = run(tmp_path / "run", 3, "--resume")
    assert [line["image_size"] for line in actual.trace] == SIZES
    assert_same_run(actual, alone, loss=1e-13, weights=1e-12)


def test_each_augmentation_changes_what_the_model_sees(tmp_path):
    (tmp_path / "growing.yaml").write_text(RECIPE)
    opened = open_recipe(tmp_path / "growing.yaml", vocabulary=vocabulary())
    samples = opened.dataset.reader.open(None, "train")
    parts, seen = opened.recipe.augmentation.train, set()
    for kept in (parts, *(parts[:place] + parts[place + 1 :] for place in range(1, len(parts)))):
        pipeline = Pipeline(parts=kept, dataset=opened.dataset, seed=0)
        images = [pipeline(samples[index][0], epoch=0, index=index, image_size=16) for index in range(32)]
        seen.add(b"".join(image.tobytes() for image in images))
    assert len(seen) == len(parts)
