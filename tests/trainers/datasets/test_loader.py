"""The iterator gives the same micro-batches, bit by bit, however many workers load them."""

import numpy as np
import pytest
from PIL import Image

from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator
from trainers.datasets.loader_workers import LoaderWorkers
from trainers.launch.request import TrainRequest, prepare
from trainers.training.build import build


@pytest.fixture
def photos(tmp_path):
    """A data set of JPEG files and a recipe for it."""
    random = np.random.RandomState(0)
    for split, number in (("train", 12), ("val", 3)):
        for name in ("cat", "dog"):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for place in range(number):
                Image.fromarray(random.randint(0, 256, (40, 50, 3), np.uint8)).save(folder / f"{place}.jpg")
    (tmp_path / "photos.yaml").write_text(
        "name: photos\nreader: {kind: ImageFolder}\nroot: photos\nchannels: 3\n"
        "mean: [0.5, 0.5, 0.5]\nstd: [0.2, 0.2, 0.2]\n"
    )
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        "kilobatch: 1\nextends: digits/baseline\ndataset: photos.yaml\nbatch: {global: 16, norm_span: 8}\nepochs: 8\n"
        "augmentation:\n  train: [{kind: RandomResizedCrop, size: 16}, {kind: HorizontalFlip}, {kind: Normalize, with: "
        "photos}]\n  eval: [{kind: Resize, shorter: 16}, {kind: CenterCrop, size: 16}, {kind: Normalize, with: "
        "photos}]\n"
    )
    return str(recipe)


def test_an_update_that_reaches_another_epoch_is_marked():
    """Of 1,500 samples: 15 updates of 96 are too few and 16 enough; then come 8 of 192 an epoch."""
    plan = prepare(TrainRequest(recipe="digits/ramp"), workers=1).plan
    iterator = StreamIterator(plan=plan, rank=0, stream=Stream(seed=0, num_samples=1500), load=None)
    assert not iterator.is_new_epoch, "nothing was done yet"
    reached = [share.update for share in iterator if iterator.is_new_epoch]
    assert reached[:3] == [15, 23, 31]
    assert len(reached) == int(plan.timeline.num_samples / 1500)


MIX = "augmentation.mix=[{kind: Mixup, alpha: 1}]"
GROWING = (
    "image_size=[{from: 0, size: 12}, {from: 2, size: 16}]",
    "augmentation={train: [{kind: RandomResizedCrop, size: image_size}, {kind: HorizontalFlip}], eval: []}",
    "model={kind: SmallCNN}",
)


def iterators(prepared, workers, ranks=1):
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    parts = build(recipe, dataset)
    stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
    how = {"plan": prepared.plan, "load": parts.load_train, "mixing": parts.mixing, "trace": True, "workers": workers}
    return [StreamIterator(rank=rank, stream=stream, **how) for rank in range(ranks)]


def seen_by(iterators, updates=10):
    """Ids, images and targets of all ranks, by update."""
    seen = []
    for _ in range(updates):
        batches = [part for iterator in iterators for part in next(iterator).micro_batches]
        batches.sort(key=lambda batch: batch.part.offset)
        arrays = zip(*((batch.indices, batch.images_NCHW, batch.targets) for batch in batches), strict=True)
        seen.append([np.concatenate(each) for each in arrays])
        assert [each.index for batch in batches for each in batch.seen] == seen[-1][0].tolist()
    return seen


def assert_equal(seen, expected):
    for update, other in zip(seen, expected, strict=True):
        for array, wanted in zip(update, other, strict=True):
            np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("overrides", [(), (MIX,), GROWING], ids=["plain", "mixed", "growing"])
def test_batches_are_the_same_for_any_number_of_workers_and_ranks(photos, overrides):
    def prepared(ranks):
        return prepare(TrainRequest(recipe=photos, overrides=overrides, micro_batch_size=8), workers=ranks)

    expected = seen_by(iterators(prepared(1), None))
    for count in (1, 4):
        for ranks in (1, 2, 3, 5):
            with LoaderWorkers(count) as workers:
                assert_equal(seen_by(iterators(prepared(ranks), workers, ranks)), expected)


def test_batches_are_the_same_after_a_resume_and_again_and_a_limit(photos):
    prepared = prepare(TrainRequest(recipe=photos, overrides=(MIX,), micro_batch_size=16), workers=1)
    expected = seen_by(iterators(prepared, None))
    with LoaderWorkers(2) as workers:
        (resumed,) = iterators(prepared, workers)
        resumed.update = 4  # within an epoch
        assert_equal(seen_by([resumed], 2), expected[4:6])
        share = next(resumed)
        next(share.micro_batches)
        again = [part.images_NCHW for part in resumed.again().micro_batches]
        np.testing.assert_array_equal(np.concatenate(again), expected[6][1])
        resumed.limit(8)
        again = [part.images_NCHW for part in resumed.again().micro_batches]
        assert [len(images) for images in again] == [8, 8]
        np.testing.assert_array_equal(np.concatenate(again), expected[6][1])
        assert_equal(seen_by([resumed], 3), expected[7:])


def test_workers_end_with_the_stream(photos):
    prepared = prepare(TrainRequest(recipe=photos, micro_batch_size=8), workers=1)
    with LoaderWorkers(2) as workers:
        (iterator,) = iterators(prepared, workers)
        assert sum(1 for share in iterator for _ in share.micro_batches) == 24


def test_images_are_mixed_up_to_the_update_that_begins_at_the_end_of_augmentation():
    overrides = ("batch={global: 96, norm_span: 32}", "epochs=1", "learning_rate.warmup=null", MIX)
    overrides += ("augmentation.end={at: 5up}",)
    prepared = prepare(TrainRequest(recipe="digits/large_batch", overrides=overrides), workers=1)
    recipe = prepared.opened.recipe
    parts = build(recipe, prepared.opened.dataset)
    iterator = StreamIterator(
        plan=prepared.plan,
        rank=0,
        stream=Stream(seed=recipe.seed, num_samples=prepared.opened.dataset.num_train),
        load=parts.load_train,
        mixing=parts.mixing,
        late=(recipe.augmentation.end.at, parts.load_late),
    )
    mixed = [next(next(iterator).micro_batches).targets.ndim == 2 for _ in range(7)]
    assert mixed == [True] * 5 + [False] * 2
