"""Samples are loaded by as many threads as a rank has, in their order; the iterator makes micro-batches of them."""

import threading

import numpy as np
import pytest
from PIL import Image

from recipes.planning.stream import Stream
from trainers.datasets.loader import StreamIterator, load_all, stacked
from trainers.kernels import threads as pool
from trainers.launch.request import TrainRequest, prepare
from trainers.runs.errors import RankFailed
from trainers.training.build import build


@pytest.fixture
def given(monkeypatch):
    """Gives a rank so many threads."""
    kept = pool.num_threads, pool._pool

    def give(count):
        for cached in kept:
            cached.cache_clear()
        monkeypatch.setenv("OMP_NUM_THREADS", str(count))

    yield give
    for cached in kept:
        cached.cache_clear()


@pytest.mark.parametrize("count", [0, 1, 2, 7])
@pytest.mark.parametrize("threads", [False, True])
def test_samples_come_in_their_order(given, count, threads):
    given(3)
    samples = [(epoch, 10 * epoch) for epoch in range(count)]
    loaded = load_all(lambda epoch, index: (index, epoch), samples, threads=threads)
    assert loaded == [(10 * epoch, epoch) for epoch in range(count)]


def test_threads_load_at_once(given):
    given(2)
    both = threading.Barrier(2)
    load_all(lambda epoch, index: both.wait(timeout=20), [(0, 0), (0, 1)], threads=True)


def test_one_thread_loads_where_more_do_not_pay(given):
    given(3)
    names = load_all(lambda epoch, index: threading.current_thread(), [(0, 0), (0, 1), (0, 2)], threads=False)
    assert set(names) == {threading.current_thread()}


@pytest.mark.parametrize("bad", [0, 3])
def test_what_one_of_them_raises_is_raised(given, bad):
    given(2)

    def load(epoch, index):
        if index == bad:
            raise ValueError(f"sample {index}")

    with pytest.raises(ValueError, match=f"sample {bad}"):
        load_all(load, [(0, index) for index in range(4)], threads=True)


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
        "kilobatch: 1\nextends: digits/baseline\ndataset: photos.yaml\nbatch: {global: 16, norm_span: 8}\nepochs: 4\n"
        "augmentation:\n  train: [{kind: RandomResizedCrop, size: 16}, {kind: HorizontalFlip}, {kind: Normalize, with: "
        "photos}]\n  eval: [{kind: Resize, shorter: 16}, {kind: CenterCrop, size: 16}]\n"
    )
    return str(recipe)


def test_a_run_sees_the_same_images_however_many_threads_load_them(given, photos):
    prepared = prepare(TrainRequest(recipe=photos, micro_batch_size=8), workers=1)
    recipe, dataset = prepared.opened.recipe, prepared.opened.dataset
    parts = build(recipe, dataset)
    assert parts.threads_load
    seen = {}
    for count in (1, 3):
        given(count)
        stream = Stream(seed=recipe.seed, num_samples=dataset.num_train)
        how = {"load": parts.load_train, "threads_load": True, "trace": True}
        iterator = StreamIterator(plan=prepared.plan, rank=0, stream=stream, **how)
        shares = [next(iterator) for _ in range(3)]
        images = [part.images_NCHW for share in shares for part in share.micro_batches]
        seen[count] = np.concatenate(images), [share.seen for share in shares]
    np.testing.assert_array_equal(seen[1][0], seen[3][0])
    assert seen[1][1] == seen[3][1]


def test_for_digits_threads_do_not_pay():
    prepared = prepare(TrainRequest(recipe="digits/baseline"), workers=1)
    assert not build(prepared.opened.recipe, prepared.opened.dataset).threads_load


def test_images_of_different_sizes_are_refused_with_a_way_out():
    images = [np.zeros((1, side, 8), np.float32) for side in (8, 8, 9, 10)]
    assert stacked(images[:2], "augmentation.eval").shape == (2, 1, 8, 8)
    message = (
        r"images of \(1, 8, 8\) and \(1, 9, 8\), .*; bring all to one size in augmentation.eval: RandomResizedCrop"
    )
    with pytest.raises(RankFailed, match=message):
        stacked(images, "augmentation.eval")


def test_an_update_that_reaches_another_epoch_is_marked():
    """Of 1,500 samples: 15 updates of 96 are too few and 16 enough; then come 8 of 192 an epoch."""
    plan = prepare(TrainRequest(recipe="digits/ramp"), workers=1).plan
    iterator = StreamIterator(plan=plan, rank=0, stream=Stream(seed=0, num_samples=1500), load=None)
    assert not iterator.is_new_epoch, "nothing was done yet"
    reached = [share.update for share in iterator if iterator.is_new_epoch]
    assert reached[:3] == [15, 23, 31]
    assert len(reached) == int(plan.timeline.num_samples / 1500)
