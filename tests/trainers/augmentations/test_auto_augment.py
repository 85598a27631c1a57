"""The operations of automatic augmentation by hand, and what RandAugment and TrivialAugment draw of them."""

from functools import partial

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from recipes.planning.random_bits import draws
from trainers.augmentations import RandAugment, TrivialAugment, auto_augment
from trainers.augmentations.auto_augment import Sampling, enhanced, operated

NEAREST = Sampling(filter_=Image.Resampling.NEAREST, fill=9)
MOVES = {1: "shear_x", 3: "shear_y", 2: "translate_x", 5: "translate_y"}  # by the number in the matrix that they change
SHARED = "Brightness Color Contrast Sharpness rotated shear_x shear_y translate_x translate_y"
ORDER_OF_RAND_AUGMENT = f"autocontrast equalize invert posterize solarize solarize_add {SHARED}".split()
ORDER_OF_TRIVIAL_AUGMENT = f"identity autocontrast equalize posterize solarize {SHARED}".split()


def keyed(index=0):
    return draws(0, "augmentation", 0, index, 0)


def photo(dtype=np.uint8, channels=3):
    return np.random.default_rng(0).integers(0, 256, (16, 12, channels)).astype(dtype)


def of(levels, operation, **values):
    """The operation on a grey image of these levels."""
    image_HWC = np.array(levels, np.uint8)[:, :, np.newaxis]
    return operated(image_HWC, [partial(operation, **values)])[:, :, 0].tolist()


def described(operation):
    """Name and value of an operation with its values filled in."""
    values = {key: value for key, value in getattr(operation, "keywords", {}).items() if key != "sampling"}
    if "matrix" in values:
        change = np.array(values["matrix"]) - (1, 0, 0, 0, 1, 0)
        number = int(np.abs(change).argmax())
        return MOVES.get(number), change[number]
    inner = values.pop("enhancement", getattr(operation, "func", operation))
    return inner.__name__, *values.values()


@pytest.mark.parametrize(
    ("operation", "values", "expected"),
    [
        (auto_augment.identity, {}, [0, 64, 127, 128, 200, 255]),
        (auto_augment.posterize, {"bits": 1}, [0, 0, 0, 128, 128, 128]),
        (auto_augment.posterize, {"bits": 0}, [0, 0, 0, 0, 0, 0]),
        (auto_augment.posterize, {"bits": 8}, [0, 64, 127, 128, 200, 255]),
        (ImageOps.solarize, {"threshold": 128}, [0, 64, 127, 127, 55, 0]),
        (ImageOps.solarize, {"threshold": 256}, [0, 64, 127, 128, 200, 255]),
        (auto_augment.solarize_add, {"addend": 150}, [150, 214, 255, 128, 200, 255]),
        (enhanced, {"enhancement": ImageEnhance.Brightness, "factor": 0.5}, [0, 32, 63, 64, 100, 127]),
        (enhanced, {"enhancement": ImageEnhance.Contrast, "factor": 0.0}, [129, 129, 129, 129, 129, 129]),
        (enhanced, {"enhancement": ImageEnhance.Color, "factor": 0.1}, [0, 64, 127, 128, 200, 255]),
    ],
)
def test_levels_by_hand(operation, values, expected):
    assert of([[0, 64, 127, 128, 200, 255]], operation, **values) == [expected]


def test_moves_by_hand():
    levels = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    rotate, shear_x, shear_y, _, _ = auto_augment._moves(NEAREST, degrees=90, shear=1, x=0, y=0)
    _, _, _, translate_x, translate_y = auto_augment._moves(NEAREST, degrees=0, shear=0, x=1, y=-1)
    assert of(levels, translate_x) == [[2, 3, 9], [5, 6, 9], [8, 9, 9]]
    assert of(levels, translate_y) == [[9, 9, 9], [1, 2, 3], [4, 5, 6]]
    assert of(levels, shear_x) == [[2, 3, 9], [6, 9, 9], [9, 9, 9]]
    assert of(levels, shear_y) == [[4, 8, 9], [7, 9, 9], [9, 9, 9]]
    assert of(levels, rotate) == np.rot90(levels).tolist()


