"""What a GPU makes of pixels is bit for bit what the pipeline makes of them on the CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from trainers.augmentations import HorizontalFlip, Normalize, RandomCrop, RandomErasing, RandomResizedCrop
from trainers.augmentations.pipeline import Pipeline
from trainers.kernels.cuda import images

NORMALIZE = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
LISTS = {
    "published": (RandomResizedCrop(size=9), HorizontalFlip(), NORMALIZE),
    "not normalised": (RandomCrop(size=11, padding=1), HorizontalFlip()),
    "mirrored last": (NORMALIZE, HorizontalFlip()),
    "a hole last": (HorizontalFlip(), NORMALIZE, RandomErasing()),
    "nothing": (),
}


def from_device(array):
    return np.asarray(array.get() if hasattr(array, "get") else array)


def rounded(images, kind):
    dtype = pytest.importorskip("ml_dtypes").bfloat16 if kind == "E" else np.dtype(kind)
    return images.astype(dtype)


def finished(device, pixels, mirrored, numbers, kind, *, channels_first=False):
    arrays = [device.xp.asarray(np.ascontiguousarray(array)) for array in (pixels, mirrored, *numbers)]
    dtype = rounded(np.zeros(0), kind).dtype
    actual = images.finished(*arrays, channels_first=channels_first, dtype=dtype)
    whole = images.whole_pixels(actual)
    if actual.shape[1] == 3 and kind != "d":
        assert whole.shape == (*actual.shape[:1], *actual.shape[2:], 16 // actual.itemsize)
        assert whole.flags.c_contiguous
        assert not from_device(whole)[..., 3:].any()
        again = images.copied(actual)
        np.testing.assert_array_equal(from_device(images.whole_pixels(again)), from_device(whole))
        np.testing.assert_array_equal(from_device(again), from_device(actual))
        assert images.whole_pixels(device.xp.ascontiguousarray(actual)) is None
    else:
        assert whole is None
        assert actual.transpose(0, 2, 3, 1).flags.c_contiguous  # there: CuPy's copies for the host are in C order
    return from_device(actual)


@pytest.mark.parametrize("parts", LISTS.values(), ids=LISTS)
@pytest.mark.parametrize("given", [np.uint8, np.float32])
def test_the_end_of_a_pipeline_is_that_of_the_cpu(cuda, kind, parts, given):
    random = np.random.default_rng(3)
    photos = random.uniform(0, 255.99, (7, 13, 10, 3)).astype(given)
    pipeline = Pipeline(parts=parts, dataset=SimpleNamespace(name="", mean=None, std=None, subset_of=""), seed=1)
    expected = np.stack([pipeline(photo, epoch=2, index=index) for index, photo in enumerate(photos)])
    made = [pipeline.pixels(photo, epoch=2, index=index) for index, photo in enumerate(photos)]
    pixels, mirrored = (np.stack(each) for each in zip(*made, strict=True))
    assert pixels.dtype == (np.float32 if RandomErasing() in parts else given)
    assert (0 < mirrored.sum() < 7) == (HorizontalFlip() in parts[-2:])
    actual = finished(cuda, pixels, mirrored.astype(np.uint8), pipeline.finish.shift_and_scale(3), kind)
    np.testing.assert_array_equal(actual, rounded(expected, kind))


@pytest.mark.parametrize("shape", [(3, 1, 5, 7), (2, 3, 4, 300), (1, 5, 1, 1)])
def test_images_that_are_whole_are_rounded_and_laid_out_anew(cuda, kind, shape):
    images = np.random.default_rng(4).normal(size=shape).astype(np.float32)
    images.flat[0], count = -0.0, shape[1]
    identity = np.zeros(count, np.float32), np.ones(count, np.float32)
    actual = finished(cuda, images, np.zeros(shape[0], np.uint8), identity, kind, channels_first=True)
    np.testing.assert_array_equal(actual, rounded(images, kind))
    assert np.signbit(actual.flat[0])
