"""Samples that are loaded together are those that are loaded one by one, to the bit."""

import time
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from trainers.augmentations.crop import CenterCrop, RandomCrop
from trainers.augmentations.erasing import Cutout
from trainers.augmentations.horizontal_flip import HorizontalFlip
from trainers.augmentations.normalize import Normalize
from trainers.augmentations.pipeline import Pipeline
from trainers.datasets.augmented import AugmentedSamples, StackedSamples
from trainers.datasets.held_out import ChosenSamples
from trainers.datasets.image_folder import ImageFolder
from trainers.datasets.loader_workers import choose_workers
from trainers.datasets.own_data import OwnSamples
from trainers.datasets.samples import SamplesInMemory
from trainers.runs.errors import UnfitImage

NUMBERS = SimpleNamespace(name="own", mean=None, std=None, subset_of="")
NORMALIZE = Normalize(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
LISTS = {
    "flipped": (RandomCrop(size=12, padding=2), HorizontalFlip(), NORMALIZE),
    "flipped last": (RandomCrop(size=12), NORMALIZE, HorizontalFlip()),
    "divided": (HorizontalFlip(),),
    "nothing": (),
}


def photos(*sizes, dtype=np.uint8):
    draws = np.random.default_rng(0)
    return [((255 * draws.random((size, size, 3))).astype(dtype), number) for number, size in enumerate(sizes)]


def made(samples, parts, *, pixels=False):
    return AugmentedSamples(samples, Pipeline(parts=parts, dataset=NUMBERS, seed=3), "train", pixels)


def both(load, count):
    """What `several` gives, and calls one by one."""
    moved = []
    wanted = [(2, index) for index in reversed(range(count))]
    together = load.several(wanted, None, lambda: moved.append(1))
    assert len(moved) == count
    return together, [load(*each) for each in wanted]


def assert_equal(together, alone):
    assert [label for _, label in together] == [label for _, label in alone]
    for (image, _), (expected, _) in zip(together, alone, strict=True):
        assert image.dtype == expected.dtype == np.float32
        np.testing.assert_array_equal(image, expected, strict=True)


@pytest.mark.parametrize("parts", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("count", [1, 31, 32, 33, 70])
def test_small_images_are_finished_together(parts, count):
    assert_equal(*both(made(photos(*[14] * count), parts), count))


@pytest.mark.parametrize(
    "samples",
    [photos(14, 16, 14), [*photos(14), *photos(14, dtype=np.float32)], photos(14, 90, 14), photos(90, 14, 100)],
    ids=["shapes", "types", "one large", "two large"],
)
def test_images_of_several_kinds_are_the_same_as_one_by_one(samples):
    samples = [(image, number) for number, (image, _) in enumerate(samples)]
    assert_equal(*both(made(samples, LISTS["divided"]), len(samples)))


class Reused:
    """Users' code that returns the same memory each time, as an augmentation and as a data set."""

    def __init__(self):
        self._memory = np.empty((14, 14, 3), np.uint8)

    def __len__(self):
        return 40

    def __call__(self, image_HWC, draws):
        np.copyto(self._memory, 255 - image_HWC)
        return self._memory

    def __getitem__(self, index):
        return self.load(index)

    def load(self, index):
        self._memory[...] = index
        return self._memory, index


def test_memory_that_users_code_uses_again_is_not_shared_by_images():
    count = 40
    assert_equal(*both(made(photos(*[14] * count), (Reused(), NORMALIZE)), count))
    for samples in (OwnSamples(own=Reused(), reader=None, root=None, split="train"), Reused()):  # a class, a reader's
        together, alone = both(made(samples, (NORMALIZE,)), count)
        assert_equal(together, alone)
        assert len({image.tobytes() for image, _ in together}) == count


class InPlace:
    """Users' code that works in the memory that it gets."""

    def __call__(self, image_HWC, draws):
        image_HWC //= 2
        return image_HWC


def test_users_code_may_work_in_place_and_the_data_stay_as_they_are():
    samples = photos(*[14] * 3)
    for image, _ in samples:
        image.flags.writeable = False  # as those of data in memory
    before = [image.copy() for image, _ in samples]
    together, _ = both(made(samples, (InPlace(),)), 3)
    for (image, _), expected in zip(together, reversed(before), strict=True):
        np.testing.assert_array_equal(image, (expected // 2 / np.float32(255)).transpose(2, 0, 1))
    for (image, _), expected in zip(samples, before, strict=True):
        np.testing.assert_array_equal(image, expected)


class Overlay:
    """Users' code that needs a file."""

    def __call__(self, image_HWC, draws):
        return image_HWC + np.fromfile("not-there.bin", np.uint8)


def test_what_users_code_lacks_is_no_fault_of_the_image(tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        Image.fromarray(photos(14)[0][0]).save(tmp_path / split / "a" / "0.png")
    load = made(ImageFolder().open(tmp_path, "train"), (Overlay(),))
    with pytest.raises(FileNotFoundError, match=r"not-there\.bin"):
        load(0, 0)


class Slow(Reused):
    """A class whose `load` waits, so that threads would pay."""

    def load(self, index):
        time.sleep(0.002)
        return super().load(index)


class Willing(Slow):
    threads_pay = True


@pytest.mark.parametrize(("own", "kind"), [(Slow, "processes"), (Willing, "threads")])
def test_threads_load_users_samples_only_where_these_say_so(own, kind):
    loads = [made(OwnSamples(own=own(), reader=None, root=None, split="train"), (NORMALIZE,))] * 2
    how = {"kind": None, "number": None, "threads": 2, "on_gpu": False, "image_size": None}
    assert choose_workers(loads, **how) == (kind, 2)


def test_none_are_none():
    assert made(photos(14), ()).several([], None, lambda: None) == []


def test_pixels_stay_pixels():
    together, alone = both(made(photos(*[14] * 40), LISTS["flipped"], pixels=True), 40)
    assert {pixels.mirrored for pixels, _ in together} == {True, False}
    for (pixels, label), (expected, other) in zip(together, alone, strict=True):
        assert (pixels.mirrored, label) == (expected.mirrored, other)
        np.testing.assert_array_equal(pixels.pixels_HWC, expected.pixels_HWC, strict=True)


ONE_ARRAY = {
    **LISTS,
    "mirrored, then cropped": (HorizontalFlip(), RandomCrop(size=13, padding=1), HorizontalFlip(), NORMALIZE),
    "mirrored, then from the middle": (HorizontalFlip(), CenterCrop(size=11), NORMALIZE, HorizontalFlip()),
    "by the recipe's size": (RandomCrop(size="image_size", padding=3),),
}


@pytest.mark.parametrize("pixels", [False, True])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("parts", ONE_ARRAY.values(), ids=ONE_ARRAY)
def test_samples_of_one_array_are_made_as_arrays(parts, dtype, pixels):
    rng = np.random.default_rng(0)
    images = (255 * rng.random((300, 14, 14, 3))).astype(dtype)
    stored = SamplesInMemory(images_NHWC=images, labels=rng.integers(10, size=300))
    chosen = ChosenSamples(samples=stored, indices=rng.permutation(300)[:290])
    load = made(chosen, parts, pixels=pixels)
    wanted = [(7 * number % 5, int(index)) for number, index in enumerate(rng.permutation(290))]
    together, alone = load.several(wanted, 12, lambda: None), [load(*each, 12) for each in wanted]
    assert isinstance(together, StackedSamples)
    assert load.chunk(12) > 64  # so that a worker makes them so too
    finish = load.pipeline.finish.image
    if pixels:  # a mirror image may be left to `finish`
        together, alone = ([(finish(*image), label) for image, label in each] for each in (together, alone))
    assert_equal(together, alone)


@pytest.mark.parametrize(
    ("parts", "side"),
    [
        ((RandomCrop(size=12), RandomCrop(size=10), NORMALIZE), 14),
        ((NORMALIZE, Cutout(size=4)), 14),
        ((HorizontalFlip(),), 90),
    ],
    ids=["two crops", "another", "large"],
)
def test_other_lists_and_large_images_are_made_one_by_one(parts, side):
    images = np.zeros((64, side, side, 3), np.uint8)
    load = made(SamplesInMemory(images_NHWC=images, labels=np.arange(64)), parts)
    assert isinstance(load.several([(0, index) for index in range(64)], None, lambda: None), list)
    assert load.chunk(None) == 8


def test_a_crop_that_does_not_fit_names_its_sample():
    stored = SamplesInMemory(images_NHWC=np.zeros((70, 8, 8, 3), np.uint8), labels=np.arange(70))
    load = made(stored, LISTS["flipped last"])
    with pytest.raises(UnfitImage, match=r"sample 3: RandomCrop.size is 12, but the image is 8x8"):
        load.several([(0, index) for index in range(3, 70)], None, lambda: None)


class Table(Reused):
    """Users' samples with a method that is named like ours."""

    def where(self, condition):
        raise AssertionError("not ours")


def test_users_samples_are_not_asked_where_they_are():
    assert_equal(*both(made(Table(), (NORMALIZE,)), 80))


def test_a_large_image_is_finished_at_once(monkeypatch):
    load = made(photos(14, 14, 90, 14), LISTS["divided"])
    together, images = [], type(load.pipeline.finish).images
    monkeypatch.setattr(
        type(load.pipeline.finish), "images", lambda self, given: together.append(len(given)) or images(self, given)
    )
    load.several([(0, index) for index in range(4)], None, lambda: None)
    assert together == [3, 1]
