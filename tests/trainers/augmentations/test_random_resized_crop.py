import math

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.augmentations import RandomResizedCrop
from trainers.augmentations.crop import resampled

HEIGHT, WIDTH = 120, 100
GOLDEN = [(36, 219, 256, 193), (143, 69, 151, 136), (64, 55, 300, 295), (59, 145, 269, 301), (65, 130, 196, 179)]


def rectangles(crop, count, *, height=HEIGHT, width=WIDTH):
    """One crop for each of `count` fixed keys: (count, 4) of top, left, height, width."""
    found = [crop.rectangle(height, width, draws(0, "augmentation", 0, index, 0)) for index in range(count)]
    return np.array(found)


def test_a_crop_that_fits_at_once_by_hand():
    u = draws(0, "augmentation", 3, 7, 0).uniforms(5)
    area, ratio = (0.25 + 0.25 * u[0]) * HEIGHT * WIDTH, 0.9 + 0.2 * u[1]
    sides = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
    height, width = sides[::-1] if u[2] < 0.5 else sides
    top, left = int(u[3] * (HEIGHT - height + 1)), int(u[4] * (WIDTH - width + 1))
    crop = RandomResizedCrop(size=8, area=(0.25, 0.5), ratio=(0.9, 1.1))
    assert crop.rectangle(HEIGHT, WIDTH, draws(0, "augmentation", 3, 7, 0)) == (top, left, height, width)


def test_the_same_keys_give_the_same_crops_on_every_machine():
    crop = RandomResizedCrop(size=224)
    found = [crop.rectangle(375, 500, draws(0, "augmentation", epoch, 7, 0)) for epoch in range(5)]
    assert found == GOLDEN


def test_crops_lie_in_the_image_and_keep_to_area_and_ratio():
    crops = rectangles(RandomResizedCrop(size=8, area=(0.2, 0.4), ratio=(0.8, 1.25)), 2000)
    top, left, height, width = crops.T
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + height <= HEIGHT).all()
    assert (left + width <= WIDTH).all()
    share, ratio = height * width / (HEIGHT * WIDTH), width / height
    assert share.min() == pytest.approx(0.2, abs=0.01)
    assert share.max() == pytest.approx(0.4, abs=0.01)
    assert ratio.min() == pytest.approx(0.8, abs=0.05)
    assert ratio.max() == pytest.approx(1.25, abs=0.05)


def test_areas_are_uniform():
    num_bins, count = 16, 8000
    _, _, height, width = rectangles(RandomResizedCrop(size=8, area=(0.08, 0.6)), count, height=1000, width=1000).T
    found, _ = np.histogram(height * width / 1e6, bins=num_bins, range=(0.08, 0.6))
    expected = count / num_bins
    chi_square = ((found - expected) ** 2 / expected).sum()
    assert chi_square < 37.7  # one in a thousand lies above, 15 degrees of freedom; the keys are fixed
    assert found.sum() >= count * 0.999


def test_shapes_are_exchanged_half_the_time():
    crops = rectangles(RandomResizedCrop(size=8, area=(0.1, 0.1), ratio=(1.2, 1.3)), 4000)
    assert (crops[:, 3] > crops[:, 2]).mean() == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(4000))


def test_places_are_uniform_and_reach_both_ends():
    crops = rectangles(RandomResizedCrop(size=8, area=(0.25, 0.25), ratio=(1.0, 1.0)), 4000)
    assert set(crops[:, 2]) == set(crops[:, 3]) == {55}
    tops, counts = np.unique(crops[:, 0], return_counts=True)
    assert tops.tolist() == list(range(HEIGHT - 55 + 1))
    expected = 4000 / len(tops)
    assert ((counts - expected) ** 2 / expected).sum() < 107.3  # one in a thousand, 65 degrees of freedom


def test_where_nothing_fits_it_is_the_square_in_the_middle():
    crop = RandomResizedCrop(size=8, area=(1.0, 1.0), ratio=(4.0, 4.0))
    assert crop.rectangle(10, 21, draws(0, "augmentation", 0, 0, 0)) == (0, 5, 10, 10)
    assert crop.rectangle(21, 10, draws(0, "augmentation", 0, 0, 0)) == (5, 0, 10, 10)


def test_an_image_of_one_pixel_is_served():
    image_HWC = np.full((1, 1, 3), 9, np.uint8)
    assert (RandomResizedCrop(size=4)(image_HWC, draws(0, "augmentation", 0, 0, 0)) == 9).all()


def test_the_image_is_the_crop_resampled():
    image_HWC = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    crop = RandomResizedCrop(size=16)
    top, left, height, width = crop.rectangle(HEIGHT, WIDTH, draws(0, "augmentation", 1, 2, 0))
    expected = resampled(image_HWC[top : top + height, left : left + width], height=16, width=16)
    np.testing.assert_array_equal(crop(image_HWC, draws(0, "augmentation", 1, 2, 0)), expected)
