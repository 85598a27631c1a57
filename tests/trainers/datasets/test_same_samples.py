"""The samples of a run are the same on any ranks, with any loader workers and readers, and after a resume in mid-epoch.

Compared are the ids of the first 20,000 samples, of 14 epochs, and the checksums of all these augmented images.
"""

from contextlib import ExitStack, nullcontext

import numpy as np
import pytest
from PIL import Image

from recipes.planning.stream import Stream
from trainers.datasets import ImageFolder
from trainers.datasets.augmented import augmented_samples
from trainers.datasets.conversion import Conversion, SourceImages, convert, names_of_classes
from trainers.datasets.loader import StreamIterator
from trainers.datasets.loader_workers import LoaderWorkers
from trainers.launch.request import TrainRequest, prepare

pytestmark = pytest.mark.slow  # a minute or two; test_equal_forms.py and test_loader_process.py have small cases
READERS = {
    "folder": "ImageFolder",
    "tar": "TarShards",
    "parquet": "Parquet",
    "arrays": "Arrays",
    "folder_at_url": "ImageFolder",
    "tar_at_url": "TarShards",
    "parquet_at_url": "Parquet",
    "arrays_at_url": "Arrays",
}
NUM_TRAIN, COMPARED = 1_500, 20_000
DATASET = "name: six\nreader: {kind: %s}\nroot: %s\nchannels: 3\nmean: [0.5, 0.5, 0.5]\nstd: [0.25, 0.25, 0.25]\n"
RECIPE = """\
kilobatch: 1
extends: digits/baseline
name: same
dataset: %s.yaml
batch: {global: [{from: 0, size: 60}, {from: 3, size: 180}], norm_span: 12}
epochs: 15
augmentation:
  train: [{kind: RandomResizedCrop, size: 16}, {kind: HorizontalFlip}, {kind: Normalize, with: six}]
  eval: [{kind: Normalize, with: six}]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """1,500 JPEGs of one size in three classes, in each form and at URLs, with a recipe for each."""
    for package in ("pyarrow", "fsspec"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install .[remote]")
    root, random = tmp_path_factory.mktemp("same"), np.random.default_rng(0)
    for split, count in (("train", NUM_TRAIN // 3), ("val", 2)):
        for name in ("ant", "bee", "cow"):
            (root / "folder" / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = random.integers(0, 256, (20, 20, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(root / "folder" / split / name / f"{number}.jpg")
    splits = {split: ImageFolder().open(root / "folder", split) for split in ("train", "eval")}
    source = SourceImages(name="a test", splits=splits, classes=names_of_classes(splits["train"]))
    for form in ("tar", "parquet", "arrays"):
        (root / form).mkdir()
        converted = Conversion(form=form, per_chunk=400)
        convert(source, root / form, converted, workers=1, showing=lambda words, total: nullcontext(lambda count: None))
    for form, kind in READERS.items():
        place = f"file://{root}/{form.removesuffix('_at_url')}" if form.endswith("_at_url") else form
        (root / f"{form}.yaml").write_text(DATASET % (kind, place))
        (root / f"recipe_{form}.yaml").write_text(RECIPE % form)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KILOBATCH_CACHE", str(root / "cache"))
        yield root


def samples_of(folder, form, *, ranks, workers, start=0):
    """(id, checksum of the augmented image) of the samples of a run, from an update on, in the order of the stream."""
    prepared = prepare(TrainRequest(recipe=str(folder / f"recipe_{form}.yaml")), workers=ranks)
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    assert dataset.num_train == NUM_TRAIN
    with ExitStack() as ending:
        iterators = [
            StreamIterator(
                plan=prepared.plan,
                rank=rank,
                stream=stream,
                load=augmented_samples(recipe, dataset, "train"),
                workers=ending.enter_context(LoaderWorkers(workers)),
                trace=True,
            )
            for rank in range(ranks)
        ]
        for iterator in iterators:
            iterator.update = start
        found = []
        while prepared.plan.timeline.samples_at(start) < COMPARED:
            seen = [sample for each in iterators for part in next(each).micro_batches for sample in part.seen]
            seen.sort(key=lambda sample: sample.position)
            assert [sample.position for sample in seen] == list(range(len(seen)))
            found += [(sample.index, sample.digest) for sample in seen]
            start += 1
        return found


@pytest.fixture(scope="module")
def alone(folder):
    """By one rank, which loads by itself, from class folders."""
    found = samples_of(folder, "folder", ranks=1, workers=0)
    assert len(found) >= COMPARED
    assert len({digest for _, digest in found}) > 0.99 * len(found)
    for epoch in range(COMPARED // NUM_TRAIN):
        assert sorted(index for index, _ in found[epoch * NUM_TRAIN :][:NUM_TRAIN]) == list(range(NUM_TRAIN))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("workers", [0, 1, 4])
def test_any_ranks_and_workers_see_the_same(folder, alone, ranks, workers):
    assert samples_of(folder, "folder", ranks=ranks, workers=workers) == alone


@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (5, 4)])
@pytest.mark.parametrize("form", READERS)
def test_every_reader_gives_the_same(folder, alone, form, ranks, workers):
    assert samples_of(folder, form, ranks=ranks, workers=workers) == alone


@pytest.mark.parametrize("start", [38, 77, 100])  # in mid-epoch: 38 updates of 60, then updates of 180 from epoch 3 on
@pytest.mark.parametrize(("ranks", "workers"), [(2, 1), (3, 4)])
def test_a_resumed_run_goes_on_with_the_same(folder, alone, start, ranks, workers):
    before = start * 60 if start < 75 else 75 * 60 + (start - 75) * 180
    assert samples_of(folder, "tar", ranks=ranks, workers=workers, start=start) == alone[before:]
