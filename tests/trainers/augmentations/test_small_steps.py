"""RandomCrop, HorizontalFlip, Resize, CenterCrop and Normalize, each by hand."""

import math
import re

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.augmentations import CenterCrop, HorizontalFlip, Normalize, RandomCrop, Resize
from trainers.augmentations.crop import resampled


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def numbered(height, width, channels=1):
    """An image whose pixels are all different and above 0."""
    return np.arange(1, height * width * channels + 1, dtype=np.uint8).reshape(height, width, channels)


def test_random_crop_takes_every_place_equally_often():
    image_HWC = numbered(4, 5)
    counts = {}
    for index in range(3000):
        crop = RandomCrop(size=3)(image_HWC, keyed(index))
        counts[int(crop[0, 0, 0])] = counts.get(int(crop[0, 0, 0]), 0) + 1
        np.testing.assert_array_equal(crop[:, 1:] - crop[:, :-1], 1)
    assert sorted(counts) == [1, 2, 3, 6, 7, 8]
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5  # one in a thousand, 5 degrees of freedom


def test_random_crop_by_hand():
    u = keyed(3).uniforms(2)
    top, left = int(u[0] * 3), int(u[1] * 3)
    padded = np.pad(numbered(8, 8), ((1, 1), (1, 1), (0, 0)))
    np.testing.assert_array_equal(
        RandomCrop(size=8, padding=1)(numbered(8, 8), keyed(3)), padded[top : top + 8, left : left + 8]
    )


def test_random_crop_pads_with_zeros():
    crop = RandomCrop(size=6, padding=2)(numbered(2, 2, 3), keyed())
    assert crop.shape == (6, 6, 3)
    assert crop.sum() == numbered(2, 2, 3).sum()
    np.testing.assert_array_equal(crop[2:4, 2:4], numbered(2, 2, 3))


def test_random_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match=re.escape("RandomCrop.size is 9, but the image is 4x8 with a padding of 2")):
        RandomCrop(size=9, padding=2)(numbered(4, 8), keyed())


def test_flip_exchanges_left_and_right():
    assert HorizontalFlip(probability=1)(np.array([[[1], [2], [3]]], np.uint8), keyed()).ravel().tolist() == [3, 2, 1]


@pytest.mark.parametrize("probability", [0.0, 0.2, 0.5, 1.0])
def test_flips_come_with_their_probability(probability):
    flip, image_HWC = HorizontalFlip(probability=probability), np.array([[[1], [2]]], np.uint8)
    share = np.mean([flip(image_HWC, keyed(index))[0, 0, 0] == 2 for index in range(4000)])
    assert share == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 4000))


@pytest.mark.parametrize(
    ("given", "expected"),
    [((4, 8), (6, 12)), ((8, 4), (12, 6)), ((375, 500), (6, 8)), ((4, 5), (6, 8)), ((3, 500), (6, 1000))],
)
def test_resize_keeps_the_shape_and_rounds_the_longer_side(given, expected):
    assert Resize(shorter=6)(np.zeros((*given, 3), np.uint8), keyed()).shape == (*expected, 3)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_resampling_averages_what_it_shrinks(dtype, channels):
    image_HWC = np.random.default_rng(0).integers(0, 256, (64, 64, channels)).astype(dtype)
    small = resampled(image_HWC, height=4, width=4)
    assert small.shape == (4, 4, channels)
    assert small.dtype == dtype
    np.testing.assert_allclose(small.mean((0, 1)), image_HWC.mean((0, 1)), atol=4)
    assert small.std() < 12  # of 74: without antialiasing every pixel would be one of the large image's


def test_resampling_by_hand():
    ramp = np.array([[[0], [100]]], np.float32)
    # The centres of four pixels lie at 1/4, 3/4, 5/4, 7/4 of the old ones, whose centres are 1/2 and 3/2.
    np.testing.assert_allclose(resampled(ramp, height=1, width=4).ravel(), [0, 25, 75, 100], atol=1e-4)


def test_resampling_to_the_same_size_is_nothing():
    image_HWC = numbered(3, 5)
    assert resampled(image_HWC, height=3, width=5) is image_HWC


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_channels_do_not_mix(dtype):
    image_HWC = np.zeros((9, 9, 3), dtype)
    image_HWC[:, :, 1] = 200
    small = resampled(image_HWC, height=4, width=4)
    assert not small[:, :, [0, 2]].any()
    assert (small[:, :, 1] == 200).all()


@pytest.mark.parametrize(("height", "width", "first"), [(4, 4, 6), (5, 5, 7), (2, 2, 1), (3, 6, 3)])
def test_center_crop_by_hand(height, width, first):
    crop = CenterCrop(size=2)(numbered(height, width), keyed())
    assert crop.ravel().tolist() == [first, first + 1, first + width, first + width + 1]


def test_center_crop_larger_than_the_image_is_refused():
    with pytest.raises(ValueError, match=re.escape("CenterCrop.size is 5, but the image is 4x8: put a Resize")):
        CenterCrop(size=5)(numbered(4, 8), keyed())


def test_normalize_by_hand():
    image_HWC = np.array([[[0, 51, 255]]], np.uint8)
    normalized = Normalize(mean=(0.5, 0.2, 0.5), std=(0.5, 0.1, 0.25))(image_HWC, keyed())
    np.testing.assert_allclose(normalized, [[[-1, 0, 2]]], atol=1e-6)
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(
        Normalize(mean=(0.0,) * 3, std=(1.0,) * 3)(image_HWC, keyed()), image_HWC / 255, atol=1e-6
    )


def test_normalize_takes_its_numbers_from_the_data_set_it_names():
    numbers = {"name": "imagenet", "mean": (0.4,), "std": (0.2,)}
    assert Normalize(with_="imagenet").bound(**numbers) == Normalize(with_="imagenet", mean=(0.4,), std=(0.2,))
    own = Normalize(mean=(0.1,), std=(1.0,))
    assert own.bound(**numbers) is own
    with pytest.raises(ValueError, match=re.escape("Normalize.with must be 'imagenet', the data set of the recipe")):
        Normalize(with_="digits").bound(**numbers)
    with pytest.raises(ValueError, match="data set's file has no mean and std"):
        Normalize(with_="imagenet").bound(name="imagenet", mean=None, std=None)


def test_normalize_without_its_numbers_or_with_others_is_refused():
    with pytest.raises(ValueError, match="Normalize has no numbers yet: bind it to the data set 'digits' first"):
        Normalize(with_="digits")(numbered(2, 2), keyed())
    with pytest.raises(ValueError, match=re.escape("Normalize.mean has 1 channels, the image 3")):
        Normalize(mean=(0.5,), std=(0.5,))(numbered(2, 2, 3), keyed())
