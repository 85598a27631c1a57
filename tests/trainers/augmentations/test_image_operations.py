"""The operations of automatic augmentation by hand, and what RandAugment and TrivialAugment draw of them."""

import re
from collections import Counter
from functools import partial

import numpy as np
import pytest
from PIL import Image

from recipes.planning.random_bits import draws
from trainers.augmentations import RandAugment, TrivialAugment, rand_augment, trivial_augment
from trainers.augmentations import image_operations as operations
from trainers.augmentations.image_operations import Sampling, operated

NEAREST = Sampling(filter_=Image.Resampling.NEAREST, fill=9)
ORDER_OF_RAND_AUGMENT = [
    "auto_contrast equalize invert posterize solarize solarize_add brightness color contrast sharpness rotate shear_x",
    "shear_y translate_x translate_y",
]
ORDER_OF_TRIVIAL_AUGMENT = [
    "identity auto_contrast equalize posterize solarize brightness color contrast sharpness rotate shear_x shear_y",
    "translate_x translate_y",
]


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def photo(dtype=np.uint8, channels=3):
    return np.random.default_rng(0).integers(0, 256, (16, 12, channels)).astype(dtype)


def of(levels, operation, **values):
    """The operation on a grey image of these levels."""
    image_HWC = np.array(levels, np.uint8)[:, :, np.newaxis]
    return operated(image_HWC, [partial(operation, **values)])[:, :, 0].tolist()


def described(operation):
    """Name and values of an operation with its values filled in."""
    inner = getattr(operation, "func", operation)
    values = {key: value for key, value in getattr(operation, "keywords", {}).items() if key != "sampling"}
    return inner.__name__, *values.values()


@pytest.mark.parametrize(
    ("operation", "values", "expected"),
    [
        (operations.identity, {}, [0, 64, 127, 128, 200, 255]),
        (operations.invert, {}, [255, 191, 128, 127, 55, 0]),
        (operations.posterize, {"bits": 1}, [0, 0, 0, 128, 128, 128]),
        (operations.posterize, {"bits": 0}, [0, 0, 0, 0, 0, 0]),
        (operations.posterize, {"bits": 8}, [0, 64, 127, 128, 200, 255]),
        (operations.solarize, {"threshold": 128}, [0, 64, 127, 127, 55, 0]),
        (operations.solarize, {"threshold": 256}, [0, 64, 127, 128, 200, 255]),
        (operations.solarize_add, {"addend": 150}, [150, 214, 255, 128, 200, 255]),
        (operations.brightness, {"factor": 0.5}, [0, 32, 63, 64, 100, 127]),
        (operations.contrast, {"factor": 0.0}, [129, 129, 129, 129, 129, 129]),
        (operations.color, {"factor": 0.1}, [0, 64, 127, 128, 200, 255]),
    ],
)
def test_levels_by_hand(operation, values, expected):
    assert of([[0, 64, 127, 128, 200, 255]], operation, **values) == [expected]


def test_auto_contrast_stretches_each_channel_to_the_whole_range():
    assert of([[100, 110, 120]], operations.auto_contrast) == [[0, 127, 255]]
    stretched = operated(photo() // 4 + 60, [operations.auto_contrast])
    assert stretched.min((0, 1)).tolist() == [0, 0, 0]
    assert stretched.max((0, 1)).tolist() == [255, 255, 255]


def test_equalize_keeps_the_order_of_the_levels_and_spreads_them():
    dark_HWC = np.random.default_rng(1).integers(20, 40, (64, 64, 1)).astype(np.uint8)
    spread = operated(dark_HWC, [operations.equalize])[:, :, 0]
    means = [spread[dark_HWC[:, :, 0] == level] for level in range(20, 40)]
    assert all(level.min() == level.max() for level in means)
    places = [int(level[0]) for level in means]
    assert places == sorted(places)
    np.testing.assert_allclose(np.diff(places), 255 / 19, atol=4)  # levels that come equally often lie equally far


def test_sharpness_of_0_is_smoother_and_of_2_rougher():
    roughness = [
        np.abs(np.diff(operated(photo(), [partial(operations.sharpness, factor=f)]).astype(int), axis=0)).mean()
        for f in (0.0, 1.0, 2.0)
    ]
    assert roughness == sorted(roughness)
    np.testing.assert_array_equal(operated(photo(), [partial(operations.sharpness, factor=1.0)]), photo())


def test_moves_by_hand():
    levels = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert of(levels, operations.translate_x, pixels=1, sampling=NEAREST) == [[2, 3, 9], [5, 6, 9], [8, 9, 9]]
    assert of(levels, operations.translate_y, pixels=-1, sampling=NEAREST) == [[9, 9, 9], [1, 2, 3], [4, 5, 6]]
    assert of(levels, operations.shear_x, share=1, sampling=NEAREST) == [[2, 3, 9], [6, 9, 9], [9, 9, 9]]
    assert of(levels, operations.shear_y, share=1, sampling=NEAREST) == [[4, 8, 9], [7, 9, 9], [9, 9, 9]]
    assert of(levels, operations.rotate, degrees=90, sampling=NEAREST) == np.rot90(levels).tolist()


def test_colours_come_from_outside_in_every_channel():
    moved = operated(photo(), [partial(operations.translate_x, pixels=4, sampling=NEAREST)])
    assert (moved[:, -4:] == 9).all()
    np.testing.assert_array_equal(moved[:, :-4], photo()[:, 4:])


@pytest.mark.parametrize("channels", [1, 3])
def test_float32_is_rounded_to_8_bits_and_stays_float32(channels):
    between = photo(np.float32, channels) * np.float32(0.999)
    result = operated(between, [operations.invert])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, 255 - np.rint(between))
    assert operated(between, []) is between