def test_colours_come_from_outside_in_every_channel():
    moved = operated(photo(), [auto_augment._moves(NEAREST, degrees=0, shear=0, x=4, y=0)[3]])
    assert (moved[:, -4:] == 9).all()
    np.testing.assert_array_equal(moved[:, :-4], photo()[:, 4:])


@pytest.mark.parametrize("channels", [1, 3])
def test_float32_is_rounded_to_8_bits_and_stays_float32(channels):
    between = photo(np.float32, channels) * np.float32(0.999)
    result = operated(between, [ImageOps.invert])
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, 255 - np.rint(between))
    assert operated(between, []) is between


def test_float32_beyond_the_levels_is_black_or_white():
    overshot_HWC = np.array([-40.0, -0.6, 254.4, 255.6, 300.0], np.float32).reshape(1, -1, 1)
    result = operated(overshot_HWC, [ImageOps.invert])
    assert result.ravel().tolist() == [255, 255, 1, 0, 0]


def test_the_magnitudes_of_rand_augment_by_hand():
    """timm's increasing table at magnitude 9 of 10, 16 x 12 pixels."""
    actual = [described(operation) for operation in auto_augment.rand_augment_operations(0.9, -1, NEAREST, 16, 12)]
    assert [name for name, *_ in actual] == ORDER_OF_RAND_AUGMENT
    values = [value[0] for _, *value in actual if value]
    assert values == pytest.approx([1, 26, 99, 0.19, 0.19, 0.19, 0.19, -27, -0.27, -0.27, -4.86, -6.48])


def test_rand_augment_at_its_ends_by_hand():
    def values_at(share, sign):
        operations = auto_augment.rand_augment_operations(share, sign, NEAREST, 16, 12)
        return dict(described(operation)[:2] for operation in operations[3:])

    weakest, strongest = values_at(0.0, 1), values_at(1.0, -1)
    assert weakest["posterize"] == 4
    assert weakest["solarize"] == 256
    assert weakest["solarize_add"] == weakest["rotated"] == 0
    assert weakest["Color"] == 1
    assert strongest["posterize"] == strongest["solarize"] == 0
    assert strongest["Contrast"] == pytest.approx(0.1)


def test_the_magnitudes_of_trivial_augment_by_hand():
    actual = [described(operation) for operation in auto_augment.trivial_augment_operations(0.5, 1)]
    assert [name for name, *_ in actual] == ORDER_OF_TRIVIAL_AUGMENT
    values = [value[0] for _, *value in actual if value]
    assert values == pytest.approx([5, 127.5, 1.495, 1.495, 1.495, 1.495, 67.5, 0.495, 0.495, 16, 16])
    strongest = [described(operation) for operation in auto_augment.trivial_augment_operations(1.0, -1)]
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
            operations = auto_augment.rand_augment_operations(0.6 + 0.05 * z, sign, sampling, 16, 12)
            operation = operations[stream.integers(15)]
            expected = operated(expected, [operation]) if done else expected
        np.testing.assert_array_equal(augment(photo(), keyed(index)), expected)


def test_trivial_augment_does_what_it_draws():
    for index in range(40):
        stream = keyed(index)
        operations = auto_augment.trivial_augment_operations(stream.integers(31) / 30, 2 * stream.integers(2) - 1)
        expected = operated(photo(), [operations[stream.integers(14)]])
        np.testing.assert_array_equal(TrivialAugment()(photo(), keyed(index)), expected)


def test_images_of_two_channels_are_refused():
    with pytest.raises(ValueError, match="TrivialAugment needs images of 1 or 3 channels, these have 2: remove it"):
        TrivialAugment()(photo(channels=2), keyed())
