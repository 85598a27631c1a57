"""RandomErasing and Cutout: where their holes lie and how large they are."""

import math

import numpy as np
import pytest

from recipes.planning.random_bits import draws
from trainers.augmentations import Cutout, RandomErasing

HEIGHT, WIDTH = 60, 50


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def ones(height=HEIGHT, width=WIDTH):
    return np.ones((height, width, 3), np.uint8)


def holes(augmentation, count):
    """Bounding boxes (top, left, height, width) of what is zero, for `count` fixed keys that erased anything."""
    actual = []
    for index in range(count):
        hole = augmentation(ones(), keyed(index))[:, :, 0] == 0
        rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
        if len(rows):
            box = rows[0], columns[0], len(rows), len(columns)
            assert hole.sum() == box[2] * box[3]
            actual.append(box)
    return np.array(actual)


def test_an_erased_rectangle_by_hand():
    erasing = RandomErasing(probability=1.0, area=(0.1, 0.2), ratio=(0.5, 2.0))
    u = keyed(3).uniforms(5)  # the first decides whether
    area, ratio = (0.1 + 0.1 * u[1]) * HEIGHT * WIDTH, math.exp(math.log(0.5) + 2 * math.log(2) * u[2])
    height, width = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
    top, left = int(u[3] * (HEIGHT - height + 1)), int(u[4] * (WIDTH - width + 1))
    expected = ones()
    expected[top : top + height, left : left + width] = 0
    np.testing.assert_array_equal(erasing(ones(), keyed(3)), expected)


@pytest.mark.parametrize("probability", [0.0, 0.1, 1.0])
def test_holes_come_with_their_probability(probability):
    share = len(holes(RandomErasing(probability=probability), 3000)) / 3000
    assert share == pytest.approx(probability, abs=4 * math.sqrt(probability * (1 - probability) / 3000))


def test_areas_are_uniform_and_the_logarithms_of_the_ratios_too():
    boxes = holes(RandomErasing(probability=1.0, area=(0.05, 0.15), ratio=(0.5, 2.0)), 3000)
    share, logs = boxes[:, 2] * boxes[:, 3] / (HEIGHT * WIDTH), np.log(boxes[:, 2] / boxes[:, 3])
    assert len(boxes) == 3000
    assert share.mean() == pytest.approx(0.1, abs=0.003)
    assert share.min() == pytest.approx(0.05, abs=0.008)
    assert share.max() == pytest.approx(0.15, abs=0.008)  # sides are whole pixels
    assert logs.mean() == pytest.approx(0, abs=0.03)
    assert logs.std() == pytest.approx(2 * math.log(2) / math.sqrt(12), rel=0.05)


def test_holes_reach_all_edges():
    boxes = holes(RandomErasing(probability=1.0, area=(0.1, 0.1), ratio=(1.0, 1.0)), 3000)
    assert set(boxes[:, 2]) == set(boxes[:, 3]) == {17}
    assert (boxes[:, 0].min(), boxes[:, 0].max()) == (0, HEIGHT - 17)
    assert (boxes[:, 1].min(), boxes[:, 1].max()) == (0, WIDTH - 17)


def test_what_never_fits_erases_nothing():
    erasing = RandomErasing(probability=1.0, area=(1.0, 1.0), ratio=(1.0, 1.0))
    assert erasing(ones(), keyed()).all()


def test_cutout_by_hand():
    u = keyed(1).uniforms(2)
    y, x = int(u[0] * HEIGHT), int(u[1] * WIDTH)
    expected = ones()
    expected[max(y - 4, 0) : y + 5, max(x - 4, 0) : x + 5] = 0
    np.testing.assert_array_equal(Cutout(size=9)(ones(), keyed(1)), expected)


def test_every_pixel_is_the_middle_of_a_cutout_equally_often():
    counts = np.zeros((5, 4))
    for index in range(4000):
        counts += Cutout(size=1)(ones(5, 4), keyed(index))[:, :, 0] == 0
    assert counts.sum() == 4000
    assert ((counts - 200) ** 2 / 200).sum() < 43.8  # one in a thousand, 19 degrees of freedom


def test_cutouts_at_the_edge_are_cut_off():
    areas = [int((Cutout(size=10)(ones(), keyed(index))[:, :, 0] == 0).sum()) for index in range(2000)]
    assert max(areas) == 100
    assert min(areas) < 36
    # Of a row of 60 a square of 10 covers 10 - 25 / 60 rows on average: 5 are lost at one end, 4 at the other.
    expected = (10 - 25 / HEIGHT) * (10 - 25 / WIDTH)
    assert np.mean(areas) == pytest.approx(expected, rel=0.02)


def test_a_cutout_larger_than_the_image_leaves_nothing_of_it():
    assert not Cutout(size=200)(ones(), keyed()).any()