def test_the_magnitudes_of_rand_augment_by_hand():
    """timm's increasing table at magnitude 9 of 10, 16 x 12 pixels."""
    found = [described(operation) for operation in rand_augment._operations(0.9, -1, NEAREST, 16, 12)]
    assert [name for name, *_ in found] == " ".join(ORDER_OF_RAND_AUGMENT).split()
    values = [value[0] for _, *value in found if value]
    assert values == pytest.approx([1, 26, 99, 0.19, 0.19, 0.19, 0.19, -27, -0.27, -0.27, -4.86, -6.48])


def test_rand_augment_at_its_ends_by_hand():
    weakest = dict(described(operation)[:2] for operation in rand_augment._operations(0.0, 1, NEAREST, 16, 12)[3:])
    assert weakest["posterize"] == 4
    assert weakest["solarize"] == 256
    assert weakest["solarize_add"] == weakest["rotate"] == 0
    assert weakest["color"] == 1
    strongest = dict(described(operation)[:2] for operation in rand_augment._operations(1.0, -1, NEAREST, 16, 12)[3:])
    assert strongest["posterize"] == strongest["solarize"] == 0
    assert strongest["contrast"] == pytest.approx(0.1)


def test_the_magnitudes_of_trivial_augment_by_hand():
    found = [described(operation) for operation in trivial_augment._operations(0.5, 1)]
    assert [name for name, *_ in found] == " ".join(ORDER_OF_TRIVIAL_AUGMENT).split()
    values = [value[0] for _, *value in found if value]
    assert values == pytest.approx([5, 127.5, 1.495, 1.495, 1.495, 1.495, 67.5, 0.495, 0.495, 16, 16])
    strongest = [described(operation) for operation in trivial_augment._operations(1.0, -1)]
    assert strongest[3:5] == [("posterize", 2), ("solarize", 0)]
    assert strongest[-1] == ("translate_y", -32)


def test_rand_augment_does_what_it_draws():
    augment = RandAugment(num_ops=2, magnitude=6, std=0.5)
    for index in range(40):
        stream, expected = keyed(index), photo()
        for _ in range(2):
            done, z = stream.uniform() < 0.5, float(stream.normals(1)[0])
            sign, filter_ = 2 * stream.integers(2) - 1, stream.integers(2)
            sampling = Sampling(filter_=(Image.Resampling.BILINEAR, Image.Resampling.BICUBIC)[filter_], fill=128)
            known = rand_augment._operations(0.6 + 0.05 * z, sign, sampling, 16, 12)
            operation = known[stream.integers(15)]
            expected = operated(expected, [operation]) if done else expected
        np.testing.assert_array_equal(augment(photo(), keyed(index)), expected)


def test_half_the_operations_of_rand_augment_are_done():
    augment = RandAugment(num_ops=1, magnitude=10)
    changed = np.mean([(augment(photo(), keyed(index)) != photo()).any() for index in range(1000)])
    assert 0.42 < changed < 0.55  # of operations on noise some change nothing


def test_trivial_augment_draws_operations_and_magnitudes_uniformly():
    drawn = Counter()
    for index in range(6200):
        stream = keyed(index)
        drawn[stream.integers(31), stream.integers(2), stream.integers(14)] += 1
    for axis, number in enumerate((31, 2, 14)):
        counts = Counter()
        for key, count in drawn.items():
            counts[key[axis]] += count
        assert sorted(counts) == list(range(number))
        expected = 6200 / number
        assert sum((count - expected) ** 2 / expected for count in counts.values()) < 59.7  # one in 1000 of 30 degrees
    for index in range(40):
        stream = keyed(index)
        known = trivial_augment._operations(stream.integers(31) / 30, 2 * stream.integers(2) - 1)
        expected = operated(photo(), [known[stream.integers(14)]])
        np.testing.assert_array_equal(TrivialAugment()(photo(), keyed(index)), expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_ops": 0}, "RandAugment.num_ops must be a whole number >= 1, got 0"),
        ({"magnitude": 11}, "RandAugment.magnitude must be <= 10, got 11"),
        ({"std": -0.5}, "RandAugment.std must be >= 0, got -0.5"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        RandAugment(**fields)


def test_images_of_two_channels_are_refused():
    with pytest.raises(ValueError, match="TrivialAugment needs images of 1 or 3 channels, these have 2: remove it"):
        TrivialAugment()(photo(channels=2), keyed())
