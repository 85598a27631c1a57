"""The same images as class folders, tar shards, Parquet and arrays: equal samples, equal batches, equal weights."""

import subprocess
import sys
from contextlib import nullcontext
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from recipes.planning.stream import Stream
from trainers.datasets import Arrays, ImageFolder, Parquet, TarShards
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes
from trainers.datasets.loader import StreamIterator
from trainers.launch.request import TrainRequest, prepare
from trainers.training.build import build

READERS = {"tar": TarShards(), "parquet": Parquet(), "arrays": Arrays()}
FORMS = [form for form in READERS if form != "parquet" or find_spec("pyarrow")]
DATASET = """\
name: imagenet
reader: {kind: %s}
root: %s
channels: 3
mean: [0.5, 0.5, 0.5]
std: [0.25, 0.25, 0.25]
"""
RECIPE = """\
kilobatch: 1
extends: digits/baseline
name: forms
dataset: %s.yaml
model: {kind: SmallResNet, width: 4, blocks: [1, 1, 1]}
batch: {global: 8, norm_span: 8}
epochs: 2
augmentation:
  train: [{kind: RandomResizedCrop, size: 16}, {kind: HorizontalFlip}, {kind: Normalize, with: imagenet}]
  eval: [{kind: Resize, shorter: 18}, {kind: CenterCrop, size: 16}, {kind: Normalize, with: imagenet}]
"""


def showing(words, total):
    return nullcontext(lambda number: None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """24 and 9 images of one size in three classes, in each form, with a recipe for each."""
    folder = tmp_path_factory.mktemp("forms")
    draws = np.random.default_rng(0)
    for split, count in (("train", 8), ("val", 3)):
        for name in ("b", "b-c", "Z"):
            place = folder / "folder" / split / name
            place.mkdir(parents=True)
            for number in range(count):
                image = Image.fromarray(draws.integers(0, 256, (6, 8, 3), dtype=np.uint8)).resize((40, 30))
                image.save(place / (f"{number}.v1.JPEG" if number == 2 else f"{number}.JPEG"), quality=90)
    splits = {split: ImageFolder().open(folder / "folder", split) for split in ("train", "eval")}
    source = SourceImages(name="a test", splits=splits, classes=names_of_classes(splits["train"]))
    for form in FORMS:
        (folder / form).mkdir()
        convert(source, folder / form, Conversion(form=form, per_chunk=10), workers=1, showing=showing)
    for form, reader in (("folder", "ImageFolder"), *((form, type(READERS[form]).__name__) for form in FORMS)):
        (folder / f"{form}.yaml").write_text(DATASET % (reader, form))
        (folder / f"recipe_{form}.yaml").write_text(RECIPE % form)
    return folder


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_samples_are_equal_and_in_one_order(folder, form, split):
    samples, others = ImageFolder().open(folder / "folder", split), READERS[form].open(folder / form, split)
    assert len(others) == len(samples) > 8
    for index in range(len(samples)):
        (image_HWC, label), (other_HWC, other) = samples[index], others[index]
        assert (label, image_HWC.tobytes()) == (other, other_HWC.tobytes())
        if form != "arrays":
            assert others.encoded(index) == samples.encoded(index)


def batches(folder, form):
    """The first two updates of a rank, on images that the recipe augments."""
    prepared = prepare(TrainRequest(recipe=str(folder / f"recipe_{form}.yaml")), workers=1)
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    loaded = StreamIterator(plan=prepared.plan, rank=0, stream=stream, load=build(recipe, dataset).load_train)
    parts = [part for _ in range(2) for part in next(loaded).micro_batches]
    return [(part.indices.tolist(), part.targets.tolist(), np.asarray(part.images_NCHW).tobytes()) for part in parts]


@pytest.mark.parametrize("form", FORMS)
def test_augmented_batches_are_equal(folder, form):
    assert batches(folder, form) == batches(folder, "folder")


@pytest.mark.mpi
@pytest.mark.slow  # their batches are equal, see above
@pytest.mark.parametrize("form", FORMS)
def test_trained_weights_are_equal(folder, form):
    weights = []
    for name in ("folder", form):
        words = ["train", f"recipe_{name}.yaml", "--out", f"runs/{form}/{name}", "-n", "1", "--no-report"]
        words = [sys.executable, "-P", "-m", "kilobatch", *words]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        weights.append((folder / "runs" / form / name / "checkpoints/update-000006/weights.safetensors").read_bytes())
    assert weights[0] == weights[1]
