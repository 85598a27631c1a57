"""Workers load what is asked for in its order, ahead and within bounds; what goes wrong is raised where it is taken."""

import gc
import sys
import threading
import time

import numpy as np
import pytest

from trainers.augmentations.pipeline import Pixels
from trainers.datasets.augmented import StackedSamples
from trainers.datasets.loader_workers import AHEAD_BYTES, LoadedAhead, LoaderWorkers, Loading
from trainers.runs.errors import RankFailed


def image(epoch, index):
    return np.full((1, 2, 2), index, np.float32), 10 * epoch


def pair(images, labels):
    return images, labels


class OneByOne:
    """Samples as a function gives them."""

    def __init__(self, load):
        self._load = load

    def chunk(self, image_size):
        return 8

    def several(self, wanted, image_size, moved):
        return [self._load(epoch, index) for epoch, index in wanted]


def loading(load=image, count=20, finish=pair, first=0):
    wanted = [(1, first + index) for index in range(count)]
    return Loading(OneByOne(load), wanted, key="augmentation.train", finish=finish)


def result(workers, made):
    workers.begin(made)
    return workers.result(made)


@pytest.fixture(params=[0, 1, 3])
def workers(request):
    with LoaderWorkers(request.param) as made:
        yield made


def test_samples_come_in_their_order(workers):
    images, labels = result(workers, loading())
    assert images[:, 0, 0, 0].tolist() == list(range(20))
    assert labels.tolist() == [10] * 20
    assert labels.dtype == np.int32


def test_the_first_sample_that_fails_says_why(workers):
    def load(epoch, index):
        if index in (9, 17):
            raise ValueError(f"sample {index}")
        return image(epoch, index)

    with pytest.raises(ValueError, match="sample 9"):
        result(workers, loading(load))
    assert len(result(workers, loading())[0]) == 20, "the workers go on"


def test_an_exit_in_a_users_code_is_raised_too(workers):
    def load(epoch, index):
        raise SystemExit("enough")

    with pytest.raises(SystemExit, match="enough"):
        result(workers, loading(load))


def test_images_of_different_sizes_are_refused_with_a_way_out(workers):
    def load(epoch, index):
        return np.zeros((1, 8 + (index > 10) + (index > 15), 8), np.float32), 0

    message = (
        r"images of \(1, 8, 8\) and \(1, 9, 8\), .*; bring all to one size in augmentation.train: RandomResizedCrop"
    )
    with pytest.raises(RankFailed, match=message):
        result(workers, loading(load))


def test_pixels_of_bytes_and_of_floats_become_one_array(workers):
    def load(epoch, index):
        return Pixels(np.full((2, 2, 1), index + index % 2 / 2, np.float32 if index % 2 else np.uint8), index > 4), 0

    (pixels, mirrored), _ = result(workers, loading(load))
    assert pixels.dtype == np.float32
    assert pixels[:, 1, 1, 0].tolist() == [index + index % 2 / 2 for index in range(20)]
    assert mirrored.tolist() == [index > 4 for index in range(20)]


@pytest.mark.parametrize("room", [None, lambda shape, dtype: np.full(shape, 9, dtype)])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("of_pixels", [False, True])
def test_samples_that_come_as_arrays_are_put_in_their_place(of_pixels, whole, room):
    images, mirrored = np.arange(80, dtype=np.uint8).reshape(20, 2, 2, 1), np.arange(20) % 2 == 0
    stacks = [slice(0, 20)] if whole else [slice(0, 8), slice(8, 20)]
    made = Loading(None, [(0, index) for index in range(20)], key="", finish=pair, **({"room": room} if room else {}))
    for some in stacks:
        loaded = Pixels(images[some], mirrored[some]) if of_pixels else images[some]
        stacked = StackedSamples(loaded, np.arange(some.start, some.stop))
        made.run(some.start, some.stop, lambda *_, stacked=stacked: stacked)
    got, labels = made.result()
    assert labels.tolist() == list(range(20))
    assert labels.dtype == np.int32
    assert made.sample_bytes == 4
    np.testing.assert_array_equal(got.pixels_HWC if of_pixels else got, images, strict=True)
    if of_pixels:
        np.testing.assert_array_equal(got.mirrored, mirrored.astype(np.uint8), strict=True)


def test_pixels_of_different_sizes_are_refused_too(workers):
    def load(epoch, index):
        return Pixels(np.zeros((8 + (index > 10), 8, 1), np.uint8), False), 0

    with pytest.raises(RankFailed, match=r"images of \(8, 8, 1\) and \(9, 8, 1\), height, width and channels, cannot"):
        result(workers, loading(load))


def test_several_workers_load_a_batch_at_once():
    both = threading.Barrier(2)

    def load(epoch, index):
        if index in (0, 8):
            both.wait(timeout=20)
        return image(epoch, index)

    with LoaderWorkers(2) as workers:
        result(workers, loading(load))


def ahead(workers, load=image, count=8):
    def made(key):
        return loading(load, count, first=count * key)

    return LoadedAhead(workers, made, lambda key: iter(range(key + 1, 1000)))


def wait_until(holds):
    until = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.001)


def test_batches_are_ready_before_they_are_asked_for_but_not_too_many():
    seen = set()

    def load(epoch, index):
        seen.add(index)
        return image(epoch, index)

    with LoaderWorkers(2) as workers:
        batches = ahead(workers, load)
        assert batches.take(0)[0][0, 0, 0, 0] == 0
        wait_until(lambda: len(seen) == 16)  # one more, while the size of images is not known
        batches.take(1)
        wait_until(lambda: len(seen) == 80)
        time.sleep(0.05)
        assert len(seen) == 80, "64 ahead for two workers"


def test_large_images_are_not_loaded_far_ahead():
    side = int((AHEAD_BYTES / 8 / 4) ** 0.5) + 1  # eight images fill it
    seen = set()

    def load(epoch, index):
        seen.add(index)
        return np.zeros((1, side, side), np.float32), 0

    with LoaderWorkers(1) as workers:
        batches = ahead(workers, load)
        batches.take(0)
        batches.take(1)
        time.sleep(0.05)
        assert len(seen) <= 24


def test_another_order_is_loaded_anew(workers):
    batches = ahead(workers)
    for key in (0, 1, 2, 1, 2, 5, 6, 0):
        assert batches.take(key)[0][0, 0, 0, 0] == 8 * key
    batches.drop()
    assert batches.take(3)[0][0, 0, 0, 0] == 24


def test_an_error_in_a_later_batch_comes_when_that_batch_is_taken():
    def load(epoch, index):
        if index == 20:
            raise ValueError(f"sample {index}")
        return image(epoch, index)

    with LoaderWorkers(2) as workers:
        batches = ahead(workers, load)
        batches.take(0)
        batches.take(1)
        with pytest.raises(ValueError, match="sample 20"):
            batches.take(2)
        batches.take(3)


def test_threads_end_with_their_workers():
    before = threading.active_count()
    workers = LoaderWorkers(3)
    workers.begin(loading())
    del workers
    gc.collect()
    assert threading.active_count() == before


def test_workers_end_at_any_time_while_they_take_the_last_samples():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            workers = LoaderWorkers(2)
            dropped = loading(count=8000)
            dropped.dropped = True  # taken as fast as can be
            workers.begin(dropped)
            workers.close()
    finally:
        sys.setswitchinterval(interval)
