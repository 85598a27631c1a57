"""ColorJitter and PcaLighting: by hand, against Pillow and colorsys, and over many draws."""

import colorsys
import math
import re

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from recipes.planning.random_bits import draws
from trainers.augmentations import ColorJitter, PcaLighting, colour


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def photo(dtype=np.uint8, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (12, 10, 3)).astype(dtype)


def factor(index, place, *, neutral=1.0, largest=0.4):
    """The factor that a jitter of `largest` draws for its change number `place`."""
    return neutral + largest * (2 * keyed_changes(index)[place] - 1)


def keyed_changes(index):
    return keyed(index).uniforms(8)[4:]


@pytest.mark.parametrize(
    ("field", "place", "enhance"),
    [
        ("brightness", 0, ImageEnhance.Brightness),
        ("contrast", 1, ImageEnhance.Contrast),
        ("saturation", 2, ImageEnhance.Color),
    ],
)
def test_a_single_change_is_pillows(field, place, enhance):
    for index in range(20):
        expected = np.asarray(enhance(Image.fromarray(photo())).enhance(factor(index, place))).astype(int)
        actual = ColorJitter(**{field: 0.4})(photo(), keyed(index)).astype(int)
        # Pillow's mean grey is a whole number, its grey image too, and it cuts off where we round.
        assert np.abs(actual - expected).max() <= 1


def test_hue_is_that_of_colorsys():
    for index in range(5):
        turns = factor(index, 3, neutral=0.0, largest=0.5)
        actual = ColorJitter(hue=0.5)(photo(np.float32), keyed(index))
        expected = [
            colorsys.hsv_to_rgb((hue + turns) % 1, saturation, value)
            for hue, saturation, value in (colorsys.rgb_to_hsv(*map(float, p)) for p in photo().reshape(-1, 3))
        ]
        np.testing.assert_allclose(actual.reshape(-1, 3), expected, atol=2e-3)


def test_a_third_of_the_circle_turns_red_into_green_and_grey_has_no_hue():
    image_HWC = np.array([[[255, 0, 0], [0, 200, 0], [80, 80, 80], [0, 0, 0]]], np.float32)
    turned = colour._turned(image_HWC, 1 / 3)
    np.testing.assert_allclose(turned, [[[0, 255, 0], [0, 0, 200], [80, 80, 80], [0, 0, 0]]], atol=1e-3)


def test_by_hand():
    image_HWC = np.array([[[100], [50]]], np.float32)
    assert colour._brightened(image_HWC, 0.5).ravel().tolist() == [50, 25]
    assert colour._contrasted(image_HWC, 0.5).ravel().tolist() == [87.5, 62.5]  # the mean is 75
    red = np.array([[[100, 0, 0]]], np.float32)
    np.testing.assert_allclose(colour._saturated(red, 0.0), [[[29.9] * 3]], rtol=1e-6)
    np.testing.assert_allclose(colour._saturated(red, 0.5), [[[64.95, 14.95, 14.95]]], rtol=1e-6)


def test_nothing_changes_where_nothing_may():
    np.testing.assert_array_equal(ColorJitter()(photo(), keyed()), photo())


def test_all_orders_come_equally_often_and_the_order_matters():
    jitter, counts = ColorJitter(brightness=1.0, contrast=1.0, saturation=1.0, hue=0.5), {}
    for index in range(4800):
        order = tuple(np.argsort(keyed(index).bits(4), kind="stable").tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.8  # one in a thousand, 23 degrees of freedom
    steps = (colour._brightened, colour._contrasted, colour._saturated, colour._turned)
    largest, neutral = (1.0, 1.0, 1.0, 0.5), (1.0, 1.0, 1.0, 0.0)
    for index in range(10):
        expected = photo(np.float32)
        for place in np.argsort(keyed(index).bits(4), kind="stable"):
            amount = factor(index, place, neutral=neutral[place], largest=largest[place])
            expected = np.clip(steps[place](expected, amount), 0, 255)
        np.testing.assert_allclose(jitter(photo(np.float32), keyed(index)), expected, atol=1e-3)


def test_factors_are_uniform_around_1():
    image_HWC = np.full((1, 1, 1), 100, np.float32)
    actual = [float(ColorJitter(brightness=0.4)(image_HWC, keyed(index))[0, 0, 0]) for index in range(4000)]
    assert min(actual) == pytest.approx(60, abs=0.2)
    assert max(actual) == pytest.approx(140, abs=0.2)
    assert np.mean(actual) == pytest.approx(100, abs=4 * 80 / math.sqrt(12 * 4000))


def test_lighting_adds_one_colour_by_hand():
    """The formula of fb.resnet.torch, its numbers written out once more."""
    image_HWC = np.full((2, 3, 3), 128, np.float32)
    lit = PcaLighting(std=0.1)(image_HWC, keyed(4))
    a, b, c = 0.1 * keyed(4).normals(3)
    red = -0.5675 * 0.2175 * a + 0.7192 * 0.0188 * b + 0.4009 * 0.0045 * c
    green = -0.5808 * 0.2175 * a - 0.0045 * 0.0188 * b - 0.8140 * 0.0045 * c
    blue = -0.5836 * 0.2175 * a - 0.6948 * 0.0188 * b + 0.4203 * 0.0045 * c
    np.testing.assert_allclose(lit, np.broadcast_to(128 + 255 * np.array([red, green, blue]), (2, 3, 3)), atol=1e-4)


def test_lighting_is_nearly_grey_and_has_its_deviation():
    image_HWC = np.full((1, 1, 3), 128, np.float32)
    noise = np.array([PcaLighting(std=0.1)(image_HWC, keyed(index))[0, 0] - 128 for index in range(4000)])
    assert np.corrcoef(noise.T).min() > 0.97  # with the transposed eigenvectors green falls where red rises: -0.99
    expected = 25.5 * math.sqrt((0.5675 * 0.2175) ** 2 + (0.7192 * 0.0188) ** 2 + (0.4009 * 0.0045) ** 2)
    assert noise[:, 0].std() == pytest.approx(expected, rel=4 / math.sqrt(2 * 4000))
    assert noise.mean(0) == pytest.approx([0, 0, 0], abs=4 * expected / math.sqrt(4000))


def test_no_lighting_without_deviation():
    np.testing.assert_array_equal(PcaLighting(std=0.0)(photo(), keyed()), photo())


def test_colour_of_one_channel_is_refused():
    grey_HWC = photo()[:, :, :1]
    with pytest.raises(ValueError, match=re.escape("ColorJitter.hue must be 0 for images of 1 channel, got 0.1")):
        ColorJitter(hue=0.1)(grey_HWC, keyed())
    with pytest.raises(ValueError, match="PcaLighting needs images of red, green and blue, these have 1 channels"):
        PcaLighting()(grey_HWC, keyed())
    assert ColorJitter(brightness=0.4, contrast=0.4)(grey_HWC, keyed()).shape == grey_HWC.shape
