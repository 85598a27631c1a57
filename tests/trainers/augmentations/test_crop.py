"""RandomCrop, RandomResizedCrop, Resize and CenterCrop, each by hand, and where crops lie."""

import math
import re

import numpy as np
import pytest
from PIL import Image

from recipes.planning.random_bits import draws
from trainers.augmentations import CenterCrop, RandomCrop, RandomResizedCrop, Resize
from trainers.augmentations.decoders import resampled, use

HEIGHT, WIDTH = 120, 100
GOLDEN = [(36, 219, 256, 193), (143, 69, 151, 136), (64, 55, 300, 295), (59, 145, 269, 301), (65, 130, 196, 179)]


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def numbered(height, width, channels=1):
    """An image whose pixels are all different and above 0."""
    return np.arange(1, height * width * channels + 1, dtype=np.uint8).reshape(height, width, channels)


def rectangles(crop, count, *, height=HEIGHT, width=WIDTH):
    """One crop for each of `count` fixed keys: (count, 4) of top, left, height, width."""
    actual = [crop.rectangle(height, width, keyed(index)) for index in range(count)]
    return np.array(actual)


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


@pytest.mark.parametrize(
    ("given", "expected"),
    [((4, 8), (6, 12)), ((8, 4), (12, 6)), ((375, 500), (6, 8)), ((4, 5), (6, 7)), ((3, 500), (6, 1000))],
)
def test_resize_keeps_the_shape_and_rounds_the_longer_side_down(given, expected):
    assert Resize(shorter=6)(np.zeros((*given, 3), np.uint8), keyed()).shape == (*expected, 3)


@pytest.mark.parametrize("shorter", [160, 232, 256])
def test_resize_gives_the_size_that_torchvision_gives(shorter):
    random = np.random.default_rng(0)
    sizes = [(257, 273), (273, 257), *random.integers(100, 900, (200, 2)).tolist()]
    for height, width in sizes:
        long = int(shorter * max(height, width) / min(height, width))  # torchvision 0.19, _compute_resized_output_size
        expected = (long, shorter) if height > width else (shorter, long) if width > height else (shorter, shorter)
        assert Resize(shorter=shorter)(np.zeros((height, width, 1), np.uint8), keyed()).shape[:2] == expected


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
    actual = [crop.rectangle(375, 500, draws(0, "augmentation", epoch, 7, 0)) for epoch in range(5)]
    assert actual == GOLDEN


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
    actual, _ = np.histogram(height * width / 1e6, bins=num_bins, range=(0.08, 0.6))
    expected = count / num_bins
    chi_square = ((actual - expected) ** 2 / expected).sum()
    assert chi_square < 37.7  # one in a thousand lies above, 15 degrees of freedom; the keys are fixed
    assert actual.sum() >= count * 0.999


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
    assert crop.rectangle(10, 21, keyed()) == (0, 5, 10, 10)
    assert crop.rectangle(21, 10, keyed()) == (5, 0, 10, 10)


def test_an_image_of_one_pixel_is_served():
    image_HWC = np.full((1, 1, 3), 9, np.uint8)
    assert (RandomResizedCrop(size=4)(image_HWC, keyed()) == 9).all()


def test_the_image_is_the_crop_resampled():
    image_HWC = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    crop = RandomResizedCrop(size=16)
    top, left, height, width = crop.rectangle(HEIGHT, WIDTH, draws(0, "augmentation", 1, 2, 0))
    expected = resampled(image_HWC[top : top + height, left : left + width], height=16, width=16)
    np.testing.assert_array_equal(crop(image_HWC, draws(0, "augmentation", 1, 2, 0)), expected)


def test_log_uniform_ratios_are_even_in_the_logarithm_and_of_numpys_exp():
    """Between 1/2 and 2 half the crops are wide, and a quarter are wider than the root of 2."""
    crop = RandomResizedCrop(size=8, area=(0.25, 0.25), ratio=(0.5, 2.0), ratio_draw="log_uniform")
    for index in range(200):
        u = keyed(index).uniforms(2)
        area, ratio = 0.25 * 1000 * 1000, 0.5 * np.exp(u[1] * np.log(4.0))
        _, _, height, width = crop.rectangle(1000, 1000, keyed(index))
        assert (height, width) == (round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio)))
    shapes = rectangles(crop, 2000, height=1000, width=1000)[:, 2:]
    logs = np.log2(shapes[:, 1] / shapes[:, 0])
    for below, share in ((-0.5, 0.25), (0.0, 0.5), (0.5, 0.75)):
        assert np.mean(logs < below) == pytest.approx(share, abs=0.05)


def test_bicubic_resampling_is_pillows_with_every_decoder():
    image_HWC = np.random.RandomState(0).randint(0, 256, (50, 40, 3)).astype(np.uint8)
    rows = Image.fromarray(image_HWC).resize((20, 50), Image.Resampling.BICUBIC)
    expected = np.asarray(rows.resize((20, 25), Image.Resampling.BICUBIC))
    for kind in ("turbo", "pillow"):
        use(kind)
        try:
            actual = Resize(shorter=20, interpolation="bicubic")(image_HWC, keyed())
        finally:
            use(None)
        np.testing.assert_array_equal(actual, expected)
    assert (Resize(shorter=20)(image_HWC, keyed()) != expected).any()


def test_a_bicubic_crop_passes_beyond_a_step_and_is_clipped():
    """Bicubic interpolation overshoots at an edge, bilinear does not."""
    image_HWC = np.full((8, 8, 1), 100, np.uint8)
    image_HWC[:, 4:] = 200
    whole = {"size": 16, "area": (1.0, 1.0), "ratio": (1.0, 1.0)}
    crops = [RandomResizedCrop(**whole, interpolation=how)(image_HWC, keyed()) for how in ("bicubic", "bilinear")]
    smooth, plain = [(int(crop.min()), int(crop.max())) for crop in crops]
    assert smooth[0] < 100 < 200 < smooth[1]
    assert plain == (100, 200)
